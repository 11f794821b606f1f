"""The rules of a tokenizer.json of Hugging Face's, and whether BERT's own rules give the same ids.

Each key that changes how text is cut is listed here with the values that mean BERT's rules. This
module imports nothing heavy, because flags are checked with it.
"""

import json
import unicodedata
from collections.abc import Container, Mapping
from typing import Any

from bert_gpu.base.errors import UserError

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# {special piece: its name in models that do not use BERT's names}
OTHER_NAMES = dict(zip(SPECIAL_PIECES, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
PLAIN_TOKENS = {*SPECIAL_PIECES, OTHER_NAMES["[PAD]"], OTHER_NAMES["[UNK]"]}
# {our field: its name in the normalizer of a tokenizer.json}
LETTERS = dict(
    do_lower_case="lowercase",
    strip_accents="strip_accents",
    tokenize_chinese_chars="handle_chinese_chars",
)
Rules = Mapping[str, Container[object]]


def replace(pattern: dict[str, str], content: str) -> dict[str, object]:
    return dict(type="Replace", pattern=pattern, content=content)


# Lower-cases a capital sigma that ends a word to a final sigma, as Python does; `tokenizers` itself
# lower-cases each character without regard to its neighbours.
FINAL_SIGMA = replace(dict(Regex=r"(?<=\p{L})Σ(?![\p{M}'’.:·]*\p{L})"), "ς")
# NFKC, except for the wide tilde, which SentencePiece keeps. It comes before SentencePiece's own
# table, because `tokenizers` looks up only the beginning of a letter with several marks in the
# table.
NFKC = (
    replace(dict(String="～"), "\ue000"),
    dict(type="NFKC"),
    replace(dict(String="\ue000"), "～"),
)
ONE_SPACE = replace(dict(Regex=" {2,}"), " ")
STRIP = dict(type="Strip", strip_left=True, strip_right=True)
WORD_PIECE: Rules = {
    "normalizer.type": ("BertNormalizer",),
    "normalizer.first": ([], [FINAL_SIGMA]),  # the second value is in our own files
    "normalizer.clean_text": (True,),
    "pre_tokenizer.type": ("BertPreTokenizer",),
    "model.type": ("WordPiece",),
    "model.merges": (),  # only BPE has the key
    "model.unk_token": ("[UNK]",),
    "model.continuing_subword_prefix": ("##",),
    "model.max_input_chars_per_word": range(100, 1 << 16),  # Hugging Face has 100, Google 200
}


class SentencePieceSteps(Container[object]):
    """A container of the lists of normalizers that do no more than a SentencePiece model's own
    normalisation.
    """

    own = (FINAL_SIGMA, *NFKC, ONE_SPACE, STRIP, dict(type="Lowercase"))

    def __contains__(self, steps: object) -> bool:
        return isinstance(steps, list) and all(
            step in self.own or step.get("type") == "Precompiled" for step in steps
        )


SENTENCE_PIECE: Rules = {
    "model.type": ("Unigram",),
    "normalizer.type": (None, *(step["type"] for step in SentencePieceSteps.own), "Precompiled"),
    "normalizer.first": SentencePieceSteps(),
}


def flat(content: Mapping[str, object]) -> dict[str, object]:
    """Return the content of a tokenizer.json with the keys of its parts added, such as
    "normalizer.type", which is None for a part that is null. Of a sequence of normalizers, the keys
    are those of the last one, and the others are "normalizer.first": in our files BERT's normalizer
    follows one for a final sigma.
    """
    parts: dict[str, object] = {}
    for name in ("normalizer", "pre_tokenizer", "model"):
        part = content.get(name, {})
        steps = part.get("normalizers") if isinstance(part, dict) else None
        *first, part = steps if isinstance(steps, list) and steps else [part]
        part = part if isinstance(part, dict) else dict(type=part)
        parts |= {f"{name}.{key}": value for key, value in (part | dict(first=first)).items()}
    return {**content, **parts}


def difference(content: Mapping[str, object], rules: Rules) -> str | None:
    """Return "key=value" of the first key whose value is not among those that the rules allow; None
    if there is no such key. content: from `flat`.
    """
    for key, values in rules.items():
        if key in content and content[key] not in values:
            return f"{key}={content[key]!r:.40}"
    return None


def texts_of(value: object) -> list[str]:
    """Return the tokens in a value from a tokenizer file, which is a text, an object with a
    "content", or a list or object of these.
    """
    if isinstance(value, dict):
        value = [value["content"]] if "content" in value else list(value.values())
    parts = value if isinstance(value, list) else []
    return (
        [value] if isinstance(value, str) else [text for part in parts for text in texts_of(part)]
    )


def letters_of(content: Mapping[str, object]) -> dict[str, bool]:
    """Return {field of LETTERS: its value in the normalizer}, without fields that are not set
    there. content: from `flat`.
    """
    values = {field: content.get(f"normalizer.{name}") for field, name in LETTERS.items()}
    return {field: value for field, value in values.items() if isinstance(value, bool)}


def needs_library(stored: Mapping[str, object]) -> bool:
    """Return whether a tokenizer.json, given as its content, needs Hugging Face's `tokenizers`,
    because our WordPiece would give other ids.
    """
    content = flat(stored)
    letters = letters_of(content)
    ids = content.get("model.vocab")
    return (
        difference(content, WORD_PIECE) is not None
        or not PLAIN_TOKENS.issuperset(texts_of(content.get("added_tokens")))
        or not letters.get("tokenize_chinese_chars", True)
        or (letters.get("strip_accents", False) and not letters.get("do_lower_case", True))
        or (isinstance(ids, dict) and ids.get("[PAD]", 0) != 0)
    )


def special_ids(ids: Mapping[str, int], path: str, remedy: str) -> list[int]:
    """Return the ids of SPECIAL_PIECES, under these names or those of OTHER_NAMES. ids: {piece:
    id}. path, remedy: as `where` and `remedy` of the UserError that is raised if one is missing.
    """
    found = {piece: ids.get(piece, ids.get(OTHER_NAMES[piece])) for piece in SPECIAL_PIECES}
    if missing := [piece for piece, index in found.items() if index is None]:
        raise UserError(f"{', '.join(missing)} missing", remedy, where=path)
    return [index for index in found.values() if index is not None]


def casing_of(tokenizer: Any) -> dict[str, bool]:
    """Return {"do_lower_case": whether a tokenizer of Hugging Face's library lower-cases text,
    "strip_accents": whether it removes accents}.
    """
    normalized = tokenizer.normalizer.normalize_str("Aé") if tokenizer.normalizer else "Aé"
    letters = unicodedata.normalize("NFC", normalized)
    return dict(do_lower_case="a" in letters, strip_accents="é" not in letters)


def as_text(stored: Mapping[str, object]) -> str:
    """Return the content of a tokenizer.json as JSON text, without its settings for cutting and
    padding a batch.
    """
    return json.dumps({**stored, "truncation": None, "padding": None}, ensure_ascii=False)
