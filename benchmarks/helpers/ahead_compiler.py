"""XLA's GPU compiler as a process for benchmarks: compiles programs for a GPU that need not exist,
and reports on the result.

It uses jax[cuda12] 0.7.0, whose XLA is about that of TensorFlow 2.20. Without a GPU it cannot try
kernels, so products are cuBLAS calls, its default choice.
"""

import os
import pathlib
import time

from serve import serve

# Fields of xla.gpu.GpuTargetConfigProto. Sizes and clock rates of an H200 (SXM) from NVIDIA's data
# sheet and CUDA's table for 9.0.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472 threads_per_core_limit: 2048
  core_count: 132 fpus_per_core: 128 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 150000000000
  cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H200"
"""


class GpuCompiler:
    """folder: for its output. flags: XLA flags beside those that compiling without a GPU needs."""

    def __init__(self, folder, flags=""):
        self.folder = pathlib.Path(folder)
        needed = (
            "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false "
            f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        )
        os.environ["JAX_PLATFORMS"], os.environ["XLA_FLAGS"] = "cpu", f"{needed} {flags}"
        import jax_plugins.xla_cuda12 as plugin
        from jax._src.lib import xla_client
        from jaxlib import _jax

        self.xla_client = xla_client
        self.convert = _jax.mlir.hlo_to_stablehlo
        interface = xla_client.load_pjrt_plugin_dynamically("cuda", str(plugin._get_library_path()))
        xla_client.initialize_pjrt_plugin("cuda")
        topology = xla_client.make_c_api_device_topology(
            interface, "ahead", target_config=H200, topology="1x1x1"
        )
        self.device = topology._make_compile_only_devices()[0]

    def compile(self, path):
        """Compile a serialized HLO module.

        Returns: {"text": path of the optimized module, "arguments", "results", "temporaries":
          bytes, "seconds"}.
        """
        program = self.convert(pathlib.Path(path).read_bytes())
        options = self.xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        before, started = set(self.folder.iterdir()), time.perf_counter()
        devices = self.xla_client.DeviceList((self.device,))
        compiled = self.device.client.compile(program, devices, options)
        seconds = time.perf_counter() - started
        written = set(self.folder.iterdir()) - before
        (text,) = [file for file in written if file.name.endswith("gpu_after_optimizations.txt")]
        memory = compiled.get_compiled_memory_stats()
        return dict(
            text=str(text),
            arguments=memory.argument_size_in_bytes,
            results=memory.output_size_in_bytes,
            temporaries=memory.temp_size_in_bytes,
            seconds=seconds,
        )


if __name__ == "__main__":
    serve(GpuCompiler)
