"""dataset.json describes a folder of shards, so that training can check its input."""

import dataclasses
import os
import typing

from bert_gpu.files import read_json, write_json
from bert_gpu.settings import UserError

FILE_NAME = "dataset.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of dataset.json. Paths are relative to its folder; counts are of training and
    validation together.

    order_file: int64 indices of the training rows in the order that --noshuffle reads them; "" =
    the order of the shards.
    """

    name: str
    schema: str
    objective: str
    masking: str
    max_seq_length: int
    max_predictions_per_seq: int
    vocab_file: str
    vocab_size: int
    tokenizer: str
    do_lower_case: bool
    order_file: str
    seed: int
    train_shards: tuple[str, ...]
    validation_shards: tuple[str, ...]
    num_train_instances: int
    num_validation_instances: int
    num_documents: int
    num_sentences: int
    num_tokens: int
    settings: dict
    inputs: list

    def paths(self, folder, split):
        shards = self.train_shards if split == "train" else self.validation_shards
        return [os.path.join(folder, shard) for shard in shards]


def write_manifest(folder, manifest):
    write_json(os.path.join(folder, FILE_NAME), dataclasses.asdict(manifest))


def read_manifest(folder):
    """The Manifest of a folder, or None when it has no dataset.json (the records come from another
    tool).
    """
    path = os.path.join(folder, FILE_NAME)
    if not os.path.exists(path):
        return None
    content = read_json(path, "the description of a data set")
    known = {field.name: field.type for field in dataclasses.fields(Manifest)}
    if set(content) != set(known):
        odd = sorted(set(content) ^ set(known))[0]
        raise UserError(
            f"{path}: {'unknown' if odd in content else 'missing'} "
            f"entry {odd!r}; rebuild the data set with --overwrite"
        )
    for name, kind in known.items():
        value, expected = content[name], list if typing.get_origin(kind) is tuple else kind
        is_right = isinstance(value, expected) and (expected is bool or not isinstance(value, bool))
        if not is_right or (
            typing.get_origin(kind) is tuple and not all(isinstance(shard, str) for shard in value)
        ):
            raise UserError(
                f"{path}: {name}={str(value)[:60]!r} has the wrong type; "
                "rebuild the data set with --overwrite"
            )
    return Manifest(
        **content | {name: tuple(content[name]) for name in ("train_shards", "validation_shards")}
    )
