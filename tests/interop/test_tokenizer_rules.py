"""The tokenizer in a model's folder: taken where all of its files cut text as BERT does, refused by
the name of a key where one does not.
"""

import json
import re
import tempfile
import unicodedata
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.interop.models import load_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "elan élan 東 京 [ ] e1 / remdesivir re ##m ##d s ##t".split()
CONFIG, WHOLE = "tokenizer_config.json", "tokenizer.json"
MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
PROBE = "ÉLAN Élan elan 東京 [E1] re:mdesivir <e> [unused1]"


def added(*contents):
    return [dict(id=index, content=text, special=True) for index, text in enumerate(contents)]


# (file, path of keys, value, what it does to the rules); None: the rules of another tokenizer
HARMLESS = [
    (CONFIG, ("tokenizer_class",), "BertTokenizerFast", {}),
    (CONFIG, ("tokenizer_class",), None, {}),
    ("config.json", ("tokenizer_class",), "BertTokenizer", {}),
    (CONFIG, ("never_split",), None, {}),
    (CONFIG, ("word_tokenizer_type",), "basic", {}),
    (CONFIG, ("model_max_length",), 512, {}),
    (CONFIG, ("mask_token",), dict(content="[MASK]", lstrip=True), {}),
    (CONFIG, ("added_tokens_decoder",), {"0": dict(content="[PAD]")}, {}),
    (MAP, ("unk_token",), "[UNK]", {}),
    (ADDED, ("[MASK]",), 4, {}),
    (WHOLE, ("added_tokens",), added(*SPECIAL), {}),
    (WHOLE, ("model", "max_input_chars_per_word"), 200, {}),
]
LETTERS = [
    (CONFIG, ("do_lower_case",), True, dict(lower=True)),
    (CONFIG, ("do_lower_case",), False, dict(lower=False)),
    (CONFIG, ("strip_accents",), True, dict(strip=True)),
    (CONFIG, ("strip_accents",), False, dict(strip=False)),
    (CONFIG, ("tokenize_chinese_chars",), False, dict(chinese=False)),
    (WHOLE, ("normalizer", "lowercase"), True, dict(lower=True)),
    (WHOLE, ("normalizer", "lowercase"), False, dict(lower=False)),
    (WHOLE, ("normalizer", "strip_accents"), True, dict(strip=True)),
    (WHOLE, ("normalizer", "strip_accents"), False, dict(strip=False)),
    (WHOLE, ("normalizer", "handle_chinese_chars"), False, dict(chinese=False)),
]
WHOLE_TOKENS = [
    (CONFIG, ("additional_special_tokens",), ["[E1]"], dict(whole=["[E1]"])),
    (CONFIG, ("never_split",), ["re:mdesivir"], dict(whole=["re:mdesivir"])),
    (CONFIG, ("added_tokens_decoder",), {"60": dict(content="<e>")}, dict(whole=["<e>"])),
    (CONFIG, ("extra_special_tokens",), {"entity": "<e>"}, dict(whole=["<e>"])),
    (CONFIG, ("bos_token",), "<e>", dict(whole=["<e>"])),
    (MAP, ("additional_special_tokens",), [dict(content="<e>")], dict(whole=["<e>"])),
    (ADDED, ("[E1]",), 60, dict(whole=["[E1]"])),
    (WHOLE, ("added_tokens",), added(*SPECIAL, "[unused1]"), dict(whole=["[unused1]"])),
]
OTHER = [
    (CONFIG, ("tokenizer_class",), "RobertaTokenizer", None),
    ("config.json", ("tokenizer_class",), "BertJapaneseTokenizer", None),
    (CONFIG, ("word_tokenizer_type",), "sudachi", None),
    (CONFIG, ("subword_tokenizer_type",), "character", None),
    (CONFIG, ("do_word_tokenize",), False, None),
    (CONFIG, ("do_basic_tokenize",), False, None),
    (CONFIG, ("auto_map",), {"AutoTokenizer": ["tokenization.Own", None]}, None),
    (WHOLE, ("normalizer",), None, None),
    (WHOLE, ("normalizer",), dict(type="Lowercase"), None),
    (WHOLE, ("normalizer", "clean_text"), False, None),
    (WHOLE, ("normalizer", "normalizers"), [dict(type="NFKC"), dict(type="BertNormalizer")], None),
    (WHOLE, ("pre_tokenizer",), dict(type="Whitespace"), None),
    (WHOLE, ("pre_tokenizer",), None, None),
    (WHOLE, ("model", "type"), "WordLevel", None),
    (WHOLE, ("model", "continuing_subword_prefix"), "@@", None),
    (WHOLE, ("model", "max_input_chars_per_word"), 3, None),
]


