"""The tokenizer in a model's folder: taken with the ids of its tokenizer.json, by ours where these
are the same; refused by the name of a key where another file contradicts it.
"""

import io
import itertools
import json
import tempfile
from pathlib import Path

import hypothesis
import pytest
import sentencepiece
import tokenizers
from hypothesis import strategies as st

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.interop.models import load_tokenizer
from bert_gpu.interop.tokenizers import tokenizer_files
from bert_gpu.model.config import ModelConfig
from bert_gpu.text.tokenizers.rules import OTHER_NAMES
from bert_gpu.text.tokenizers.sentence_piece import SentencePieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "elan élan 東 京 [ ] e1 / remdesivir re ##m ##d s ##t".split()
CONFIG, WHOLE = "tokenizer_config.json", "tokenizer.json"
MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
PROBE = "ÉLAN Élan elan 東京 [E1] re:mdesivir <e> [unused1]"


def added(*contents):
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return [dict(id=index, content=text) | flags for index, text in enumerate(contents)]


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
# what the library reads and ours do not
LIBRARYS = [
    (CONFIG, ("tokenizer_class",), "RobertaTokenizer", None),
    (CONFIG, ("do_basic_tokenize",), False, None),
    (WHOLE, ("normalizer",), None, None),
    (WHOLE, ("normalizer",), dict(type="Lowercase"), None),
    (WHOLE, ("normalizer", "clean_text"), False, None),
    (WHOLE, ("pre_tokenizer",), dict(type="Whitespace"), None),
    (WHOLE, ("pre_tokenizer",), None, None),
    (WHOLE, ("model", "continuing_subword_prefix"), "@@", None),
    (WHOLE, ("model", "max_input_chars_per_word"), 3, None),
]
# only the Python code of a class reads these
PYTHONS = [
    ("config.json", ("tokenizer_class",), "BertJapaneseTokenizer", None),
    (CONFIG, ("word_tokenizer_type",), "sudachi", None),
    (CONFIG, ("subword_tokenizer_type",), "character", None),
    (CONFIG, ("do_word_tokenize",), False, None),
    (CONFIG, ("auto_map",), {"AutoTokenizer": ["tokenization.Own", None]}, None),
]


def plain_json(vocab):
    letters = dict(lowercase=True, strip_accents=None, handle_chinese_chars=True)
    return dict(
        normalizer=dict(type="BertNormalizer", clean_text=True, **letters),
        pre_tokenizer=dict(type="BertPreTokenizer"),
        model=dict(
            type="WordPiece",
            vocab={piece: index for index, piece in enumerate(vocab)},
            unk_token="[UNK]",
            continuing_subword_prefix="##",
            max_input_chars_per_word=100,
        ),
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


ANY = st.lists(
    st.one_of(*map(st.sampled_from, (HARMLESS, LETTERS, WHOLE_TOKENS, LIBRARYS, PYTHONS))),
    max_size=3,
    unique_by=lambda row: (row[0], row[1][0] if row[0] != WHOLE else row[1][-1:]),
)


@hypothesis.settings(max_examples=60)
@hypothesis.given(ANY)
def test_a_folder_gets_the_ids_of_its_tokenizer_json_unless_a_file_contradicts_it(rows):
    with tempfile.TemporaryDirectory() as name:
        write_folder(Path(name), rows, WORDS)
        content = (Path(name) / WHOLE).read_text()
        try:
            library = tokenizers.Tokenizer.from_str(content)
        except Exception:  # two rows made a part that is none
            library = None
        kept = {token["content"] for token in json.loads(content)["added_tokens"]}
        stated = {
            key: rule
            for file, _, _, each in rows
            if file == CONFIG
            for key, rule in (each or {}).items()
        }
        whole = {text for _, _, _, rule in rows for text in (rule or {}).get("whole", ())}
        agrees = library is not None and whole <= kept and not any(row in PYTHONS for row in rows)
        if library is not None:
            norm = library.normalizer.normalize_str if library.normalizer else str
            chinese = (json.loads(content)["normalizer"] or {}).get("handle_chinese_chars", None)
            agrees &= stated.get("lower", norm("A") == "a") == (norm("A") == "a")
            agrees &= stated.get("strip", norm("é") == "e") == (norm("é") == "e")
            agrees &= chinese is None or stated.get("chinese", chinese) == chinese
        try:
            tokenizer = load_tokenizer(name)
        except UserError as error:
            message = str(error)
            assert not agrees and name in message and len(message) <= 300, message
            keys = {path[0] for _, path, _, rule in rows if rule != {}}
            keys |= {path[-1] for _, path, _, rule in rows if rule != {}}
            keys |= {"added tokens", "tokenizer.json"}
            assert any(key in message for key in keys), message
        else:
            assert agrees, rows
            ids, _ = tokenizer.tokenize([PROBE])
            assert ids.tolist() == library.encode(PROBE, add_special_tokens=False).ids


@pytest.mark.parametrize("flag", [True, False])
def test_a_casing_of_the_users_own_replaces_what_the_folder_says_of_letters(tmp_path, flag):
    write_folder(tmp_path, [LETTERS[0], LETTERS[4], LETTERS[6], LETTERS[8]], WORDS)
    with pytest.raises(UserError, match="strip_accents|lowercase"):
        load_tokenizer(str(tmp_path))
    assert load_tokenizer(str(tmp_path), do_lower_case=flag).do_lower_case is flag
    write_folder(tmp_path, [PYTHONS[1]], WORDS)
    with pytest.raises(UserError, match="word_tokenizer_type='sudachi'"):
        load_tokenizer(str(tmp_path), do_lower_case=flag)


# names of [PAD] [UNK] [CLS] [SEP] [MASK] in models of other trainers, some as symbols of the text
NAMES = list(itertools.product(*zip(SPECIAL, OTHER_NAMES.values(), strict=True)))[::3]


@pytest.mark.parametrize("names", NAMES)
def test_a_sentencepiece_model_opens_again_from_its_own_folder(tmp_path, names):
    """Whatever its special pieces are called, and whether text may give them."""
    pad, unk, *symbols = names
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["remdesivir and 東京 elan"] * 9),
        model_writer=model,
        **dict(vocab_size=40, hard_vocab_limit=False, minloglevel=2, bos_id=-1, eos_id=-1),
        **dict(pad_id=0, unk_id=1, pad_piece=pad, unk_piece=unk),
        **{f"{kind}_symbols": symbols for kind in [("control", "user_defined")["<s>" in symbols]]},
    )
    (tmp_path / "a.model").write_bytes(model.getvalue())
    tokenizer = SentencePieceTokenizer(str(tmp_path / "a.model"), True)
    own = tmp_path / "own"
    own.mkdir()
    for name, content in tokenizer_files(tokenizer, ModelConfig()).items():
        (own / name).write_bytes(content)
    again = load_tokenizer(str(own))
    assert (again.kind, again.identity) == ("SentencePiece", tokenizer.identity)
    library = tokenizers.Tokenizer.from_file(str(own / WHOLE))
    assert (
        again.tokenize([PROBE])[0].tolist() == library.encode(PROBE, add_special_tokens=False).ids
    )


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
