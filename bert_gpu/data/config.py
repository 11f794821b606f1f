"""The settings for building a data set, and for reading records in training."""

import dataclasses
import math
import os

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_local
from bert_gpu.base.settings import Settings, like, number_in, setting
from bert_gpu.text.config import (
    FILE_NAMES,
    VocabConfig,
    check_is_json,
    check_ray_address,
)

CLS_SEP = "cls_sep"
# values of --pack_separator: the special tokens around a sequence
FRAMES = (CLS_SEP, "sep", "none")
ADDED = (
    "near_duplicates",
    "drop_repeated_lines",
    "word_separator",
)  # settings that are stored where they are given
PADDINGS = ("fixed", "dynamic", "uniform")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Settings):
    """The text, the rows and the data set to write."""

    input_file: str = setting(
        "sample_text.txt",
        "Text, UTF-8, also compressed (.gz, .zst): files, folders or globs, separated by commas; "
        "- is standard input. --input_format lists the formats.",
        path="list",
    )
    output_file: str = setting(
        "data/pretrain.tfrecord",
        "DIR/NAME.tfrecord; the shards are DIR/NAME-00000-of-00008.tfrecord and "
        "so on. One data set per folder.",
        path="one",
    )
    tokenization: str = setting(
        "WordPiece",
        "How words are split into pieces. BPE: of bytes, as RoBERTa has.",
        choices=(*FILE_NAMES,),
    )
    vocab_file: str | None = setting(
        None,
        "WordPiece vocabulary, one piece per line, or Hugging Face's tokenizer.json of any kind, "
        "or a folder with one of them. Default: learnt from the text and written to DIR/vocab.txt.",
        path="one",
    )
    sp_model_file: str | None = setting(
        None,
        "SentencePiece model. Default with --tokenization=SentencePiece: "
        "learnt and written to DIR/sentencepiece.model.",
        path="one",
    )
    vocab_size: int = setting(
        32768, "Pieces of a learnt vocabulary; fewer if the text has fewer.", low=100
    )
    do_lower_case: bool = setting(True, "Lower-case the text and strip accents (an uncased model).")
    strip_accents: bool = like(VocabConfig, "strip_accents")
    drop_duplicates: bool = setting(False, "Keep only the first of several equal documents.")
    near_duplicates: float | None = setting(
        None,
        "Drop documents that are this similar to an earlier one, such as .8: the Jaccard "
        "similarity of their shingles of five words. Includes --drop_duplicates. "
        "NAME.duplicates.tsv lists them.",
        low=0.5,
        high=1.0,
    )
    drop_repeated_lines: int | None = setting(
        None,
        "Drop sentences that occur, but for digits and case, in more than this many documents, "
        "such as menus and notices.",
        low=1,
    )
    max_tokens_per_character: float | None = setting(
        None,
        "Drop documents with at least this many tokens per character: code, "
        "tables, other languages. Cramming uses 0.25.",
        above=0.0,
    )
    order: str = setting(
        "shuffled",
        "Order of the rows, for --noshuffle in training. shuffled: random within "
        "windows of 8 MB of text. as_is: as in the text. "
        "length: short rows first. common: rows with common words first (by the "
        "mean frequency of their tokens). The last two write DIR/NAME.order.",
        choices=("shuffled", "as_is", "length", "common"),
    )
    objective: str = setting(
        "nsp",
        "The pretraining objective. nsp: two segments, does the second follow the "
        "first (BERT)? sop: two segments, are they in order (ALBERT)? "
        "full_sentences: whole sentences, across documents (RoBERTa). "
        "packed: rows filled to the last token with several sequences (Cramming).",
        choices=("nsp", "sop", "full_sentences", "packed"),
    )
    pack_separator: str = setting(
        CLS_SEP,
        "What frames each sequence of a packed row: cls_sep = [CLS] ... [SEP]; "
        "sep = [SEP] after each document (Cramming's stream); none.",
        choices=FRAMES,
        needs=("objective", ("packed",)),
    )
    masking: str = setting(
        "static",
        "When tokens are masked. static: once, when records are written, in "
        "Google's format. dynamic: differently in every epoch, when records are "
        "read; these records are compact.",
        choices=("static", "dynamic"),
    )
    max_seq_length: int = setting(
        128, "Tokens per row, including [CLS] and [SEP].", low=8, high=65536
    )
    max_predictions_per_seq: int | None = setting(
        None,
        "Maximum masked tokens per row. Default: max_seq_length x masked_lm_prob, "
        "rounded up (20 for 128).",
        low=1,
    )
    masked_lm_prob: float = setting(
        0.15, "Share of a row's tokens that are masked.", above=0.0, below=1.0
    )
    do_whole_word_mask: bool = setting(False, "Mask either all pieces of a word or none.")
    max_ngram_size: int = setting(
        1,
        "Mask spans of up to this many whole words, one of n words with the weight 1/n; 1 = no "
        "spans.",
        low=1,
        high=64,
    )
    word_separator: str | None = setting(
        None,
        "The character that a tool of the language has put between words, where the script has no "
        "spaces; it is dropped, and whole words are masked by it. Default: the zero-width space, "
        "U+200B.",
    )
    short_seq_prob: float = setting(
        0.1,
        "Share of documents that are cut into records shorter than max_seq_length.",
        low=0.0,
        high=1.0,
        needs=("objective", ("nsp", "sop")),
    )
    dupe_factor: int | None = setting(
        None,
        "Passes over the training text, each with different rows and masks; validation "
        "documents get one. Default: 10 with static masking, 1 with dynamic.",
        low=1,
    )
    random_seed: int = setting(
        12345,
        "Seed of all random choices: the same seed and text give the same bytes.",
        low=0,
        aliases=("seed",),
    )
    validation_share: float | None = setting(
        None,
        "Share of the documents held out for validation, in separate shards; at "
        "least one document (0 = none). Default: enough for at least 500 rows of 64 tokens, "
        "between 1 % (of a large text 10,000 rows) and 10 %, whatever --max_seq_length is.",
        low=0.0,
        below=1.0,
    )
    num_shards: int | None = setting(
        None, "Number of training shards. Default: so many that each has about 128 MB.", low=1
    )
    num_workers: int | None = setting(
        None, "Worker processes. Default: one per core. The output does not depend on it.", low=1
    )
    ray_address: str | None = like(VocabConfig, "ray_address")
    strict: bool = setting(False, "Stop at a warning about the text, with exit code 2.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_local(self.output_file, "output_file")
        check_ray_address(self.ray_address)
        if self.word_separator is not None and len(self.word_separator) != 1:
            raise UserError(
                "must be one character",
                "name one that is nowhere else in the text, such as |",
                setting="word_separator",
                value=self.word_separator,
            )
        if (
            not self.output_file.endswith(".tfrecord")
            or os.path.basename(self.output_file) == ".tfrecord"
        ):
            raise UserError(
                "must be DIR/NAME.tfrecord", setting="output_file", value=self.output_file
            )
        if self.num_predictions > self.max_seq_length:
            raise UserError(
                f"must be at most --max_seq_length={self.max_seq_length}",
                setting=("max_predictions_per_seq", "max_seq_length"),
                value=self.max_predictions_per_seq,
            )
        if self.sp_model_file is not None and self.tokenization != "SentencePiece":
            raise UserError(
                "needs --tokenization=SentencePiece",
                setting="sp_model_file",
                value=self.sp_model_file,
            )
        check_is_json(self.vocab_file, self.tokenization)
        is_json = self.vocab_file is not None and self.vocab_file.endswith(".json")
        if self.vocab_file and self.tokenization == "SentencePiece" and not is_json:
            raise UserError(
                "is for WordPiece",
                "with SentencePiece use --sp_model_file",
                setting="vocab_file",
                value=self.vocab_file,
            )

    def without_effect(self, name: str) -> str | None:
        """Return, as text, why the named setting has no effect; None if it has one. Extends the
        method of Settings by reasons that a setting's `needs` cannot express.
        """
        if name == "vocab_size" and self.vocabulary_path is not None:
            flag = "vocab_file" if self.vocab_file is not None else "sp_model_file"
            return f"--vocab_size has no effect beside --{flag}, which is not learnt"
        return super().without_effect(name)

    @property
    def copies(self) -> str:
        """The documents that are dropped because of others; "" if none are."""
        if self.near_duplicates is not None:
            return "near duplicates"
        return "duplicates" if self.drop_duplicates else ""

    @property
    def vocabulary_path(self) -> str | None:
        """The vocabulary or model file that the user named; None = a vocabulary is learnt from the
        text.
        """
        return self.vocab_file or self.sp_model_file

    @property
    def word_mark(self) -> bytes:
        """The character between words of scripts without spaces, in UTF-8."""
        return (self.word_separator or "\u200b").encode()

    @property
    def num_predictions(self) -> int:
        return self.max_predictions_per_seq or int(
            math.ceil(self.max_seq_length * self.masked_lm_prob)
        )

    @property
    def num_passes(self) -> int:
        return self.dupe_factor or (10 if self.masking == "static" else 1)

    @property
    def folder(self) -> str:
        return os.path.dirname(self.output_file) or "."

    @property
    def name(self) -> str:
        return os.path.basename(self.output_file).removesuffix(".tfrecord")

    def fixed(self) -> dict[str, object]:
        """Return {name: value} of the settings that decide the content of the data set. File paths
        are left out, because the contents of the files are compared instead.
        """
        excluded = (
            "strict",
            "num_workers",
            "ray_address",
            "input_file",
            "output_file",
            "vocab_file",
            "sp_model_file",
            # left out at their defaults, so that data sets without them do not change
            *(("strip_accents",) if self.strip_accents else ()),
            *(name for name in ADDED if getattr(self, name) is None),
        )
        return {name: value for name, value in self.to_dict().items() if name not in excluded}


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputConfig(Settings):
    """The records to train on."""

    input_file: str = setting(
        "data/*.tfrecord",
        "TFRecords to train on: a glob or the folder of a data set, or several separated by "
        "commas. Excludes the validation shards that dataset.json names, even if a glob matches "
        "them.",
        path="list",
    )
    input_weights: str | None = setting(
        None,
        "Shares of the training tokens for the data sets that --input_file separates by commas: "
        ".7,.3; or temperature:.3, shares by size^.3, as XLM-R and mT5 have for languages of very "
        "different size. Without them the records of all are shuffled together.",
    )
    input_weights_from: str | None = setting(
        None,
        "Other weights from a share of the run on: .8:.2,.8 gives the second of two data sets 80 % "
        "of the last fifth.",
        needs=("input_weights", None),
    )
    eval_input_file: str | None = setting(
        None,
        "TFRecords to validate on, as globs. Default: the validation shards named "
        "in the dataset.json beside the training shards.",
        path="list",
    )
    max_seq_length: int | None = setting(
        None, "Tokens per row that the data must have. Default: the row length of the data.", low=8
    )
    shuffle: bool = setting(
        True,
        "Read the records in a new random order each epoch. "
        "--noshuffle keeps the order of the files.",
    )
    padding: str = setting(
        "fixed",
        "Row length of a batch. fixed: max_seq_length. dynamic: its longest row. "
        "uniform: like dynamic, with batches of rows of similar length. With XLA, "
        "dynamic and uniform compile once per length.",
        choices=PADDINGS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.phases  # raises UserError

    @property
    def phases(self) -> list[tuple[float, list[float]]]:
        """(share of the run at which they begin to hold, weights of the data sets, whose sum is 1)
        of --input_weights and --input_weights_from, as far as they are given.
        """
        num_sets = sum(bool(part.strip()) for part in self.input_file.split(","))
        texts = dict(input_weights=self.input_weights, input_weights_from=self.input_weights_from)
        if self.temperature:  # Dataset, which knows the sizes, replaces these weights
            texts["input_weights"] = ",".join(["1"] * num_sets)
        return [parse_weights(name, text, num_sets) for name, text in texts.items() if text]

    @property
    def temperature(self) -> float | None:
        """The exponent of the data sets' sizes in their weights; None where weights are given."""
        kind, _, exponent = (self.input_weights or "").partition(":")
        value = number_in(exponent) if kind.strip() == "temperature" else None
        return value if value and 0 < value <= 1 else None


def parse_weights(name: str, text: str, num_sets: int) -> tuple[float, list[float]]:
    """Return (share of the run, weights, whose sum is 1) of a text SHARE:WEIGHT,WEIGHT of
    input_weights_from, or (0, weights) of WEIGHT,WEIGHT of input_weights. Raise UserError when the
    text has not the form that the setting `name` needs.
    """
    is_later = name == "input_weights_from"
    begin, _, rest = text.rpartition(":") if is_later else ("", "", text)
    share = number_in(begin) or 0.0
    weights = [number_in(part) or 0.0 for part in rest.split(",")]
    if len(weights) != num_sets or min(weights) <= 0 or is_later != (0 < share < 1):
        before = "SHARE:WEIGHTS with a share of the run above 0 and below 1, and " * is_later
        raise UserError(
            f"must be {before}finite numbers above 0, one for each data set of --input_file, which "
            f"names {num_sets}",
            "separate them by commas, such as "
            + (".8:.2,.8" if is_later else ".7,.3, or give temperature:.3"),
            setting=name,
            value=text,
        )
    return share, [weight / sum(weights) for weight in weights]
