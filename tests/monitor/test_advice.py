"""What slows a run down is told once, when it has lasted, with what to change; nothing else is."""

import re

import pytest

from bert_gpu.monitor.advice import SlowdownWarnings
from tests.train.world import World

# of a healthy run on two GPUs, as NVML gives it under load
HEALTHY = dict(
    input_wait=0.01,
    gpu_utilization=99.0,
    gpu_temperature_celsius=71.0,
    gpu_clock_share=0.9,
    gpu_throttled_power=1.0,
    gpu_throttled_heat=0.0,
    gpu_throttled_hardware=0.0,
    gpu_0_clock_mhz=1785.0,
    gpu_1_clock_mhz=1770.0,
)


def told(lines, seconds=20.0, kind="GPU"):
    """The warnings of lines that come every so many seconds."""
    texts = []
    advice = SlowdownWarnings(texts.append, kind)
    for number, values in enumerate(lines):
        advice.observe(HEALTHY | values | dict(seconds=number * seconds))
    return texts


@pytest.mark.parametrize(
    "values, text",
    [
        (
            dict(input_wait=0.35, gpu_utilization=60.0),
            "the GPUs wait for data 35% of the time; put",
        ),
        (dict(gpu_throttled_heat=0.9, gpu_throttled_hardware=1.0), r"held down \(heat\); check"),
        (dict(gpu_throttled_hardware=0.6), r"held down \(hardware\)"),
        (dict(gpu_clock_share=0.6), r"held down \(power\)"),
    ],
)
def test_what_lasts_is_told_once(values, text):
    (found,) = told([values] * 20)
    assert re.search(text, found) and len(found) <= 280
    assert told([values] * 3) == [], "40 seconds, without the first line, which compiled"
    assert told([{}, values, {}, {}] * 5) == [], "it comes and goes"


def test_validation_is_judged_by_the_whole_session():
    often = [dict(time_validation=0.9), {}, {}] * 4
    (found,) = told(often)
    assert re.search("validation takes 3[0-9]% of the time; give a larger --eval_batch", found)
    assert told([{}, dict(time_validation=0.9), {}, {}, {}] * 4) == [], "18 %"
    assert told([{}, *[dict(time_validation=0.9)] * 2, {}]) == [], "only two validations"


@pytest.mark.parametrize(
    "values",
    [
        {},
        dict(input_wait=0.5),  # the GPUs are busy all the same: the loop is ahead of them
        dict(gpu_throttled_heat=0.3),
        dict.fromkeys(HEALTHY),  # nothing is known
    ],
)
def test_a_healthy_run_is_left_alone(values):
    assert told([values] * 20) == []


def test_without_gpus():
    values = dict.fromkeys(HEALTHY) | dict(input_wait=0.5)
    assert told([values] * 20, kind="CPU")[0].startswith("training waits for data 50%")


def test_the_loop_asks_for_advice(tmp_path):
    world = World(tmp_path, num_train_steps=30, log_steps=2)
    world.log.hardware = lambda: dict(gpu_throttled_heat=1.0)
    warned = []
    world.console = type("Told", (), dict(warn=warned.append, say=lambda text: None))
    world.run()
    assert len(warned) == 1 and warned[0].startswith("the GPUs' clocks are held down (heat)")
