"""Shared by the two training commands: flags -> settings."""

import dataclasses

from bert_gpu.cli.flags import CommonConfig
from bert_gpu.devices.cluster import find_cluster
from bert_gpu.devices.config import choose_gpus
from bert_gpu.devices.nvml import count_gpus
from bert_gpu.recipes.rules import RecipeConfig
from bert_gpu.train.config import RunSettings


def classes_of(kind, *more):
    """The settings classes of a command, in the order of its help. kind: subclass of RunSettings.
    more: further classes.
    """
    first, *own = [
        config for name, config in kind.kinds().items() if name not in RunSettings.kinds()
    ]
    return [first, RecipeConfig, *own, *RunSettings.kinds().values(), *more, CommonConfig]


def defaults_of(kind):
    """{setting: value} where the default of a subclass of RunSettings differs from the settings
    class's.
    """
    values = kind().values()
    own = {
        field.name: field.default
        for config in kind.kinds().values()
        for field in dataclasses.fields(config)
    }
    return {name: value for name, value in values.items() if value != own[name]}


def read_settings(parsed, kind, **more):
    """The RunSettings subclass `kind` from a command line and its recipe. more: fields that are not
    settings classes.
    """
    configs = {name: parsed.make(config) for name, config in kind.kinds().items()}
    return kind(
        **configs,
        **more,
        overwrite=parsed.make(CommonConfig).overwrite,
        recipe=parsed.recipe_name,
        flexible=tuple(parsed.recipe),
    )


def find_devices(config):
    """("GPU" or "CPU", number of replicas of all workers) that a DeviceConfig will get, from NVML,
    without starting TensorFlow.
    """
    gpus, cluster = choose_gpus(config, count_gpus(), "NVML"), find_cluster()
    num_workers = 1 if cluster is None else len(cluster)
    return "GPU" if gpus else "CPU", max(1, len(gpus)) * config.virtual_replicas * num_workers
