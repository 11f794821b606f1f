"""The parts of the GPU benchmark that measure steps: speed against PyTorch, and memory. Each
variant is a process of serve.py.

A part of the benchmark is a list of items, (name, function of a Clock -> result), the most
important first.
"""

import dataclasses
import pathlib
import time

from .command import Failed
from .process import Peer, median_step
from .shapes import DROPOUT, flops_per_token, real_share, shape_of

OURS, TORCH = "ours", "hugging_face"


class Clock:
    """The time limit of a part."""

    def __init__(self, seconds):
        self.ends = time.monotonic() + seconds

    def left(self):
        return max(0.0, self.ends - time.monotonic())


@dataclasses.dataclass
class Setup:
    """Settings and state of a run of the benchmark. found: {item: result} of the current part,
    earlier items included.
    """

    gpu: bool
    small: bool
    torch_python: str | None
    work: pathlib.Path
    text: str
    memory_limit: int
    record_minutes: float
    record_flags: list
    found: dict = dataclasses.field(default_factory=dict)
    rates: dict = dataclasses.field(default_factory=dict)  # {precision: FLOP/s of a product}
    versions: dict = dataclasses.field(default_factory=dict)

    def shape(self, model):
        return shape_of("tiny" if self.small else model)

    def length(self, length):
        return length // 4 if self.small else length

    @property
    def turn_seconds(self):
        return 0.1 if self.small else 2.0


def speed_items(setup, model, length):
    """Ours and PyTorch on sentence pairs of full rows, at the best batch of each; packed rows and
    float16 at those batches.

    cuDNN's attention has no dropout, so it is compared with PyTorch without dropout of attention
    probabilities, and so is ours.
    """
    plain, cudnn = dict(attention="plain"), dict(attention="cudnn", attention_dropout=0.0)
    torch = dict(compiled=not setup.small)
    how = "eager" if setup.small else "torch.compile"
    entries = [
        ("ours bfloat16, plain", OURS, "bfloat16", plain, None),
        (f"PyTorch bfloat16, SDPA, {how}", TORCH, "bfloat16", torch, None),
        ("ours bfloat16, cuDNN, attention dropout 0", OURS, "bfloat16", cudnn, None),
        (
            f"PyTorch bfloat16, SDPA, {how}, attention dropout 0",
            TORCH,
            "bfloat16",
            torch | dict(attention_dropout=0.0),
            None,
        ),
        (
            "ours bfloat16, cuDNN, packed",
            OURS,
            "bfloat16",
            cudnn | dict(packed=True),
            "ours bfloat16, cuDNN, attention dropout 0",
        ),
        (
            "ours bfloat16, plain, packed",
            OURS,
            "bfloat16",
            plain | dict(packed=True),
            "ours bfloat16, plain",
        ),
        (
            "ours bfloat16, plain, attention dropout 0",
            OURS,
            "bfloat16",
            plain | dict(attention_dropout=0.0),
            "ours bfloat16, plain",
        ),
        ("ours float16, plain", OURS, "float16", plain, "ours bfloat16, plain"),
        (
            f"PyTorch float16, SDPA, {how}",
            TORCH,
            "float16",
            torch,
            f"PyTorch bfloat16, SDPA, {how}",
        ),
    ]
    if setup.small:
        entries = [
            entry for entry in entries if "float16, SDPA" not in entry[0] or "bfloat16" in entry[0]
        ]
    return [
        (
            name,
            lambda clock, rest=rest: speed(
                setup, model, length, first_rows(setup, model, length), clock, *rest
            ),
        )
        for name, *rest in entries
    ]


def first_rows(setup, model, length):
    """Rows that a search starts with: 32,768 tokens for base, half as many for large."""
    return 4 if setup.small else (32768 if model == "base" else 16384) // length


def speed(setup, model, length, start, clock, system, precision, extra, like):
    """The best batch of a variant and its speed. like: an item whose best batch is used, without a
    search.
    """
    if system == TORCH and setup.torch_python is None:
        raise Failed("no Python with torch and transformers: give --torch_python")
    dropout = extra.get("attention_dropout", DROPOUT)
    shape = setup.shape(model) | dict(attention_probs_dropout_prob=dropout)
    settings = dict(shape=shape, length=setup.length(length), gpu=setup.gpu, precision=precision)
    settings |= {name: value for name, value in extra.items() if name != "attention_dropout"}
    if system == OURS:
        settings |= dict(xla="on", steps_per_call=2 if setup.small else 8)
    known = setup.found.get(like, {}).get("rows")
    with Peer(
        system, settings, setup.torch_python if system == TORCH else None, max(60.0, clock.left())
    ) as peer:
        tries = (
            [try_rows(peer, known or start, setup, clock)]
            if known or setup.small
            else search(peer, start, setup, clock)
        )
        fitting = [one for one in tries if one["fits"]]
        if not fitting:
            raise Failed(f"no batch fits: {tries[-1]['error']}")
        best = max(fitting, key=lambda one: one["tokens_per_second"])
        if best is not fitting[-1] or len(tries) > len(fitting):
            best |= (
                try_rows(peer, best["rows"], setup, clock)
                if clock.left() > 1.5 * best["seconds"] + 10
                else {}
            )
        flops_per_second = peer.ask("matrix_rate", precision=precision, seconds=setup.turn_seconds)
        setup.rates[precision] = max(flops_per_second, setup.rates.get(precision, 0.0))
        setup.versions[system] = peer.ask("versions")
        try:
            profile = peer.ask("outside_products", patience=max(20.0, clock.left()))
        except Failed as problem:
            profile = dict(error=str(problem))
    packed = bool(extra.get("packed"))
    share = 1.0 if packed else real_share(best["rows"], setup.length(length))
    return best | dict(
        system=system,
        model=model,
        length=length,
        settings=settings,
        precision=precision,
        attention_dropout=dropout,
        packed=packed,
        real_tokens_per_second=best["tokens_per_second"] * share,
        flops_per_second=best["tokens_per_second"]
        * flops_per_token("tiny" if setup.small else model, setup.length(length), packed),
        profile=profile,
        tries=[
            {
                name: one.get(name)
                for name in ("rows", "fits", "tokens_per_second", "compile_seconds")
            }
            for one in tries
        ],
    )


