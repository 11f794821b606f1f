"""dataset.json: what a folder of shards is, so that training can check what it is given."""

import dataclasses
import json
import os

import tensorflow as tf

from bert_gpu.settings import UserError

FILE_NAME = "dataset.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of dataset.json. Paths are relative to its folder; counts are of training and validation together."""

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


def write_json(path, content):
    """Writes JSON under a temporary name, then renames."""
    partial = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.partial")
    with tf.io.gfile.GFile(partial, "w") as file:
        file.write(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    tf.io.gfile.rename(partial, path, overwrite=True)


def read_json(path, what):
    """A JSON object from a file; UserError when it is no such thing. `what` names its purpose."""
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            content = json.loads(file.read())
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as {what}") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON at line {error.lineno} ({error.msg}); it should be {what}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: should be {what}, a JSON object")
    return content


def write_manifest(folder, manifest):
    write_json(os.path.join(folder, FILE_NAME), dataclasses.asdict(manifest))


def read_manifest(folder):
    """The Manifest of a folder, or None when it has no dataset.json (the records are somebody else's)."""
    path = os.path.join(folder, FILE_NAME)
    if not tf.io.gfile.exists(path):
        return None
    content = read_json(path, "the description of a data set")
    known = {field.name for field in dataclasses.fields(Manifest)}
    if set(content) != known:
        odd = sorted(set(content) ^ known)[0]
        raise UserError(f"{path}: {'unknown' if odd in content else 'missing'} entry {odd!r}; rebuild the data set with --overwrite")
    return Manifest(**content | {name: tuple(content[name]) for name in ("train_shards", "validation_shards")})
