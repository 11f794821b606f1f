"""Decides which code runs the tokenizer in a model's folder: a tokenizer of bert-gpu, where all
files state BERT's rules; else Hugging Face's `tokenizers`, where there is a tokenizer.json. The
model's vocabulary and casing follow from that.

The files of the tokenizer are those of transformers. Each key that changes how text is cut is
listed here with the values that mean BERT's rules. Where neither can run a tokenizer, the error
names the key, or a token that transformers keeps whole and bert-gpu would split.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.interop.sources import (
    Casing,
    folder_of,
    letter_rules,
    library_casing,
    own_casing,
    piece_facts,
    read_beside,
    vocabularies,
)
from bert_gpu.text.tokenizers import rules
from bert_gpu.text.tokenizers.rules import LETTERS, OTHER_NAMES, PLAIN_TOKENS, flat, texts_of

# tokenizer classes of transformers: those that read any tokenizer.json, and copies of BERT's
ANY_CLASS = (None, "PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
BERTS = """Bert ConvBert DistilBert DPRContextEncoder DPRQuestionEncoder DPRReader Electra LayoutLM
    Lxmert MobileBert Realm RetriBert SqueezeBert""".split()
BERT_CLASS = (*ANY_CLASS, *(f"{name}Tokenizer{end}" for name in BERTS for end in ("", "Fast")))
PIECE_CLASS = (
    *ANY_CLASS,
    *(f"{name}Tokenizer{end}" for name in ("Albert", "DebertaV2") for end in ("", "Fast")),
    "SentencePieceTokenizer",
)
# {file: {key: the values that mean BERT's rules for cutting text, as does a missing key}}
WORD_PIECE: dict[str, rules.Rules] = {
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
    "tokenizer.json": rules.WORD_PIECE,
}
SENTENCE_PIECE: dict[str, rules.Rules] = {
    "config.json": dict(tokenizer_class=PIECE_CLASS),
    "tokenizer_config.json": dict(
        tokenizer_class=PIECE_CLASS, auto_map=(None, {}), split_by_punct=(None, False)
    ),
    "tokenizer.json": rules.SENTENCE_PIECE,
}


# tokenizers in Python code that no tokenizer.json can replace: classes, and keys for others
SLOW = [f"{name}Tokenizer" for name in ("BertJapanese", "Bertweet", "Phobert", "Canine")]
PYTHON_KEYS = "auto_map word_tokenizer_type subword_tokenizer_type do_word_tokenize".split()
# keys that list tokens which are kept whole; keys that end in _token do too
WHOLE_TOKEN_KEYS = (
    *("added_tokens", "added_tokens_decoder", "additional_special_tokens"),
    *("extra_special_tokens", "never_split"),
)


def check_tokenizer(path: str, do_lower_case: bool | None = None) -> bool:
    """Return whether the tokenizer in the folder of a model must be run by Hugging Face's
    `tokenizers`, because bert-gpu's own would cut text differently. Raise UserError, which names
    the file and the key, when `tokenizers` cannot run it either. do_lower_case: the user's choice,
    which replaces the rules for letters in the folder.
    """
    is_sentence_piece = next(iter(vocabularies(path)), "").endswith(".model")
    try:
        check_files(path, SENTENCE_PIECE if is_sentence_piece else WORD_PIECE)
        if is_sentence_piece:
            check_pieces(path)
        # a SentencePiece model's own special pieces, which it never finds in text
        check_whole_tokens(path, OTHER_NAMES.values() if is_sentence_piece else ())
        if do_lower_case is None:
            check_letters(path)
    except UserError:
        if not is_for_library(path):
            raise
        return True
    is_word_piece = not is_sentence_piece and do_lower_case is None
    return is_word_piece and rules.needs_library(read_beside(path, "tokenizer.json"))


def check_files(path: str, rules_of_files: dict[str, rules.Rules]) -> None:
    """Raise UserError for the first key, in a model's tokenizer files, whose value is not allowed.
    rules_of_files: {file: {key: allowed values}}.
    """
    for name, rules_of_file in rules_of_files.items():
        if odd := rules.difference(flat(read_beside(path, name)), rules_of_file):
            raise UserError(
                f"{folder_of(path)}/{name}: {odd} does not cut text by "
                "BERT's rules, the only ones without a tokenizer.json that agrees",
                "use the model in transformers, or remove the key if it is wrong",
            )


def check_pieces(path: str) -> None:
    """Raise UserError when files beside a SentencePiece model treat characters without a piece
    otherwise, or give [MASK] another id than that after the last piece.
    """
    stored: dict[str, Any] = read_beside(path, "tokenizer.json")
    model = stored.get("model")
    tokens = stored.get("added_tokens")
    added = (
        [token for token in tokens if isinstance(token, dict)] if isinstance(tokens, list) else []
    )
    found = [token.get("id") for token in added if token.get("content") == "[MASK]"]
    found.append(read_beside(path, "added_tokens.json").get("[MASK]"))
    masks = [index for index in found if isinstance(index, int)]
    if not model and not masks:
        return
    facts = piece_facts(vocabularies(path)[0])
    falls_back = isinstance(model, dict) and bool(model.get("byte_fallback"))
    if model and falls_back != facts.has_bytes:
        problem = f"tokenizer.json: byte_fallback={falls_back}".lower()
    elif any(index > facts.num_pieces for index in masks):
        problem = f"[MASK] has id {max(masks)}, not {facts.num_pieces}"
    else:
        return
    raise UserError(
        f"{problem}, unlike the SentencePiece model beside it",
        "put the tokenizer.json of the model there, or remove the file that is wrong",
        where=folder_of(path),
    )


def is_for_library(path: str) -> bool:
    """Return whether the folder of a model has a tokenizer.json that no other file contradicts."""
    content = read_beside(path, "tokenizer.json")
    settings = read_beside(path, "tokenizer_config.json")
    classes = [each.get("tokenizer_class") for each in (settings, read_beside(path, "config.json"))]
    in_python = {key: WORD_PIECE["tokenizer_config.json"][key] for key in PYTHON_KEYS}
    is_slow = any(name in SLOW for name in classes) or rules.difference(settings, in_python)
    if is_slow or not content:
        return False
    whole = {text for name, _, texts in whole_tokens(path) for text in texts}
    actual = rules.letters_of(flat(content)) | library_casing(vocabularies(path)[-1])
    stated = letter_rules(path)["tokenizer_config.json"]
    agrees = all(actual.get(field, value) == value for field, value in stated.items())
    return agrees and whole <= {*PLAIN_TOKENS, *texts_of(content.get("added_tokens"))}


def check_whole_tokens(path: str, allowed: Iterable[str] = ()) -> None:
    """Raise UserError when files in the folder of a model name tokens, other than BERT's special
    pieces and those `allowed`, that transformers keeps whole and bert-gpu's tokenizer would split.
    """
    for name, key, texts in whole_tokens(path):
        if others := [text for text in texts if text not in {*PLAIN_TOKENS, *allowed}]:
            raise UserError(
                f"{folder_of(path)}/{name}: {key}: the added tokens "
                f"{', '.join(map(repr, others))[:60]} are kept whole by the model's "
                "tokenizer and would be split here",
                "remove them if no text has them, or use transformers",
            )


def whole_tokens(path: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (file, key, tokens) for each key, in the tokenizer files of a model's folder, that
    lists tokens which are kept whole.
    """
    names = ("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json")
    files = {name: read_beside(path, name) for name in names}
    files["added_tokens.json"] = dict(added_tokens=list(read_beside(path, "added_tokens.json")))
    for name, content in files.items():
        for key in (key for key in content if key in WHOLE_TOKEN_KEYS or key.endswith("_token")):
            yield name, key, texts_of(content[key])


