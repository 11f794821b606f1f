"""The parts of the GPU benchmark that measure steps: speed against PyTorch, and memory. Each
variant is a process of serve.py.

A part of the benchmark is a dict of items, {name: function of a Clock -> result}, the most
important first.
"""

import dataclasses
import functools
import pathlib
import time

from .command import Failed
from .process import Peer, median_step
from .shapes import DROPOUT, flops_per_token, real_share, shape_of

OURS, TORCH = "ours", "hugging_face"
TOKENS = dict(base=32768, large=16384)  # of a step that a search starts with


class Clock:
    """The time limit of a part."""

    def __init__(self, seconds):
        self.ends = time.monotonic() + seconds

    def left(self):
        return max(0.0, self.ends - time.monotonic())


@dataclasses.dataclass
class Setup:
    """Settings and state of a run of the benchmark. items: {item: result} of the current part,
    earlier items included.
    """

    gpu: bool
    small: bool
    torch_python: str | None
    work: pathlib.Path
    text: str
    memory_limit: int
    record_minutes: float
    items: dict = dataclasses.field(default_factory=dict)
    rates: dict = dataclasses.field(default_factory=dict)  # {precision: FLOP/s of a product}
    versions: dict = dataclasses.field(default_factory=dict)

    def model(self, model):
        return "tiny" if self.small else model

    def length(self, length):
        return length // 4 if self.small else length

    @property
    def turn_seconds(self):
        return 0.1 if self.small else 2.0


def speed_items(setup, model, length):
    """Return the items of ours and PyTorch on sentence pairs of full rows, at the best batch of
    each; packed rows and float16 at those batches.

    cuDNN's attention has no dropout, so it is compared with PyTorch without dropout of attention
    probabilities, and so is ours.
    """
    plain, cudnn = dict(attention="plain"), dict(attention="cudnn", attention_dropout=0.0)
    torch = dict(compiled=not setup.small)
    no_dropout, packed = dict(attention_dropout=0.0), dict(packed=True)
    ours, without = "ours bfloat16, plain", "ours bfloat16, cuDNN, attention dropout 0"
    peer = f"PyTorch bfloat16, SDPA, {'eager' if setup.small else 'torch.compile'}"
    entries = {  # {name: (system, precision, settings, an item whose best batch is used)}
        ours: (OURS, "bfloat16", plain, None),
        peer: (TORCH, "bfloat16", torch, None),
        without: (OURS, "bfloat16", cudnn, None),
        f"{peer}, attention dropout 0": (TORCH, "bfloat16", torch | no_dropout, None),
        "ours bfloat16, cuDNN, packed": (OURS, "bfloat16", cudnn | packed, without),
        f"{ours}, packed": (OURS, "bfloat16", plain | packed, ours),
        f"{ours}, attention dropout 0": (OURS, "bfloat16", plain | no_dropout, ours),
        "ours float16, plain": (OURS, "float16", plain, ours),
    }
    if not setup.small:  # a CPU has no float16 in PyTorch
        entries[peer.replace("bfloat16", "float16")] = (TORCH, "float16", torch, peer)
    return {
        name: functools.partial(speed, setup, model, length, *entry)
        for name, entry in entries.items()
    }


def speed(setup, model, length, system, precision, extra, like, clock):
    """Return the best batch of a variant and its speed. like: an item whose best batch is used,
    without a search.
    """
    python = setup.torch_python if system == TORCH else None
    if system == TORCH and python is None:
        raise Failed("no Python with torch and transformers: give --torch_python")
    extra = dict(extra)
    dropout, packed = extra.pop("attention_dropout", DROPOUT), bool(extra.get("packed"))
    model, length = setup.model(model), setup.length(length)
    shape = shape_of(model) | dict(attention_probs_dropout_prob=dropout)
    settings = dict(shape=shape, length=length, gpu=setup.gpu, precision=precision) | extra
    if system == OURS:
        settings |= dict(xla="on", steps_per_call=2 if setup.small else 10)
    start = 4 if setup.small else TOKENS[model] // length
    known = setup.items.get(like, {}).get("rows")
    with Peer(system, settings, python, max(60.0, clock.left())) as peer:
        if known or setup.small:
            tries = [try_rows(peer, known or start, setup, clock)]
        else:
            tries = search(peer, start, setup, clock)
        fitting = [each for each in tries if each["fits"]]
        if not fitting:
            raise Failed(f"no batch fits: {tries[-1]['error']}")
        best = max(fitting, key=lambda each: each["tokens_per_second"])
        if best is not tries[-1] and clock.left() > 1.5 * best["seconds"] + 10:
            best |= try_rows(peer, best["rows"], setup, clock)
        rate = peer.ask("matrix_rate", precision=precision, seconds=setup.turn_seconds)
        setup.rates[precision] = max(rate, setup.rates.get(precision, 0.0))
        setup.versions[system] = peer.ask("versions")
        try:
            profile = peer.ask("outside_products", patience=max(20.0, clock.left()))
        except Failed as problem:
            profile = dict(error=str(problem))
    tokens_per_second = best["tokens_per_second"]
    share = 1.0 if packed else real_share(best["rows"], length)
    fields = ("rows", "fits", "tokens_per_second", "compile_seconds")
    return best | dict(
        system=system,
        model=model,
        length=length,
        settings=settings,
        precision=precision,
        attention_dropout=dropout,
        packed=packed,
        real_tokens_per_second=tokens_per_second * share,
        flops_per_second=tokens_per_second * flops_per_token(model, length, packed),
        profile=profile,
        tries=[{field: each.get(field) for field in fields} for each in tries],
    )


