"""Settings of `import` and `export`."""

import dataclasses
import os

from bert_gpu.base.files import check_local, check_writable
from bert_gpu.base.settings import Settings, UserError, setting
from bert_gpu.interop.formats import format_names


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferConfig(Settings):
    """From where to where a model goes."""

    source: str | None = setting(
        None,
        "The model: a run's folder, its model/, or a model in any format that is read: "
        f"{', '.join(format_names(writes=False))}.",
        aliases=("from",),
    )
    to: str | None = setting(None, "The folder to write; made if needed.")
    vocab_file: str | None = setting(
        None, "The model's vocabulary. Default: the one that lies beside it."
    )
    do_lower_case: bool | None = setting(
        None,
        "Lower-case text. Default: as the model's folder says, else no if pieces have capitals.",
    )
    overwrite: bool = setting(
        False, "Write to a folder that is not empty: replaces the model in it; other files stay."
    )

    def check_paths(self):
        """UserError unless --from and --to are given and --to may be written to."""
        for flag, value in (("from", self.source), ("to", self.to)):
            if value is None:
                raise UserError(f"--{flag}: is needed; give --from=MODEL --to=FOLDER")
        check_local(self.to, "--to")
        check_writable(self.to, f"--to={self.to}")
        if not self.overwrite and os.path.isdir(self.to) and os.listdir(self.to):
            raise UserError(
                f"--to={self.to}: is not empty; name another folder, or replace the model in it "
                "with --overwrite"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportConfig(TransferConfig):
    """A model in any format -> a model's folder here."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(TransferConfig):
    """A model here, or in any format -> another format."""

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
