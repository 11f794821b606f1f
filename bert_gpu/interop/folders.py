"""Replaces a model's folder as a whole: after any failure it is the old one or the new one, never a
mixture.

The new folder is written under a hidden name, .NAME.PID.partial; then the old one is renamed to
.NAME.PID.old and the new one to NAME. A process killed between these two renames leaves no NAME:
the next write first puts the old one back, and readers are told where it is (displaced).
"""

import fnmatch
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file, check_local

# Names of what the formats write and read, in whose company a model would be another one. README.md
# is not among them: every format writes it.
MODEL_FILES = (
    "config.json",
    "model.safetensors*",
    "model-*-of-*.safetensors",
    "pytorch_model*.bin*",
    "vocab.txt",
    "sentencepiece.model",
    "spiece.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "task.json",
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
# {file: what goes with it}: beside that file alone, because other folders may have these names
BESIDE = {
    "saved_model.pb": ("fingerprint.pb", "variables", "assets"),
    "onnx/model.onnx": ("onnx",),  # with what others have made of it, such as quantised ones
}


def replace_folder(folder, contents, is_whole_model=False):
    """Writes the files `contents` {name: bytes} to `folder`; files of other names stay. A name may
    be in a folder: variables/variables.index.

    is_whole_model: the contents are all that makes a model, so files of another one do not stay.

    Raises:
      UserError: `folder` is a file or the current folder, or writing failed; then nothing has
        changed.
    """
    check_local(folder, "output_dir")
    folder = os.path.realpath(folder)  # a link stays; its target is replaced
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UserError("is a file", "name a folder", where=folder)
    if os.path.commonpath([folder, os.path.realpath(os.curdir)]) == folder:
        raise UserError(
            "is where this command runs, so it cannot be replaced",
            "run it elsewhere, or name a folder inside it",
            where=folder,
        )
    hidden = os.path.join(os.path.dirname(folder), f".{os.path.basename(folder)}.{os.getpid()}")
    new, old = f"{hidden}.partial", f"{hidden}.old"
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


def recover(folder):
    """Cleans up after a write, ended or killed: restores the old folder if there is no new one, and
    removes temporary folders.
    """
    parent, name = os.path.split(folder)
    if not os.path.isdir(parent):
        return
    old = displaced(folder)
    if old is not None and not os.path.lexists(folder):
        os.rename(old, folder)
    for left in os.listdir(parent):
        if re.fullmatch(rf"\.{re.escape(name)}\.\d+\.(old|partial)", left):
            shutil.rmtree(os.path.join(parent, left), ignore_errors=True)


def displaced(folder):
    """The path of the old folder when a write was killed between its two renames, else None."""
    parent, name = os.path.split(os.path.realpath(folder))
    if os.path.lexists(folder) or not os.path.isdir(parent):
        return None
    found = [
        os.path.join(parent, other)
        for other in os.listdir(parent)
        if re.fullmatch(rf"\.{re.escape(name)}\.\d+\.old", other)
    ]
    return max(found, key=os.path.getmtime, default=None)


def write_files(folder, contents):
    for name, data in contents.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with atomic_file(path, "wb") as file:
            file.write(data)


def saved_files(save: Callable[[str], object]) -> dict[str, bytes]:
    """Return {name: bytes} of the files that TensorFlow writes when `save` gets the path of a
    temporary folder. UserError when it cannot.
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


def files_of_model(folder):
    """Names in a folder that are of a model in any format."""
    names = os.listdir(folder)
    found = {name for name in names if any(fnmatch.fnmatchcase(name, of) for of in MODEL_FILES)}
    files = [file for file in BESIDE if os.path.isfile(os.path.join(folder, file))]
    return found.union(*(BESIDE[file] for file in files))


def copy_others(source, target, names):
    """Copies the files of `source` that are not in `names`; links stay links. A folder with new
    files is replaced as a whole.
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