def plain_json(vocab):
    return dict(
        normalizer=dict(type="BertNormalizer", clean_text=True, strip_accents=None),
        pre_tokenizer=dict(type="BertPreTokenizer"),
        model=dict(type="WordPiece", vocab={piece: index for index, piece in enumerate(vocab)}),
        added_tokens=added(*SPECIAL),
    )


def write_folder(folder, variations, words):
    """Writes a model's folder whose files have the variations' values."""
    vocab = [*SPECIAL, *words]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocab))
    files = {"config.json": dict(model_type="bert"), WHOLE: plain_json(vocab)}
    for file, (*parents, key), value, _ in variations:
        content = files.setdefault(file, {})
        for parent in parents:
            inner = content.get(parent)
            content[parent] = inner if isinstance(inner, dict) else {}
            content = content[parent]
        content[key] = value
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def cut(text, lower, strip=None, chinese=True, whole=()):
    """The words of a text by BERT's rules with these switches; tokens in `whole` stay."""
    marks = "|".join(map(re.escape, whole))
    words = []
    for part in re.split(f"({marks})", text) if whole else [text]:
        if part in whole:
            words.append(part)
            continue
        part = part.lower() if lower else part
        if lower if strip is None else strip:
            part = unicodedata.normalize("NFD", part)
            part = "".join(char for char in part if unicodedata.category(char) != "Mn")
        pattern = r"[一-鿿]|[^\W一-鿿]+|[^\w\s]" if chinese else r"\w+|[^\w\s]"
        words += re.findall(pattern, part)
    return words


def merged(rules):
    found = {}
    for each in rules:
        found |= each if "whole" not in each else {}
    whole = [token for each in rules for token in each.get("whole", ())]
    return found | dict(whole=whole)


ANY = st.lists(
    st.one_of(*map(st.sampled_from, (HARMLESS, LETTERS, WHOLE_TOKENS, OTHER))),
    max_size=3,
    unique_by=lambda row: (row[0], row[1][0] if row[0] != WHOLE else row[1][-1:]),
)


@hypothesis.settings(max_examples=50)
@hypothesis.given(ANY, st.booleans())
def test_a_folder_is_taken_if_every_file_cuts_as_bert_does_else_a_key_is_named(rows, is_cased):
    """Compared with the words that each file's own switches make of a text."""
    with tempfile.TemporaryDirectory() as name:
        write_folder(Path(name), rows, [*WORDS, *(["Elan"] if is_cased else [])])
        stated = {}
        for file, _, _, rule in rows:
            stated.setdefault(file, []).append(rule)
        casings = [
            rule["lower"]
            for file in (CONFIG, WHOLE)
            for rule in stated.get(file, ())
            if rule and "lower" in rule
        ]
        lower = casings[0] if casings else not is_cased
        agrees = all(
            None not in rules
            and cut(PROBE, **dict(lower=lower) | merged(rules)) == cut(PROBE, lower)
            for rules in stated.values()
        )
        try:
            tokenizer = load_tokenizer(name)
        except UserError as error:
            message = str(error)
            assert not agrees and name in message and len(message) <= 300, message
            keys = {path[0] for _, path, _, rule in rows if rule != {}}
            keys |= {path[-1] for _, path, _, rule in rows if rule != {}}
            keys |= {"added tokens"} if ADDED in stated else set()
            assert any(key in message for key in keys), message
        else:
            assert agrees and tokenizer.do_lower_case == lower, (rows, lower)


@pytest.mark.parametrize("flag", [True, False])
def test_a_casing_of_the_users_own_replaces_what_the_folder_says_of_letters(tmp_path, flag):
    write_folder(tmp_path, [LETTERS[0], LETTERS[4], LETTERS[6], LETTERS[8]], WORDS)
    with pytest.raises(UserError, match="strip_accents|lowercase"):
        load_tokenizer(str(tmp_path))
    assert load_tokenizer(str(tmp_path), do_lower_case=flag).do_lower_case is flag
    write_folder(tmp_path, [OTHER[2]], WORDS)
    with pytest.raises(UserError, match="word_tokenizer_type='sudachi'"):
        load_tokenizer(str(tmp_path), do_lower_case=flag)


@pytest.mark.parametrize("is_same", [True, False])
def test_a_tokenizer_json_of_other_ids_is_noted_once(tmp_path, capsys, is_same):
    write_folder(tmp_path, [], WORDS)
    if not is_same:
        text = (tmp_path / "vocab.txt").read_text()
        (tmp_path / "vocab.txt").write_text(text.replace("elan\nélan", "élan\nelan"))
    console.warn_once.cache_clear()
    for _ in range(2):
        tokenizer = load_tokenizer(str(tmp_path))
    err = capsys.readouterr().err
    assert err.count("gives other ids than vocab.txt to 2 pieces") == (not is_same)
    assert tokenizer.vocab.index("elan") == 5 + (not is_same)
