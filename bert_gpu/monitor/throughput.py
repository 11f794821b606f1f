"""Peak FLOP/s of GPUs, and the share of the peak that a training reaches; model/flops.py counts the
FLOPs of forward and backward passes, shared_update.py those of an optimizer's products.
"""

import re
from collections.abc import Sequence

import tensorflow as tf

# Highest rates of matrix products in TFLOP/s, without sparsity: (16 bits in, summed in float32;
# TensorFloat-32; float32 without matrix units). The rate for 16 bits holds for float16 and
# bfloat16, but only for float16 where there is no TensorFloat-32 (Volta, Turing). GeForce cards sum
# in float32 at half the rate of the professional cards with the same chip. Numbers are NVIDIA's at
# boost clock; data sheets print most of them with sparsity, that is, doubled. Two other projects'
# tables have the same numbers for the cards that they list: Lightning's
# (lightning/fabric/utilities/throughput.py, where the H100 NVL is a pair, and GeForce cards are
# without matrix units) and huggingface.js's hardware.ts (float32).
PEAK_TFLOPS: dict[str, tuple[float, float | None, float]] = {
    # Volta: "Tesla V100 GPU architecture" and V100 data sheet.
    "v100 sxm2": (125, None, 15.7),
    "v100 pcie": (112, None, 14),
    "v100s pcie": (130, None, 16.4),
    # Turing: "NVIDIA Turing GPU architecture", appendices A to C (Founders Editions where clocks
    # differ); T4 data sheet.
    "t4": (65, None, 8.1),
    "titan rtx": (130.5, None, 16.3),
    "quadro rtx 6000": (130.5, None, 16.3),
    "quadro rtx 8000": (130.5, None, 16.3),
    "rtx 2080 ti": (56.9, None, 14.2),
    "rtx 2080": (42.4, None, 10.6),
    "rtx 2070": (31.5, None, 7.9),
    # Ampere, data centre and professional: data sheets of A100, A30, A10, A40, RTX A4000,
    # A5000, A6000.
    "a100": (312, 156, 19.5),
    "a800 sxm4": (312, 156, 19.5),
    "a30": (165, 82, 10.3),
    "a10": (125, 62.5, 31.2),
    "a40": (149.7, 74.8, 37.4),
    "rtx a4000": (76.7, 38.3, 19.2),
    "rtx a5000": (111.1, 55.6, 27.8),
    "rtx a6000": (154.8, 77.4, 38.7),
    # Ampere, GeForce: "NVIDIA Ampere GA102 GPU architecture", tables 2 to 9: 3090, 3080, 3070. The
    # other cards are computed in its way, from their published cores and boost clocks: float32 =
    # 2 x cores x clock, 16 bits double that, TensorFloat-32 the same as float32.
    "rtx 3060": (25.5, 12.7, 12.7),
    "rtx 3060 ti": (32.4, 16.2, 16.2),
    "rtx 3070": (40.6, 20.3, 20.3),
    "rtx 3070 ti": (43.5, 21.7, 21.7),
    # the card with 10 GB; the one with 12 GB has the same name and 3 % more
    "rtx 3080": (59.5, 29.8, 29.8),
    "rtx 3080 ti": (68.2, 34.1, 34.1),
    "rtx 3090": (71, 35.6, 35.6),
    "rtx 3090 ti": (80, 40, 40),
    # Ada: "NVIDIA Ada GPU architecture", appendices A and B (4090, 4080, RTX 6000 Ada, L40, L4),
    # the other GeForce cards computed from cores and clock, as for Ampere; data sheet of the L40S.
    "rtx 4060": (30.2, 15.1, 15.1),
    "rtx 4060 ti": (44.1, 22.1, 22.1),
    "rtx 4070": (58.3, 29.1, 29.1),
    "rtx 4070 super": (71, 35.5, 35.5),
    "rtx 4070 ti": (80.2, 40.1, 40.1),
    "rtx 4070 ti super": (88.2, 44.1, 44.1),
    "rtx 4080": (97.5, 48.7, 48.7),
    "rtx 4080 super": (104.4, 52.2, 52.2),
    "rtx 4090": (165.2, 82.6, 82.6),
    "rtx 6000 ada": (364.2, 182.1, 91.1),
    "l4": (121, 60, 30.3),
    "l40": (181, 90.5, 90.5),
    "l40s": (362, 183, 91.6),
    # Hopper: data sheets of H100 and H200. The SXM form of the H100 names its memory, HBM3.
    "h100 hbm3": (989.4, 494.7, 67),
    "h100 pcie": (756, 378, 51),
    "h100 nvl": (835.5, 417.5, 60),
    "h200": (989.4, 494.7, 67),
    "h200 nvl": (835.5, 417.5, 60),
    "gh200": (989.4, 494.7, 67),
    # Blackwell: HGX B200 data sheet, an eighth of its board of eight; "NVIDIA RTX Blackwell GPU
    # architecture", appendix A.
    "b200": (2250, 1125, 75),
    "rtx 5070": (61.7, 30.9, 30.9),
    "rtx 5070 ti": (87.9, 43.9, 43.9),
    "rtx 5080": (112.6, 56.3, 56.3),
    "rtx 5090": (209.5, 104.8, 104.8),
}
# Words that a device's name may contain besides its name in the table. A name with any further word
# (Laptop, MIG, D, Max-Q) is that of another device, whose peak is not known.
_OTHER_WORDS = re.compile(
    r"nvidia|tesla|geforce|generation|graphics|device|sxm\d?|pcie|hbm\d\w?|\d+gb"
)


