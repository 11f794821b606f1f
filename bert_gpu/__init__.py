"""bert-gpu: BERT pretraining on the GPUs of one machine, from text to a fine-tuned classifier.

The names in __all__ are public. The module of a name is imported when the name is first used, so
that `import bert_gpu` alone neither loads TensorFlow nor changes the process.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "api": (
        "create_pretraining_data",
        "embed",
        "evaluate",
        "export",
        "extend",
        "fill_mask",
        "import_model",
        "run_classifier",
        "run_pretraining",
        "search",
    ),
    "base.environment": ("prepare",),
    "base.errors": ("TrainingStopped", "UserError"),
    "data.config": ("DataConfig", "InputConfig"),
    "devices.config": ("DeviceConfig",),
    "finetune.config": ("FinetuneConfig", "FinetuneSettings", "StartConfig", "TokenConfig"),
    "inference.config": ("EmbedConfig",),
    "inference.embeddings": ("Embedder",),
    "monitor.config": ("MonitorConfig",),
    "optim.config": ("OptimizerConfig", "ScheduleConfig"),
    "pretrain.config": ("PretrainConfig", "PretrainSettings"),
    "text.config": ("TextFormat",),
    "train.config": ("BatchConfig", "CadenceConfig", "EndingConfig", "MemoryConfig"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(["__version__", *_MODULES])


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