def try_rows(peer, rows, setup, clock):
    """One batch size: {"fits", "rows", "tokens_per_second", "step_seconds", "compile_seconds",
    "peak_bytes", "seconds"}.
    """
    if clock.left() < 5:
        return dict(fits=False, rows=rows, error="the time of the part was over", seconds=0.0)
    started = time.monotonic()
    ready = peer.ask("prepare", patience=clock.left(), rows=rows, warm=2)
    if not ready["fits"]:
        return dict(ready, rows=rows, seconds=time.monotonic() - started)
    turns = [
        peer.ask("turn", patience=60 + clock.left(), seconds=setup.turn_seconds) for _ in range(3)
    ]
    step = median_step(turns)
    return dict(
        fits=True,
        rows=rows,
        step_seconds=step,
        tokens_per_second=rows * peer.settings["length"] / step,
        compile_seconds=ready["first_seconds"],
        peak_bytes=peer.ask("peak_bytes"),
        loss=turns[-1]["loss"],
        seconds=time.monotonic() - started,
    )


def search(peer, start, setup, clock):
    """Results of the batch sizes tried: from `start` down until one fits, or up while tokens/s grow
    by more than 1 %.
    """
    tries = [try_rows(peer, start, setup, clock)]
    while not tries[-1]["fits"] and tries[-1]["rows"] > 1:
        if clock.left() < 5:
            return tries
        tries.append(try_rows(peer, tries[-1]["rows"] // 2, setup, clock))
    if len(tries) > 1 or not tries[0]["fits"]:
        return tries
    best = tries[0]["tokens_per_second"]
    while clock.left() > 2 * tries[-1]["seconds"]:
        tries.append(try_rows(peer, 2 * tries[-1]["rows"], setup, clock))
        if not tries[-1]["fits"] or tries[-1]["tokens_per_second"] < 1.01 * best:
            return tries
        best = tries[-1]["tokens_per_second"]
    return tries


TECHNIQUES = {
    "nothing (float32)": dict(),
    "bfloat16": dict(precision="bfloat16"),
    "bfloat16, recompute, adamw8bit": dict(
        precision="bfloat16", recompute=True, optimizer="adamw8bit"
    ),
    "the same, accumulation to 1024": dict(
        precision="bfloat16", recompute=True, optimizer="adamw8bit", wanted=1024
    ),
    "bfloat16, recompute": dict(precision="bfloat16", recompute=True),
    "bfloat16, adamw8bit": dict(precision="bfloat16", optimizer="adamw8bit"),
}


def memory_items(setup, model, length):
    chosen = list(TECHNIQUES.items())[: 4 if setup.small else None]
    return [
        (name, lambda clock, technique=technique: memory(setup, model, length, clock, **technique))
        for name, technique in chosen
    ]


def memory(setup, model, length, clock, wanted=None, **technique):
    """What --train_batch_size=auto finds under the memory limit, and the speed of the resulting
    steps.
    """
    wanted = 8 if wanted and setup.small else wanted
    settings = dict(
        shape=setup.shape(model), length=setup.length(length), gpu=setup.gpu, xla="on", **technique
    )
    settings |= dict(gpu_memory_limit=setup.memory_limit) if setup.gpu else {}
    with Peer(OURS, settings, seconds=max(60.0, clock.left())) as peer:
        started = time.monotonic()
        chosen = peer.ask("fill", patience=clock.left(), rows=4, wanted=wanted)
        searched = time.monotonic() - started
        if chosen["micro_batch"] is None:
            return dict(chosen, search_seconds=searched)
        rows = chosen["micro_batch"] * chosen["accumulation"]
        ready = peer.ask("prepare", patience=clock.left(), rows=rows, warm=1)
        if not ready["fits"]:
            raise Failed(
                f"the micro-batch of {chosen['micro_batch']} that "
                f"was found does not fit again: {ready['error']}"
            )
        step = median_step(
            [
                peer.ask("turn", patience=60 + clock.left(), seconds=setup.turn_seconds)
                for _ in range(3)
            ]
        )
        tokens_per_second = rows * setup.length(length) / step
        return dict(
            chosen,
            tokens_per_second=tokens_per_second,
            step_seconds=step,
            peak_bytes=peer.ask("peak_bytes"),
            search_seconds=searched,
        )
