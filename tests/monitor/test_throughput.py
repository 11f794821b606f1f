"""Laws of peak FLOP/s: unknown devices have none, and utilization is a share of all GPUs' sum."""

import pytest

from bert_gpu.monitor import throughput


def test_rates_of_devices_follow_their_names():
    peak = throughput.peak_flops
    for name, half, tf32, single in [
        ("Tesla V100-SXM2-32GB", 125, None, 15.7),
        ("Tesla T4", 65, None, 8.1),
        ("NVIDIA A100-SXM4-80GB", 312, 156, 19.5),
        ("NVIDIA A100 80GB PCIe", 312, 156, 19.5),
        ("NVIDIA A10", 125, 62.5, 31.2),
        ("NVIDIA GeForce RTX 3060 Ti", 32.4, 16.2, 16.2),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 88.2, 44.1, 44.1),
        ("NVIDIA RTX 6000 Ada Generation", 364.2, 182.1, 91.1),
        ("NVIDIA RTX A6000", 154.8, 77.4, 38.7),
        ("NVIDIA H100 80GB HBM3", 989.4, 494.7, 67),
        ("NVIDIA H100 PCIe", 756, 378, 51),
        ("NVIDIA H200", 989.4, 494.7, 67),
        ("NVIDIA H200 NVL", 835.5, 417.5, 60),
    ]:
        assert peak(name, "float16") == half * 1e12, name
        assert peak(name, "bfloat16") == (half * 1e12 if tf32 else None), name
        assert (
            peak(name, "float32") == (tf32 or single) * 1e12
            and peak(name, "float32", tensor_float_32=False) == single * 1e12
        )


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA A10G",
        "GRID A100-40C",
        "NVIDIA GeForce RTX 2080 with Max-Q Design",
        "Tesla K80",
        "NVIDIA H100",
        "AMD Instinct MI300X",
    ],
)
def test_an_unknown_device_has_no_rate(name):
    assert throughput.peak_flops(name, "float16") is None
    assert throughput.total_peak_flops(["NVIDIA H200", name], "bfloat16") is None


def test_the_table_agrees_with_the_arithmetic_of_the_chips():
    """A GeForce card's products of 16 bits run at two times, professional ones' at four times the
    speed of plain float32 (Ampere, Ada).
    """
    for name, (half, tf32, single) in throughput.PEAK_TFLOPS.items():
        if tf32 is not None:
            assert half == pytest.approx(2 * tf32, rel=0.03), name
        if name.startswith(("rtx 3", "rtx 4", "rtx 5")):
            assert half == pytest.approx(2 * single, rel=0.01), name
        elif name.startswith(("rtx a", "rtx 6", "a10", "a40", "l4")) and name not in (
            "a100",
            "l40",
        ):
            assert half == pytest.approx(4 * single, rel=0.02), name


def test_utilization_is_a_share_of_all_gpus():
    peak = throughput.total_peak_flops(["NVIDIA H200"] * 4, "bfloat16")
    assert peak == 4 * 989.4e12
    shares = throughput.utilization(0.25 * peak, 0.3 * peak, 0.5, peak)
    assert shares == pytest.approx(dict(mfu=0.25, mfu_real_tokens=0.125, hfu=0.3))
    assert throughput.total_peak_flops([], "float32") is None
    assert set(throughput.utilization(1.0, 1.0, 0.5, None).values()) == {None}
    assert set(throughput.utilization(None, None, None, peak).values()) == {None}
