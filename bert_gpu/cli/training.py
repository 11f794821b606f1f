"""Turns flags into settings, for the two training commands."""

import dataclasses
from typing import Any, TypeVar

from bert_gpu.base.settings import Settings
from bert_gpu.cli.flags import CommonConfig, Parsed
from bert_gpu.devices.cluster import find_cluster
from bert_gpu.devices.config import DeviceConfig, choose_gpus
from bert_gpu.devices.nvml import count_gpus
from bert_gpu.recipes.rules import RecipeConfig
from bert_gpu.train.config import RunSettings

R = TypeVar("R", bound=RunSettings)


def classes_of(kind: type[RunSettings], *more: type[Settings]) -> list[type[Settings]]:
    """Return the settings classes of a training command in the order of its help: the classes of
    the fields of `kind`, RecipeConfig, `more` and CommonConfig.
    """
    first, *others = [
        config for name, config in kind.kinds().items() if name not in RunSettings.kinds()
    ]
    return [first, RecipeConfig, *others, *RunSettings.kinds().values(), *more, CommonConfig]


def defaults_of(kind: type[RunSettings]) -> dict[str, object]:
    """Return {setting: default} for the defaults in which a training, kind(), differs from its
    settings classes.
    """
    values = kind().values()
    class_defaults = {
        field.name: field.default
        for config in kind.kinds().values()
        for field in dataclasses.fields(config)
    }
    return {name: value for name, value in values.items() if value != class_defaults[name]}


def read_settings(parsed: Parsed, kind: type[R], **more: Any) -> R:
    """Return the settings of a training from a command line and its recipe. more: values for the
    fields of `kind` that hold no settings class.
    """
    configs: dict[str, Any] = {name: parsed.make(config) for name, config in kind.kinds().items()}
    return kind(
        **configs,
        **more,
        overwrite=parsed.make(CommonConfig).overwrite,
        recipe=parsed.recipe_name,
        flexible=tuple(parsed.recipe),
        unset=tuple(
            name
            for config in configs.values()
            for name in config.to_dict()
            if not (parsed.is_set(name) or name in parsed.recipe)
        ),
    )


def find_devices(config: DeviceConfig) -> tuple[str, int]:
    """Return ("GPU" or "CPU", number of replicas of all workers) for a training. NVML counts the
    GPUs, so that TensorFlow is not imported.
    """
    num_gpus = choose_gpus(config, count_gpus(), "NVML")
    cluster = find_cluster()
    num_workers = 1 if cluster is None else len(cluster)
    return "GPU" if num_gpus else "CPU", max(1, num_gpus) * config.virtual_replicas * num_workers