def take_turns(peer, rows, setup, clock):
    """Return {"step_seconds", "tokens_per_second", "peak_bytes", "loss"} of a prepared process."""
    turns = [
        peer.ask("turn", patience=60 + clock.left(), seconds=setup.turn_seconds) for _ in range(3)
    ]
    step = median_step(turns)
    return dict(
        step_seconds=step,
        tokens_per_second=rows * peer.settings["length"] / step,
        peak_bytes=peer.ask("peak_bytes"),
        loss=turns[-1]["loss"],
    )


def try_rows(peer, rows, setup, clock):
    """Return the result of one batch size: {"fits", "rows", "seconds"} with the report of
    `take_turns` and "compile_seconds", or with "error".
    """
    if clock.left() < 5:
        return dict(fits=False, rows=rows, error="the time of the part was over", seconds=0.0)
    started = time.monotonic()
    ready = peer.ask("prepare", patience=clock.left(), rows=rows, warm=2)
    if ready["fits"]:
        compile_seconds = ready["first_seconds"]
        ready = dict(fits=True, compile_seconds=compile_seconds)
        ready |= take_turns(peer, rows, setup, clock)
    return ready | dict(rows=rows, seconds=time.monotonic() - started)


def search(peer, start, setup, clock):
    """Return the results of the batch sizes tried: from `start` down until one fits, or up while
    tokens/s grow by more than 1 %.
    """
    tries = [try_rows(peer, start, setup, clock)]
    while not tries[-1]["fits"] and tries[-1]["rows"] > 1 and clock.left() >= 5:
        tries.append(try_rows(peer, tries[-1]["rows"] // 2, setup, clock))
    if not tries[0]["fits"]:
        return tries
    best = 0.0
    while tries[-1]["fits"] and tries[-1]["tokens_per_second"] >= 1.01 * best:
        best = tries[-1]["tokens_per_second"]
        if clock.left() <= 2 * tries[-1]["seconds"]:
            break
        tries.append(try_rows(peer, 2 * tries[-1]["rows"], setup, clock))
    return tries


MIXED, EIGHT_BIT = dict(precision="bfloat16"), dict(optimizer="adamw8bit")
RECOMPUTE = MIXED | dict(recompute_every=1)
TECHNIQUES = {
    "nothing (float32)": dict(),
    "bfloat16": MIXED,
    "bfloat16, recompute, adamw8bit": RECOMPUTE | EIGHT_BIT,
    "the same, accumulation to 1024": RECOMPUTE | EIGHT_BIT | dict(global_batch_size=1024),
    "bfloat16, recompute": RECOMPUTE,
    "bfloat16, adamw8bit": MIXED | EIGHT_BIT,
}


def memory_items(setup, model, length):
    return {
        name: functools.partial(memory, setup, model, length, technique)
        for name, technique in list(TECHNIQUES.items())[: 4 if setup.small else None]
    }


def memory(setup, model, length, technique, clock):
    """Return the micro-batch that --train_batch_size=auto chooses under the memory limit, and the
    speed of the resulting steps.
    """
    technique = dict(technique)
    global_batch = technique.pop("global_batch_size", None)
    if global_batch and setup.small:
        global_batch = 8
    settings = dict(shape=shape_of(setup.model(model)), length=setup.length(length))
    settings |= dict(gpu=setup.gpu, xla="on") | technique
    settings |= dict(gpu_memory_limit=setup.memory_limit) if setup.gpu else {}
    with Peer(OURS, settings, seconds=max(60.0, clock.left())) as peer:
        started = time.monotonic()
        sizes = peer.ask("fill", patience=clock.left(), rows=4, global_batch_size=global_batch)
        sizes |= dict(search_seconds=time.monotonic() - started)
        if sizes["micro_batch"] is None:
            return sizes
        rows = sizes["micro_batch"] * sizes["accumulation"]
        ready = peer.ask("prepare", patience=clock.left(), rows=rows, warm=1)
        if not ready["fits"]:
            micro_batch = sizes["micro_batch"]
            raise Failed(f"the micro-batch of {micro_batch} does not fit again: {ready['error']}")
        return sizes | take_turns(peer, rows, setup, clock)
