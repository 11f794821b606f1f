"""Settings of the commands `import`, `export` and `extend`."""

import dataclasses
import os

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_local, check_writable
from bert_gpu.base.settings import Settings, like, setting
from bert_gpu.interop.formats import format_names
from bert_gpu.text.config import VocabConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferConfig(Settings):
    """A model that `import` or `export` reads, and the folder that it writes."""

    source: str | None = setting(
        None,
        "The model: a run's folder, its model/, or a model in any format that is read: "
        f"{', '.join(format_names(writes=False))}.",
        aliases=("from",),
        path="one",
    )
    to: str | None = setting(None, "The folder to write; made if needed.", path="one")
    vocab_file: str | None = setting(
        None,
        "The model's vocabulary. Default: the one that lies beside it.",
        path="one",
    )
    do_lower_case: bool | None = setting(
        None,
        "Lower-case text. Default: as the model's folder says, else no if pieces have capitals.",
    )
    overwrite: bool = setting(
        False, "Write to a folder that is not empty: replaces the model in it; other files stay."
    )

    def check_paths(self) -> None:
        """Raise UserError unless --from and --to are given and --to is a folder that can be written
        to, empty unless --overwrite is given.
        """
        if self.source is None or self.to is None:
            flag = "from" if self.source is None else "to"
            raise UserError("is needed", "give --from=MODEL --to=FOLDER", setting=flag)
        check_local(self.to, "to")
        check_writable(self.to, "to", self.to)
        if not self.overwrite and os.path.isdir(self.to) and os.listdir(self.to):
            raise UserError(
                "is not empty",
                "name another folder, or replace the model in it with --overwrite",
                setting="to",
                value=self.to,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportConfig(TransferConfig):
    """A model of any format, written as a model folder of bert-gpu."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(TransferConfig):
    """A model of any format, written in another format."""

    format: str = setting(
        "huggingface",
        "What to write: huggingface = a folder that Hugging Face's transformers opens; google = "
        "bert_model.ckpt of Google's BERT (TensorFlow 1); garden = a checkpoint of TF Model "
        "Garden's BertEncoderV2, BertPretrainerV2 and BertClassifier; savedmodel = raw strings in, "
        "for TensorFlow with tensorflow_text; onnx = token ids in, for onnxruntime, "
        "sentence-transformers and transformers.js.",
        choices=format_names(writes=True),
    )
    precision: str = setting(
        "float32",
        "Number format of matrices and of products in a SavedModel. Results are float32.",
        choices=("float32", "bfloat16"),
        needs=("format", ("savedmodel",)),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtendConfig(TransferConfig):
    """A model of any format, written as a model folder of bert-gpu with further words."""

    input_file: str | None = setting(
        None,
        "Text whose words are added, UTF-8, also compressed (.gz, .zst): files, folders or globs, "
        "separated by commas; - is standard input.",
        path="list",
    )
    tokens_file: str | None = setting(
        None,
        "Instead of a text: a file with the words to add, one a line; all are added.",
        path="one",
    )
    num_tokens: int = setting(
        2000,
        "Number of words to add: those that shorten the text most and occur at least twice.",
        low=1,
        needs=("input_file", None),
    )
    num_workers: int | None = like(VocabConfig, "num_workers")
    ray_address: str | None = like(VocabConfig, "ray_address")
    quiet: bool = like(VocabConfig, "quiet")

    def check_paths(self) -> None:
        """Raise UserError as TransferConfig does, and unless exactly one of --input_file (a text)
        and --tokens_file (a list of words) is given.
        """
        super().check_paths()
        if (self.input_file is None) == (self.tokens_file is None):
            raise UserError(
                "give either this or --tokens_file",
                "the one names a text, the other a list of words",
                setting="input_file",
                value=self.input_file,
            )