def peak_flops(device_name: str, precision: str, tensor_float_32: bool = True) -> float | None:
    """Return the peak FLOP/s of a GPU's matrix products, None for a GPU that is not in the table.

    Args:
      device_name: as TensorFlow reports it, for example "NVIDIA A100-SXM4-80GB".
      precision: "bfloat16", "float16" or "float32", the type of the products.
      tensor_float_32: whether products of float32 may use TensorFloat-32, TensorFlow's default.
    """
    words = set(re.findall(r"[a-z0-9]+", device_name.lower()))
    matches = [
        name
        for name in PEAK_TFLOPS
        if (own := set(name.split())) <= words and all(map(_OTHER_WORDS.fullmatch, words - own))
    ]
    if not matches:
        return None
    half, tf32, single = PEAK_TFLOPS[max(matches, key=lambda name: len(name.split()))]
    if precision == "float32":
        return 1e12 * (tf32 if tf32 and tensor_float_32 else single)
    return None if precision == "bfloat16" and tf32 is None else 1e12 * half


def total_peak_flops(device_names: Sequence[str], precision: str) -> float | None:
    """Return the peak FLOP/s of all GPUs of a run together; None when the peak of one is not known,
    or when there is no GPU.
    """
    tensor_float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    peaks = [
        peak
        for name in device_names
        if (peak := peak_flops(name, precision, tensor_float_32)) is not None
    ]
    return sum(peaks) if peaks and len(peaks) == len(device_names) else None


def utilization(
    model_flops_per_second: float | None,
    hardware_flops_per_second: float | None,
    real_share: float | None,
    peak: float | None,
) -> dict[str, float | None]:
    """Return the shares of the peak that a run reaches: {"mfu", "mfu_real_tokens", "hfu"}. All are
    None when the peak or a rate is None.

    Args:
      model_flops_per_second, hardware_flops_per_second: of all GPUs together, over all positions of
        the rows, padding included.
      real_share: share of the positions that hold real tokens; mfu_real_tokens is mfu times that.
      peak: FLOP/s of all GPUs together, from `total_peak_flops`.
    """
    if model_flops_per_second is None or hardware_flops_per_second is None or peak is None:
        return dict(mfu=None, mfu_real_tokens=None, hfu=None)
    mfu = model_flops_per_second / peak
    return dict(
        mfu=mfu,
        mfu_real_tokens=None if real_share is None else mfu * real_share,
        hfu=hardware_flops_per_second / peak,
    )
