"""Reads the tensors of a model folder as float32 arrays, from model.safetensors or from the several
files (shards) that an index names, and checks the tensors of any format.
"""

import os
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import safetensors
from numpy.typing import DTypeLike

from bert_gpu.base import tensor_files
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_regular, read_json
from bert_gpu.model.config_json import A_CONFIG, NOTES_FIELDS

# {type in a safetensors file: NumPy's type}
FLOATS: dict[str, DTypeLike] = {
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "BF16": ml_dtypes.bfloat16,
}


def check_tensor(
    where: str, name: str, tensor: np.ndarray, shape: tuple[int, ...], config: str = "config.json"
) -> None:
    """Raise UserError unless a tensor of a model's files has the shape that the file `config` gives
    and all of its values are finite. where: path of the model, for the message.
    """
    if tensor.shape != shape:
        raise UserError(f"{name} has shape {tensor.shape}, {config} gives {shape}", where=where)
    if not np.isfinite(tensor).all():
        raise UserError(
            f"{name} has values that are not finite",
            "the file is damaged, so copy or write it again",
            where=where,
        )


def read_safetensors(path: str) -> dict[str, np.ndarray]:
    """Return {name: float32 array} of a .safetensors file that holds float32, float16, bfloat16 or
    float64; integer tensors are left out. Raise UserError for a file that is damaged or holds other
    types.
    """
    check_regular(path)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=path) from None
    try:
        entries = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise UserError(
            f"not a complete safetensors file ({error})", "get it again", where=path
        ) from None
    tensors = {}
    for name, entry in entries:
        kind = entry["dtype"]
        if kind in FLOATS:
            values = np.frombuffer(entry["data"], FLOATS[kind]).astype(np.float32)
            tensors[name] = values.reshape(entry["shape"])
        elif not kind.startswith(("I", "U", "BOOL")):
            raise UserError(
                f"tensor {name} has type {kind}", "known are F16, BF16, F32 and F64", where=path
            )
    try:
        tensor_files.check(path, tensors, tensor_files.metadata_of(content))
    except UserError as error:
        error.remedy = "write or get it again"
        raise
    return tensors


def read_shards(
    folder: str, index: str, weight_map: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the tensors of a model folder in the form of `read_tensors`. index: path of the index;
    weight_map: its {name of a tensor: file}.
    """
    tensors = {}
    left_out = set()
    for shard in sorted(set(weight_map.values())):
        for name, tensor in read_safetensors(os.path.join(folder, shard)).items():
            if weight_map.get(name) == shard:
                tensors[name] = tensor
            elif name not in weight_map:
                left_out.add(f"{name} (not in the index)")
    for name in sorted(weight_map.keys() - tensors.keys()):
        if not name.endswith("position_ids"):  # integers, which read_safetensors leaves out
            raise UserError(
                f"{weight_map[name][:80]} lacks {name[:80]}",
                "download the folder again",
                where=index,
            )
    return tensors, sorted(left_out)


def read_tensors(folder: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """Read all tensors of a model folder, from one file or from the shards that an index names.

    Returns:
      ({name: float32 array}, descriptions of the tensors that are left out, because the index has
        no entry for them). Of a tensor in several shards, the copy in the shard that the index
        names is returned.
    """
    if not os.path.isdir(folder):
        raise UserError(
            "no such folder",
            "a model is a folder with config.json and model.safetensors",
            where=folder,
        )
    whole = os.path.join(folder, "model.safetensors")
    index = f"{whole}.index.json"
    if os.path.exists(whole):
        return read_safetensors(whole), []
    if os.path.exists(index):
        weight_map = read_json(index, "the index of a model's files").get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            isinstance(shard, str) and shard == os.path.basename(shard)
            for shard in weight_map.values()
        ):
            raise UserError(
                "has no weight_map from tensors to files beside it",
                "download it again",
                where=index,
            )
        return read_shards(folder, index, weight_map)
    if os.path.exists(os.path.join(folder, "pytorch_model.bin")):
        # another class would drop the model's head, or make one: DeBERTa v3's is no class's
        config = read_json(os.path.join(folder, "config.json"), A_CONFIG, NOTES_FIELDS)
        is_headless = config.get("model_type") == "deberta-v2"
        usual = "AutoModel" if is_headless else "AutoModelForPreTraining"
        (class_name, *_) = config.get("architectures") or [usual]
        raise UserError(
            "has only pytorch_model.bin",
            "convert it where torch and transformers are installed: "
            f'{class_name:.60}.from_pretrained("FOLDER").save_pretrained("NEW", '
            "safe_serialization=True)",
            where=folder,
        )
    raise UserError("has no model.safetensors", "name a folder that has one", where=folder)
