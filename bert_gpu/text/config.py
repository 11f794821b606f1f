"""The settings for the format of text files and for learning a vocabulary."""

import dataclasses
import re

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, setting
from bert_gpu.text.formats.table import FORMATS, Format

# {kind of vocabulary: default name of its file}
FILE_NAMES = {
    "WordPiece": "vocab.txt",
    "SentencePiece": "sentencepiece.model",
    "BPE": "tokenizer.json",
}
TABLES = [row.name for row in FORMATS.values() if row.text_in == "column"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFormat(Settings):
    """The format of the text files."""

    input_format: str = setting(
        "auto",
        "auto = decided for each file by its name and its first lines, and printed; "
        f"{'; '.join(row.help for row in FORMATS.values() if row.help)}. "
        "All but lines have one document per line, object or row, split into sentences.",
        choices=("auto", *FORMATS),
    )
    text_field: str = setting(
        "text",
        f"The field (JSON) or column ({', '.join(TABLES)}) that contains the text.",
        aliases=("text_column",),
    )
    language: str = setting(
        "en",
        "The language (ISO 639, such as de or zh) whose rules split text into sentences; for all "
        "formats but lines.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch("[a-z]{2,3}(-[a-z]+)?", self.language):
            raise UserError(
                "must be an ISO 639 code in lower case, such as en, de or zh",
                setting="language",
                value=self.language,
            )

    @property
    def has_sentence_lines(self) -> bool:
        """True if each line is a sentence, so that no splitter is needed."""
        return self.input_format == "lines"

    @property
    def row(self) -> Format:
        """The row of FORMATS for `input_format`. Raises KeyError while that is auto."""
        return FORMATS[self.input_format]

    def replaced(self, input_format: str) -> "TextFormat":
        return dataclasses.replace(self, input_format=input_format)


AUTO = TextFormat()
LINES = TextFormat(input_format="lines")


def check_ray_address(address: str | None) -> None:
    """Raise UserError for the address "local": work on this machine alone needs no Ray."""
    if address == "local":
        raise UserError(
            "one machine needs no Ray",
            "leave the flag out, and all cores work",
            setting="ray_address",
            value="local",
        )


def check_is_json(vocab_file: str | None, tokenization: str) -> None:
    """Raise UserError for a BPE vocabulary file whose name does not end in .json."""
    if tokenization == "BPE" and vocab_file is not None and not vocab_file.endswith(".json"):
        raise UserError(
            "must end in .json with --tokenization=BPE",
            "name a tokenizer.json",
            setting="vocab_file",
            value=vocab_file,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabConfig(Settings):
    """The vocabulary to learn."""

    input_file: str = setting(
        "sample_text.txt",
        "Text files, UTF-8, also compressed (.gz, .zst): files, folders or globs, "
        "separated by commas; - is standard input. Default: the bundled sample.",
        path="list",
    )
    tokenization: str = setting(
        "WordPiece", "Kind of vocabulary. BPE: of bytes, as RoBERTa has.", choices=(*FILE_NAMES,)
    )
    vocab_size: int = setting(32768, "Number of pieces; fewer if the text has fewer.", low=7)
    vocab_file: str | None = setting(
        None,
        "File for the pieces, one per line. Default: vocab.txt for WordPiece, "
        "tokenizer.json for BPE; for SentencePiece, only written if given.",
        path="one",
    )
    sp_model_file: str | None = setting(
        None,
        "File for the SentencePiece model. Default: sentencepiece.model.",
        path="one",
    )
    do_lower_case: bool = setting(
        True, "Lower-case the text (an uncased vocabulary); WordPiece also strips accents."
    )
    strip_accents: bool = setting(
        True, "Strip accents when lower-casing, as Google's uncased models do; for WordPiece."
    )
    random_seed: int = setting(12345, "Seed for sampling a large corpus.", low=0, aliases=("seed",))
    num_workers: int | None = setting(
        None, "Worker processes that count words. Default: one per core.", low=1
    )
    ray_address: str | None = setting(
        None,
        "The Ray cluster whose nodes do the work: auto, HOST:PORT or ray://HOST:PORT. All nodes "
        "must have the same files under the same paths. Needs pip install 'bert-gpu[ray]'. "
        "Default: this machine alone.",
    )
    overwrite: bool = setting(False, "Replace files that already exist.")
    strict: bool = setting(False, "Stop at a warning about the text, with exit code 2.")
    quiet: bool = setting(False, "Print warnings and errors only.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ray_address(self.ray_address)
        if self.sp_model_file is not None and self.tokenization != "SentencePiece":
            raise UserError(
                "needs --tokenization=SentencePiece",
                "give that too, or drop this flag",
                setting="sp_model_file",
                value=self.sp_model_file,
            )

        check_is_json(self.vocab_file, self.tokenization)

    @property
    def targets(self) -> list[str]:
        """Paths of the files to write: one for the vocabulary; with SentencePiece one for the model
        and, if --vocab_file is given, one for the list of its pieces.
        """
        if self.tokenization != "SentencePiece":
            return [self.vocab_file or FILE_NAMES[self.tokenization]]
        return [self.sp_model_file or FILE_NAMES["SentencePiece"], *filter(None, [self.vocab_file])]
