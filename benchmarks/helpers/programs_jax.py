"""Compiled training steps without TensorFlow: turns the programs of ahead_lowering.py into files
that JAX runs, and runs them on its first device; a process of serve.py's kind.
"""

import gzip
import os
import pathlib
import re
import time

import numpy as np
from serve import serve

# element types of MLIR -> NumPy's or ml_dtypes' names
DTYPES = dict(
    f32="float32", bf16="bfloat16", f16="float16", i32="int32", ui32="uint32", i64="int64",
    ui64="uint64", i8="int8", ui8="uint8", i16="int16", ui16="uint16", i1="bool",
)  # fmt: skip
TENSOR = re.compile(r"tensor<((?:\d+x)*)(\w+)>")
SEED = 1


def arguments_of(text):
    """Return [(dtype, shape)] of the public main function in the text of an MLIR module."""
    line = next(
        line for line in text.splitlines() if re.search(r"func\.func (public )?@main", line)
    )
    inputs = line.split("->")[0]
    return [
        (DTYPES[kind], [int(size) for size in sizes.split("x") if size])
        for sizes, kind in TENSOR.findall(inputs)
    ]


def random_argument(dtype, shape, generator):
    """Return a value for an argument: 1 for counts and scales, words' ids for integers, else small
    random numbers, as weights are.
    """
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if not shape:
        return np.ones((), kind)
    if dtype == "bool":
        return np.ones(shape, kind)
    if np.issubdtype(kind, np.integer):
        return generator.integers(0, 2 if len(shape) > 1 else 100, shape).astype(kind)
    return generator.standard_normal(shape, np.float32).__abs__().astype(kind) * kind.type(0.02)


class Programs:
    """flags: for XLA. folder: for the text of compiled modules, None = not written."""

    def __init__(self, flags="", folder=None):
        if folder:
            flags = f"{flags} --xla_dump_to={folder} --xla_dump_hlo_as_text"
        self.folder = folder and pathlib.Path(folder)
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        import jax

        self.jax = jax

    def convert(self, path, output):
        """Write a serialized HLO module as StableHLO that later versions of JAX read, too. Returns
        {"arguments": [(dtype, shape)], "bytes"}.
        """
        from jax._src.interpreters import mlir
        from jaxlib import _jax
        from jaxlib.mlir import ir

        module = _jax.mlir.hlo_to_stablehlo(pathlib.Path(path).read_bytes())
        with mlir.make_ir_context():
            parsed = ir.Module.parse(module)
            text = str(parsed)
            portable = _jax.mlir.serialize_portable_artifact(text, "1.9.0")
        pathlib.Path(output).write_bytes(gzip.compress(portable))
        return dict(arguments=arguments_of(text), bytes=os.path.getsize(output))

    def open(self, path, arguments):
        """Compile a file for the first device. Returns {"compile_seconds", "temporaries" in bytes,
        "text": path of the compiled module or None, "device"}.
        """
        from jax._src.interpreters import mlir
        from jaxlib import _jax, xla_client

        device, portable = self.jax.devices()[0], gzip.decompress(pathlib.Path(path).read_bytes())
        with mlir.make_ir_context():
            module = str(_jax.mlir.deserialize_portable_artifact(portable))
        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        before = set(self.folder.iterdir()) if self.folder else set()
        started = time.perf_counter()
        devices = xla_client.DeviceList((device,))
        self.program = device.client.compile_and_load(module, devices, options)
        seconds = time.perf_counter() - started
        generator = np.random.default_rng(SEED)
        self.arguments = [
            self.jax.device_put(random_argument(dtype, shape, generator), device)
            for dtype, shape in arguments
        ]
        written = (set(self.folder.iterdir()) if self.folder else set()) - before
        texts = [str(file) for file in written if file.name.endswith("after_optimizations.txt")]
        memory = self.program.get_compiled_memory_stats()
        return dict(
            compile_seconds=seconds,
            temporaries=memory.temp_size_in_bytes,
            text=texts[0] if texts else None,
            device=device.device_kind,
        )

    def time(self, seconds):
        """Return the seconds of a run: the median of groups of runs that follow each other without
        waiting.
        """
        self.run(1)
        once = self.run(1)
        count = max(1, round(seconds / 5 / once))
        return float(np.median([self.run(count) / count for _ in range(5)]))

    def run(self, count):
        started = time.perf_counter()
        for _ in range(count):
            results = self.program.execute_sharded(self.arguments)
        for shards in results.disassemble_into_single_device_arrays():
            shards[0].block_until_ready()
        return time.perf_counter() - started

    def versions(self):
        return dict(jax=self.jax.__version__, device=self.jax.devices()[0].device_kind)


if __name__ == "__main__":
    serve(Programs)
