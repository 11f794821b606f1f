"""Settings of the learning rate's schedule and of the optimizer, and the table of optimizers."""

import dataclasses
import re
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, setting
from bert_gpu.optim import adamw, adamw8bit, lamb, muon


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Settings):
    """The learning rate over a run."""

    curve: str = setting(
        "linear",
        "Curve of the learning rate. linear, cosine and polynomial fall over the whole run, "
        "and warm-up replaces their start, as in Google's BERT. constant does not fall. "
        "one_cycle rises during warm-up, then falls linearly (Smith & Topin 2018), "
        "one_cycle_cosine along half a cosine. triangle "
        "(Cramming) rises from 1/4 of the peak to the peak at 3/4 of the run, without warm-up. "
        "wsd (warm-up, stable, decay) stays at the peak until it falls over the last "
        "--decay_proportion of the run (MiniCPM, ModernBERT).",
        choices=(
            *("linear", "cosine", "polynomial", "constant", "one_cycle", "one_cycle_cosine"),
            *("triangle", "wsd"),
        ),
    )
    num_warmup_steps: int | None = setting(
        None, "Steps of linear warm-up from 0. Overrides --warmup_proportion.", low=0
    )
    warmup_proportion: float = setting(
        0.1,
        "Share of the run that is linear warm-up from 0.",
        low=0.0,
        below=1.0,
    )
    polynomial_power: float = setting(
        2.0,
        "Power of --curve=polynomial; 1 is linear.",
        above=0.0,
        needs=("curve", ("polynomial",)),
    )
    decay_proportion: float = setting(
        0.1,
        "Share of the run over which --curve=wsd falls, at its end.",
        above=0.0,
        high=1.0,
        needs=("curve", ("wsd",)),
    )
    min_lr_ratio: float = setting(
        0.0, "Final learning rate, as a share of the peak.", low=0.0, high=1.0
    )
    lr_schedule: str = setting(
        "step",
        "Measure a run's progress by steps, or by time out of --total_training_time.",
        choices=("step", "time"),
    )
    total_training_time: float | None = setting(
        None,
        "Time that a run may train, all sessions together. "
        "It ends then, even if steps are left. Default: no limit.",
        above=0.0,
        unit="hours",
    )
    batch_ramp_proportion: float = setting(
        0.0,
        "Share of the run over which accumulation grows from "
        "one micro-batch to all; 0 = all from the start.",
        low=0.0,
        high=1.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        warmup = f"--num_warmup_steps={self.num_warmup_steps}"
        if self.lr_schedule == "time" and self.total_training_time is None:
            raise UserError(
                "needs a time budget to measure progress by",
                "add --total_training_time=24h or another time",
                setting="lr_schedule",
                value="time",
            )
        if self.min_lr_ratio and self.curve == "constant":
            raise UserError(
                "--curve=constant does not decay",
                "drop one of the two",
                setting=("min_lr_ratio", "curve"),
                value=self.min_lr_ratio,
            )
        if self.num_warmup_steps and self.curve == "triangle":
            raise UserError(
                "--curve=triangle has its own rise", "drop one of the two", where=warmup
            )
        if (
            self.num_warmup_steps is not None
            and self.curve.startswith("one_cycle")
            and self.lr_schedule == "time"
        ):
            raise UserError(
                f"--curve={self.curve} by --lr_schedule=time peaks at a share of the time",
                "use --warmup_proportion",
                where=warmup,
            )

    def without_effect(self, name: str) -> str | None:
        """Return the message that the setting `name` has no effect, None when it has one. This adds
        to Settings a rule that `needs` of a setting cannot express.
        """
        if name == "warmup_proportion" and self.curve == "triangle":
            return "--warmup_proportion has no effect with --curve=triangle, which has its own rise"
        return super().without_effect(name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonSettings(Settings):
    """Settings that every optimizer reads."""

    optimizer: str = setting("adamw", "")  # `make_config` adds help and choices from the table
    learning_rate: float = setting(
        1e-4,
        "Peak learning rate for a batch of --lr_reference_batch_size sequences.",
        above=0.0,
        high=1e32,
    )
    weight_decay_rate: float = setting(0.01, "Decoupled weight decay.", low=0.0)
    weight_decay_exclude: str = setting(
        "bias|norm",
        "Weights without decay: a regular expression searched "
        "in their names; empty = none. Default: biases and normalisation.",
        words=("",),
    )
    layer_lr_decay: float = setting(
        1.0,
        "Learning rate of a layer as a share of that of the layer above it: the heads have the "
        "whole rate, the top layer this share, the embeddings the lowest. 1 = all alike.",
        above=0.0,
        high=1.0,
    )
    clip_norm: float = setting(
        1.0, "Clip gradients to this global norm after the all-reduce; 0 = never.", low=0.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            re.compile(self.weight_decay_exclude)
        except re.error as error:
            raise UserError(
                f"not a regular expression: {error}",
                setting="weight_decay_exclude",
                value=self.weight_decay_exclude[:150],
            ) from error

    def keeping_rows(self, num_unused: int) -> Any:
        """Return a copy that leaves the first `num_unused` rows of the table of positions, which no
        token uses, as they are: with any such rows, the table is not decayed.
        """
        names = "|".join(filter(None, (self.weight_decay_exclude, "embeddings/position")))
        return dataclasses.replace(self, weight_decay_exclude=names) if num_unused else self


def make_config(optimizers: Mapping[str, types.ModuleType]) -> Any:
    """Return the settings class for a table of optimizers: the common settings, then those of each
    optimizer, which have an effect only with the optimizers whose `Settings` have them.

    Args:
      optimizers: {name: module as in interface.py}.

    Returns: a subclass of CommonSettings and of every module's Settings; its objects have the
    attribute `module`, the module of the selected optimizer.
    """
    fields: dict[str, dataclasses.Field] = {}
    readers: dict[str, list[str]] = {}
    for name, module in optimizers.items():
        for field in dataclasses.fields(module.Settings):
            assert fields.setdefault(field.name, field) is field, (
                f"two settings are named {field.name}"
            )
            readers.setdefault(field.name, []).append(name)
    common = {field.name: field for field in dataclasses.fields(CommonSettings)}
    assert not fields.keys() & common.keys(), f"common settings are {', '.join(common)}"

    summaries = "; ".join(f"{name}: {module.SUMMARY}" for name, module in optimizers.items())
    rules: dict[str, dict[str, Any]] = {
        "optimizer": dict(help=f"{summaries}.", choices=tuple(optimizers))
    }
    rules |= {
        name: dict(needs=field.metadata["needs"] or ("optimizer", tuple(readers[name])))
        for name, field in fields.items()
    }
    kinds = sorted(
        {module.Settings: None for module in optimizers.values()},
        key=lambda kind: -len(kind.__mro__),
    )
    return dataclasses.make_dataclass(
        "OptimizerConfig",
        [
            (
                name,
                field.type,
                dataclasses.field(
                    default=field.default, metadata={**field.metadata, **rules[name]}
                ),
            )
            for name, field in (common | fields).items()
            if name in rules
        ],
        bases=(*kinds, CommonSettings),  # a class must come before its own bases
        namespace=dict(
            __doc__="The optimizer and its constants.",
            __module__=__name__,
            module=property(lambda config: optimizers[config.optimizer]),
        ),
        frozen=True,
        kw_only=True,
    )


OPTIMIZERS = {"adamw": adamw, "lamb": lamb, "adamw8bit": adamw8bit, "muon": muon}

if TYPE_CHECKING:

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class OptimizerConfig(muon.Settings, CommonSettings):  # Muon's Settings include the others'
        @property
        def module(self) -> types.ModuleType: ...
else:
    OptimizerConfig = make_config(OPTIMIZERS)
