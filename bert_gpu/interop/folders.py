"""Replaces a model's folder as a whole: after any failure it is the old folder or the new one,
never a mixture.

The new folder is written under a hidden name, .NAME.PID.partial; then the old one is renamed to
.NAME.PID.old and the new one to NAME. A process killed between these two renames leaves no NAME:
the next write first restores the old folder, and until then `displaced` returns the old folder's
path, which commands that look for NAME put in their error messages.
"""

import fnmatch
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file, check_local

# Patterns of the files of a model in any format. They are removed before a new model is written,
# because a file left from an older model would change how the new one is read. README.md is not
# listed, because every format replaces it.
MODEL_FILES = (
    "config.json",
    "model.safetensors*",
    "model-*-of-*.safetensors",
    "pytorch_model*.bin*",
    "vocab.txt",
    "sentencepiece.model",
    "spiece.model",
    "spm.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "task.json",
    "texts.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "modeling_bert_gpu.py",
    "bert_config.json",
    "bert_model.ckpt*",
    "checkpoint",
    "saved_model.pb",
    "model.onnx",
)
# {file: names that belong to a model only where that file exists, as other folders may have them}
COMPANION_FILES = {
    "saved_model.pb": ("fingerprint.pb", "variables", "assets"),
    "onnx/model.onnx": ("onnx",),  # with quantised forms of the model, if any
}


def replace_folder(
    folder: str, contents: Mapping[str, bytes], is_whole_model: bool = False
) -> None:
    """Replace a folder by one with the files `contents`, {name: bytes}, and the old folder's files
    of other names. A name may contain a folder, as in variables/variables.index.

    is_whole_model: whether the contents are a complete model, so that the files of the old model
    are removed.

    Raises:
      UserError: `folder` is a file or the current folder, or writing failed; then nothing has
        changed.
    """
    check_local(folder, "output_dir")
    folder = os.path.realpath(folder)  # a link stays; the folder that it leads to is replaced
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UserError("is a file", "name a folder", where=folder)
    if os.path.commonpath([folder, os.path.realpath(os.curdir)]) == folder:
        raise UserError(
            "is where this command runs, so it cannot be replaced",
            "run it elsewhere, or name a folder inside it",
            where=folder,
        )
    hidden = os.path.join(os.path.dirname(folder), f".{os.path.basename(folder)}.{os.getpid()}")
    new = f"{hidden}.partial"
    old = f"{hidden}.old"
    try:
        recover(folder)
        os.makedirs(new)
        write_files(new, contents)
        if os.path.isdir(folder):
            others = files_of_model(folder) if is_whole_model else ()
            copy_others(folder, new, {*contents, *others})
            os.rename(folder, old)
        os.rename(new, folder)
    except (OSError, shutil.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot be written ({reason})",
            "make room, change its permissions, or name another folder",
            where=folder,
        ) from None
    finally:
        recover(folder)


def recover(folder: str) -> None:
    """Clean up after a write that ended or was killed: restore the old folder if there is no new
    one, and remove temporary folders.
    """
    parent, name = os.path.split(folder)
    if not os.path.isdir(parent):
        return
    old = displaced(folder)
    if old is not None and not os.path.lexists(folder):
        os.rename(old, folder)
    for entry in os.listdir(parent):
        if re.fullmatch(rf"\.{re.escape(name)}\.\d+\.(old|partial)", entry):
            shutil.rmtree(os.path.join(parent, entry), ignore_errors=True)


def displaced(folder: str) -> str | None:
    """Return the path of the old folder if a write was killed between its two renames, so that
    `folder` is missing; None otherwise.
    """
    parent, name = os.path.split(os.path.realpath(folder))
    if os.path.lexists(folder) or not os.path.isdir(parent):
        return None
    paths = [
        os.path.join(parent, other)
        for other in os.listdir(parent)
        if re.fullmatch(rf"\.{re.escape(name)}\.\d+\.old", other)
    ]
    return max(paths, key=os.path.getmtime, default=None)


def write_files(folder: str, contents: Mapping[str, bytes]) -> None:
    for name, data in contents.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with atomic_file(path, "wb") as file:
            file.write(data)


def saved_files(save: Callable[[str], object]) -> dict[str, bytes]:
    """Return {name: bytes} of the files that the function `save` writes with TensorFlow to a
    temporary folder, whose path it gets. Raise UserError when the files cannot be written.
    """
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as temporary:
        try:
            save(temporary)
        except (tf.errors.OpError, OSError) as error:
            reason = " ".join(str(error).split())[:100]
            raise UserError(
                f"cannot be written ({reason})", "make room there", where=temporary
            ) from None
        paths = [path for path in pathlib.Path(temporary).rglob("*") if path.is_file()]
        return {str(path.relative_to(temporary)): path.read_bytes() for path in paths}


def files_of_model(folder: str) -> set[str]:
    """Return the names in a folder that belong to a model in any format."""
    names = os.listdir(folder)
    matches = {name for name in names if any(fnmatch.fnmatchcase(name, p) for p in MODEL_FILES)}
    files = [file for file in COMPANION_FILES if os.path.isfile(os.path.join(folder, file))]
    return matches.union(*(COMPANION_FILES[file] for file in files))


def copy_others(source: str, target: str, names: Collection[str]) -> None:
    """Copy the files and folders of `source` to `target`, except those in `names`; links stay
    links. If a name lies in a subfolder, nothing of that subfolder is copied.
    """
    replaced = {name.split("/")[0] for name in names}
    for entry in os.scandir(source):
        path = os.path.join(target, entry.name)
        if entry.name in replaced:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.copytree(entry.path, path, symlinks=True)
        else:
            shutil.copy2(entry.path, path, follow_symlinks=False)
