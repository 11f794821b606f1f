"""The settings of the commands embed, search, fill-mask and evaluate."""

import dataclasses

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, like, setting
from bert_gpu.base.standard_input import STANDARD_INPUT

DEFAULT_MODEL = "runs/pretrain/model"
DEFAULT_LENGTH = 128  # --max_seq_length of a model whose files name no length
OFFSETS = ".offsets.npy"  # replaces .npy in the name of the second file of --pooling=none


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSource(Settings):
    """The model to run, and the number format of its matrix products."""

    model: str = setting(
        DEFAULT_MODEL,
        "A model/ folder, a run's folder or a Hugging Face BERT folder.",
        path="one",
    )
    vocab_file: str | None = setting(
        None, "Vocabulary file. Default: the model's vocab.txt.", path="one"
    )
    do_lower_case: bool | None = setting(
        None,
        "Lower-case text. Default: as the model's folder says, else no if pieces have capitals.",
    )
    precision: str = setting(
        "float32",
        "Number format of matrix products: float32, or bfloat16, which is faster on GPUs and on "
        "CPUs with bfloat16 units, and agrees to about two digits. Results are float32 either way.",
        choices=("float32", "bfloat16"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedConfig(ModelSource):
    """The model, the text and the file of the results."""

    input: str = setting(
        STANDARD_INPUT,
        "Text file, UTF-8, one text a line, also compressed (.gz, .zst); - is standard input, the "
        "default.",
        path="one",
    )
    output: str | None = setting(
        None,
        "File for the results, NAME.npy: a float32 array with a row for each line, empty lines "
        "included, in their order. --pooling=none writes a row for each token, and the first row "
        "of each line in NAME.offsets.npy.",
        path="one",
    )
    pooling: str | None = setting(
        None,
        "What stands for a text: cls or first = the hidden state of [CLS], its first token; mean = "
        "the mean of all its tokens; none = the hidden states of all tokens, [CLS] and [SEP] "
        "included. Default: what modules.json of a sentence model says, else cls.",
        choices=("cls", "mean", "none"),
        words=("first",),
    )
    prompt: str | None = setting(
        None,
        "Prefix that a sentence model was trained with: query = that of questions, passage = that "
        "of the texts that answer them. Default: the prefix that the model's folder names as its "
        "default; of a model trained here, that of passages.",
        choices=("query", "passage"),
    )
    max_seq_length: int | None = setting(
        None,
        "Maximum tokens of a text, with [CLS] and [SEP]; longer ones are cut. Default: the length "
        "that the model's folder says it was trained with, else 128, at most its positions.",
        low=3,
    )
    overwrite: bool = setting(False, "Replace the output if it exists.")
    quiet: bool = setting(False, "Print warnings and errors only.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling == "first":
            object.__setattr__(self, "pooling", "cls")
        if self.output is not None and (
            not self.output.endswith(".npy") or self.output.endswith(OFFSETS)
        ):
            raise UserError("must be named NAME.npy", setting="output", value=self.output)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig(ModelSource):
    """The model, the text with its index, and the queries."""

    input: str | None = setting(
        None,
        "Text file, UTF-8, one text a line, also compressed (.gz, .zst), in which to search. Blank "
        "lines are left out.",
        path="one",
    )
    index: str | None = setting(
        None,
        "Folder for the vectors of the text, made by the first call. Lines that were added to the "
        "text since are added to it.",
        path="one",
    )
    query: str | None = setting(None, "What to find, as text.")
    query_file: str | None = setting(
        None,
        "Text file with a query a line, instead of --query; - is standard input, each line of "
        "which is answered when it arrives. Blank lines are left out.",
        path="one",
    )
    top_k: int = setting(5, "How many lines to find for each query.", low=1)
    json: bool = setting(
        False,
        'Print a line of JSON for each query: {"query": ..., "lines": [{"number": ..., "score": '
        '..., "text": ...}, ...]}.',
    )
    pooling: str | None = setting(
        None,
        "What stands for a text: cls or first = the hidden state of [CLS], its first token; mean = "
        "the mean of all its tokens. Default: as modules.json of a sentence model says, else cls.",
        choices=("cls", "mean"),
        words=("first",),
    )
    max_seq_length: int | None = like(EmbedConfig, "max_seq_length")
    overwrite: bool = setting(False, "Make the index anew.")
    quiet: bool = setting(False, "Print warnings, errors and answers only.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMaskConfig(ModelSource):
    """The model, the texts in a file, and how many words to guess."""

    input: str | None = setting(
        None,
        "Text file, UTF-8, one text a line, also compressed (.gz, .zst), instead of texts on the "
        "command line; - is standard input.",
        path="one",
    )
    output: str | None = setting(
        None,
        "Write the answers here, instead of printing them: a line of JSON for each text, "
        '{"text": ..., "masks": [[{"word": ..., "probability": ...}, ...], ...]}.',
        path="one",
    )
    top_k: int = setting(5, "How many words to guess for each [MASK].", low=1)
    overwrite: bool = setting(False, "Replace the output if it exists.")
    quiet: bool = setting(False, "Print warnings, errors and answers only.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ModelSource):
    """The models, the text or the minimal pairs, and the file of the scores."""

    model: str = setting(
        DEFAULT_MODEL,
        "One or several models, separated by commas: each a model/ folder, a run's folder, a "
        "Hugging Face BERT folder, or a folder RUN/marks, which stands for every model in it.",
        path="list",
    )
    input: str | None = setting(
        None,
        "Text file, UTF-8, one text a line; or minimal pairs, a file NAME.jsonl as BLiMP has them "
        "(sentence_good, sentence_bad, UID) or a folder of such files. All may be compressed (.gz, "
        ".zst).",
        path="one",
    )
    output: str | None = setting(None, "Write the scores here as well, as JSON.", path="one")
    seed: int = setting(0, "Random seed of the masks of mlm_loss and mlm_accuracy.", low=0)
    overwrite: bool = setting(False, "Replace the output if it exists.")
    quiet: bool = setting(False, "Print warnings, errors and scores only.")
