"""Checks that the tokenizer of a model's folder cuts text by BERT's rules, the only ones here.

The files of the tokenizer are those of transformers. Each key that changes how text is cut is
listed here with the values that mean BERT's rules. A token that transformers keeps whole, and that
would be split here, is an error that names the token.
"""

from collections.abc import Container
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.interop.sources import (
    LETTERS,
    find_casing,
    find_vocabulary,
    flat,
    folder_of,
    letter_rules,
    read_beside,
)
from bert_gpu.interop.tokenizer_json import FINAL_SIGMA
from bert_gpu.text.tokenizers.sentence_piece import OTHER_NAMES
from bert_gpu.text.vocabulary.file import SPECIAL_PIECES

# classes of transformers that read tokenizer.json, and those whose tokenizers are copies of BERT's
ANY_CLASS = (None, "PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
BERTS = """Bert ConvBert DistilBert DPRContextEncoder DPRQuestionEncoder DPRReader Electra LayoutLM
    Lxmert MobileBert Realm RetriBert SqueezeBert""".split()
BERT_CLASS = (*ANY_CLASS, *(f"{name}Tokenizer{end}" for name in BERTS for end in ("", "Fast")))
PIECE_CLASS = (*ANY_CLASS, "SentencePieceTokenizer", "AlbertTokenizer", "AlbertTokenizerFast")
# {file: {key: the values with which text is cut as BERT does, as without the key}}
WORD_PIECE: dict[str, dict[str, Container[Any]]] = {
    "config.json": dict(tokenizer_class=BERT_CLASS),
    "tokenizer_config.json": dict(
        tokenizer_class=BERT_CLASS,
        auto_map=(None, {}),
        word_tokenizer_type=(None, "basic"),
        subword_tokenizer_type=(None, "wordpiece"),
        do_word_tokenize=(None, True),
        do_subword_tokenize=(None, True),
        do_basic_tokenize=(None, True),
        clean_text=(None, True),
        wordpieces_prefix=(None, "##"),
    ),
    "tokenizer.json": {
        "normalizer.type": ("BertNormalizer",),
        "normalizer.first": ([], [FINAL_SIGMA]),  # the second in our own files
        "normalizer.clean_text": (True,),
        "pre_tokenizer.type": ("BertPreTokenizer",),
        "model.type": ("WordPiece",),
        "model.merges": (),  # only BPE has the key
        "model.unk_token": ("[UNK]",),
        "model.continuing_subword_prefix": ("##",),
        "model.max_input_chars_per_word": range(100, 1 << 16),  # Hugging Face: 100, Google: 200
    },
}
SENTENCE_PIECE: dict[str, dict[str, Container[Any]]] = {
    "config.json": dict(tokenizer_class=PIECE_CLASS),
    "tokenizer_config.json": dict(tokenizer_class=PIECE_CLASS, auto_map=(None, {})),
}
# keys whose tokens are kept whole, as are those of keys that end in _token
WHOLE_TOKEN_KEYS = (
    *("added_tokens", "added_tokens_decoder", "additional_special_tokens"),
    *("extra_special_tokens", "never_split"),
)


def check_tokenizer(path: str, do_lower_case: bool | None = None) -> None:
    """Raise UserError, which names the file and the key, when the tokenizer in the folder of a
    model cuts text otherwise than ours. do_lower_case: the user's choice, which replaces the rules
    for letters in the folder.
    """
    folder = folder_of(path)
    is_sentence_piece = str(find_vocabulary(path)).endswith(".model")
    for name, rules in (SENTENCE_PIECE if is_sentence_piece else WORD_PIECE).items():
        content = flat(read_beside(path, name))
        for key, values in rules.items():
            if key in content and content[key] not in values:
                raise UserError(
                    f"{folder}/{name}: {key}={content[key]!r:.40} does not cut text by "
                    "BERT's rules, the only ones here",
                    "use the model in transformers, or remove the key if it is wrong",
                )
    check_whole_tokens(path)
    if do_lower_case is None:
        check_letters(path)


def check_whole_tokens(path: str) -> None:
    """Raise UserError when the folder of a model has tokens beyond BERT's special pieces that
    transformers keeps whole and our tokenizer would split.
    """
    plain = {*SPECIAL_PIECES, *OTHER_NAMES.values()}
    names = ("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json")
    files = {name: read_beside(path, name) for name in names}
    files["added_tokens.json"] = dict(added_tokens=list(read_beside(path, "added_tokens.json")))
    for name, content in files.items():
        for key in (key for key in content if key in WHOLE_TOKEN_KEYS or key.endswith("_token")):
            if others := [text for text in texts_of(content[key]) if text not in plain]:
                raise UserError(
                    f"{folder_of(path)}/{name}: {key}: the added tokens "
                    f"{', '.join(map(repr, others))[:60]} are kept whole by the model's "
                    "tokenizer and would be split here",
                    "remove them if no text has them, or use transformers",
                )


def texts_of(value: Any) -> list[str]:
    """Return the tokens in a value of one of the files: texts, objects with a content, or
    several.
    """
    if isinstance(value, dict):
        value = [value["content"]] if "content" in value else list(value.values())
    parts = value if isinstance(value, list) else []
    return (
        [value] if isinstance(value, str) else [text for part in parts for text in texts_of(part)]
    )


def check_letters(path: str) -> None:
    """Raise UserError when the tokenizer of a model treats case, accents or Chinese characters in a
    way that ours cannot, or when its files contradict each other.
    """
    is_lower = find_casing(path).is_lower
    expected = dict(do_lower_case=is_lower, strip_accents=is_lower, tokenize_chinese_chars=True)
    differences = [
        f"{f'{LETTERS[field]} of {file}' if file == 'tokenizer.json' else field}={value}".lower()
        for file, rules in letter_rules(path).items()
        for field, value in rules.items()
        if value != expected[field]
    ]
    if differences:
        raise UserError(
            f"its tokenizer has {' and '.join(differences)} with "
            f"do_lower_case={str(is_lower).lower()}, unlike Google's rules, the only ones here",
            f"to use it anyway, give --{'' if is_lower else 'no'}do_lower_case",
            where=path,
        )