def check_letters(path: str) -> None:
    """Raise UserError when the tokenizer of a model treats case, accents or Chinese characters in a
    way that bert-gpu's tokenizers cannot, or when its files contradict each other.
    """
    is_lower = own_casing(path).is_lower
    expected = dict(
        do_lower_case=is_lower,
        strip_accents=is_lower and folder_strips_accents(path),
        tokenize_chinese_chars=True,
    )
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


def folder_strips_accents(path: str) -> bool:
    """Return whether the tokenizer in the folder of a model removes accents when it lower-cases: as
    the first file that states it says, else True.
    """
    stated = [letters.get("strip_accents") for letters in letter_rules(path).values()]
    return next((value for value in stated if value is not None), True)


def is_librarys(path: str, do_lower_case: bool | None = None) -> bool:
    """Return whether the tokenizer in the folder of a model must be run by Hugging Face's
    `tokenizers`, because bert-gpu's tokenizers would give other ids.
    """
    try:
        return check_tokenizer(path, do_lower_case)
    except UserError:  # load_tokenizer raises this error again
        return False


def find_vocabulary(path: str, do_lower_case: bool | None = None) -> str | None:
    """Return the path of the vocabulary in the folder of a model, or None. It is tokenizer.json
    where only Hugging Face's `tokenizers` gives the model's ids. do_lower_case: as for
    `load_tokenizer`.
    """
    paths = vocabularies(path)
    return paths[-1] if is_librarys(path, do_lower_case) else next(iter(paths), None)


def find_casing(path: str) -> Casing:
    """Return the Casing of a model: as its tokenizer.json has it where Hugging Face's `tokenizers`
    must run that, else as `own_casing` finds it.
    """
    casing = library_casing(vocabularies(path)[-1]) if is_librarys(path) else {}
    return Casing(casing["do_lower_case"]) if casing else own_casing(path)
