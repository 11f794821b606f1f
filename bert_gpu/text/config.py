"""Settings: the format of text, and how to learn a vocabulary from it."""

import dataclasses
import re

from bert_gpu.settings import Settings, UserError, setting

NORMALIZATIONS = ("none", "NFC", "NFKC")
# names of vocabulary files beside data and models
FILE_NAMES = {"WordPiece": "vocab.txt", "SentencePiece": "sentencepiece.model"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFormat(Settings):
    """What the text files look like."""

    input_format: str = setting(
        "lines",
        "lines = one sentence a line, a blank line between documents; documents = one document "
        "a line; jsonl = one JSON object a line. The last two are split into sentences.",
        choices=("lines", "documents", "jsonl"),
    )
    text_field: str = setting("text", "With jsonl: name of the field that has the text.")
    language: str = setting(
        "en",
        "With documents and jsonl: language of the text (ISO 639, such as "
        "de or zh), for splitting it into sentences.",
    )

    def __post_init__(self):
        super().__post_init__()
        if not re.fullmatch("[a-z]{2,3}(-[a-z]+)?", self.language):
            raise UserError(
                (
                    f"--language={self.language}: must be an ISO "
                    "639 code in lower case, such as en, de or zh"
                )[:300]
            )

    @property
    def has_sentence_lines(self):
        """Whether the file has one sentence per line, so that they can be counted without
        splitting.
        """
        return self.input_format == "lines"


LINES = TextFormat()


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabConfig(Settings):
    """What is learnt."""

    input_file: str = setting(
        "sample_text.txt",
        "Text, UTF-8, also compressed (.gz, .zst): files, folders "
        "or globs, separated by commas. Default: the bundled sample.",
    )
    tokenization: str = setting(
        "WordPiece", "Kind of vocabulary.", choices=("WordPiece", "SentencePiece")
    )
    vocab_size: int = setting(32768, "Pieces; fewer when the text has fewer.", low=7)
    vocab_file: str | None = setting(
        None,
        "Output file with the pieces, one a line. Default: vocab.txt for WordPiece; "
        "for SentencePiece it is written only when this is given.",
    )
    sp_model_file: str | None = setting(
        None, "Output file of a SentencePiece model. Default: sentencepiece.model."
    )
    do_lower_case: bool = setting(
        True, "Lower-case the text (an uncased vocabulary); WordPiece also strips accents."
    )
    normalization: str = setting(
        "none", "Unicode normalisation of the text before anything else.", choices=NORMALIZATIONS
    )
    random_seed: int = setting(
        12345, "Seed of the sample of a large corpus.", low=0, aliases=("seed",)
    )
    num_workers: int | None = setting(
        None, "Processes that count words. Default: one for each core.", low=1
    )
    overwrite: bool = setting(False, "Replace existing files.")
    quiet: bool = setting(False, "Print warnings and errors only.")

    def __post_init__(self):
        super().__post_init__()
        for flag, path in (("vocab_file", self.vocab_file), ("sp_model_file", self.sp_model_file)):
            if path == "":
                raise UserError(f"--{flag}=: needs the name of a file")
        if self.sp_model_file is not None and self.tokenization != "SentencePiece":
            raise UserError(
                f"--sp_model_file={self.sp_model_file}: needs "
                "--tokenization=SentencePiece; give that too, or drop this flag"
            )

    @property
    def targets(self):
        """The output files: first the vocabulary or model, then, if asked for, the pieces of a
        SentencePiece model.
        """
        if self.tokenization == "WordPiece":
            return [self.vocab_file or FILE_NAMES["WordPiece"]]
        return [self.sp_model_file or FILE_NAMES["SentencePiece"], *filter(None, [self.vocab_file])]
