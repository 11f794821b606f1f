"""What the tables need beside times: shapes and arithmetic of the models, the machine they ran on, and results kept in a JSON file."""

import json
import os
import pathlib
import platform
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent))

import numpy as np

from bert_gpu.model.config import PRESETS, ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.flops import FlopsCounter

from .serve import VOCAB_SIZE, make_batch, num_predictions

SHAPES = PRESETS | {"6x512": dict(num_hidden_layers=6, hidden_size=512, num_attention_heads=8, intermediate_size=2048)}
DROPOUT = 0.1


def shape_of(name):
    """Settings of a named BERT that all peers understand; the names are those of Google's bert_config.json."""
    sizes = {field: SHAPES[name][field] for field in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")}
    return sizes | dict(max_position_embeddings=512, hidden_dropout_prob=DROPOUT, attention_probs_dropout_prob=DROPOUT)


def flops_per_token(name, length, packed=False):
    """Model FLOPs of a training step for each place of its rows (bert_gpu/model/flops.py)."""
    encoder = BertEncoder(ModelConfig(vocab_size=VOCAB_SIZE, **shape_of(name)))
    if packed:
        batch = make_batch(64, length, packed=True)
        return FlopsCounter(encoder, next_sentence=False).per_batch(batch).model / batch["input_mask"].size
    return FlopsCounter(encoder, next_sentence=True).per_row(length, num_predictions(length)).model / length


def real_share(rows, length):
    """Share of the places of a made batch that hold tokens."""
    return float(np.mean(make_batch(rows, length)["input_mask"]))


def hardware():
    """What ran: processor, cores, GPU and driver where there is one, Python, and the revision of the code."""

    def said(*command):
        try:
            return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=20).stdout.strip() or None
        except (OSError, subprocess.TimeoutExpired):
            return None

    cpu = pathlib.Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in cpu.read_text().splitlines() if line.startswith("model name")] if cpu.exists() else []
    return dict(
        cpu=names[0] if names else platform.processor(),
        cores=len(os.sched_getaffinity(0)),
        gpu=said("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
        python=platform.python_version(),
        revision=said("git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "--short", "HEAD"),
    )


def read_results(path):
    return json.loads(pathlib.Path(path).read_text()) if path and pathlib.Path(path).exists() else {}


def write_results(path, results):
    """Whole or not at all."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    temporary.rename(path)
