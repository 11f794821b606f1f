"""Words of one's own: those that shorten the text most, with the mean of their pieces' rows; a text
without them keeps its ids, and every other weight its bits.
"""

import collections
import itertools
import json
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.__main__ import main as command
from bert_gpu.base.errors import UserError
from bert_gpu.interop import extension, models
from bert_gpu.interop.config import ExtendConfig
from bert_gpu.interop.huggingface import write_own
from bert_gpu.model.config import ModelConfig
from bert_gpu.text.config import TextFormat
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.vocabulary.file import SPECIAL_PIECES
from tests.interop.test_huggingface import needs_oracle, oracle_environment, oracle_python
from tests.interop.test_leaving import model_of
from tests.model.variants import SMALL

LETTERS = "abcdefghij"
PIECES = [*SPECIAL_PIECES, "[unused1]", "[unused2]", *LETTERS, *(f"##{x}" for x in LETTERS)]
PIECES += ["cab", "##de", "."]
DOCUMENTS = [["abcde fade cab.", "bad Fade cab abcde z"], ["fade bad ice dig. ice dig hid"]]
# by count x (pieces - 1), and then by text: abcde 2 x 3, fade 3 x 2, bad 2 x 2, ...
CHOSEN = ["abcde", "fade", "bad", "dig", "ice"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """start/, a model of PIECES with factorised embeddings and three rows more than pieces;
    text.txt.
    """
    folder = tmp_path_factory.mktemp("extension")
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (folder / "text.txt").write_text("\n\n".join("\n".join(lines) for lines in DOCUMENTS) + "\n")
    config = ModelConfig(**SMALL | dict(vocab_size=len(PIECES) + 3), embedding_size=6)
    model = model_of(config, "BertForPreTraining")
    tokenizer = open_tokenizer(str(folder / "vocab.txt"), True)
    write_own(model._replace(tokenizer=tokenizer), str(folder / "start"))
    return folder


def extend(folder, to, *flags, source="start"):
    fixed = [f"--from={folder / source}", f"--to={to}", "--num_workers=1"]
    return command(["bert-gpu", "extend", *fixed, *map(str, flags)])


def opened(path):
    _, model = models.open_model(str(path), "from")
    return model


def check_rows(old, new, words, ids):
    """The rows of the words are the means of their pieces' rows; all other weights are the same."""
    assert (
        len(new.weights["embeddings/word"]) == new.config.vocab_size == len(new.weights["mlm/bias"])
    )
    assert new.weights.keys() == old.weights.keys()
    for name, before in old.weights.items():
        after = new.weights[name].copy()
        if name in ("embeddings/word", "mlm/bias"):
            for word, index in zip(words, ids, strict=True):
                pieces = old.tokenizer.tokenize([f" {word}"])[0]
                mean = before[pieces].astype(float).mean(axis=0)
                np.testing.assert_allclose(after[index], mean, rtol=0, atol=1e-7)
                after[index] = before[index] if index < len(before) else 0
            assert not after[len(before) :].any()
        assert after[: len(before)].tobytes() == before.tobytes()


def test_the_words_are_those_that_shorten_the_text_most(folder, tmp_path, capsys):
    """Twice at least; rows beyond the pieces are used before the table grows."""
    assert extend(folder, tmp_path / "new", f"--input_file={folder}/text.txt") == 0
    out = capsys.readouterr().out
    old, new = opened(folder / "start"), opened(tmp_path / "new")
    assert new.tokenizer.vocab == [*PIECES, *CHOSEN]
    assert new.config.vocab_size == len(PIECES) + len(CHOSEN)
    check_rows(old, new, CHOSEN, range(len(PIECES), len(PIECES) + len(CHOSEN)))
    text = [sentence for document in DOCUMENTS for sentence in document]
    num_words = sum(len(sentence.replace(".", " .").split()) for sentence in text)
    rates = [len(each.tokenizer.tokenize(text)[0]) / num_words for each in (old, new)]
    assert f"pieces per word: {rates[0]:.3f} before, {rates[1]:.3f} after\n" in out
    assert "already one piece: 2 words, ., cab\n" in out
    assert "or come after --num_tokens: 2 words, hid, z\n" in out  # once each
    assert "added: 5 words, abcde, fade, bad, dig, ice\n" in out
    assert out.splitlines()[-1] == f"{tmp_path}/new: BertGpuForPreTraining"


def test_the_choice_is_the_best_one_for_every_number(folder, tmp_path):
    """Against a count of each candidate's gain, one by one, in the tokenized text."""
    draws = np.random.default_rng(3)
    words = ["".join(draws.choice([*LETTERS], draws.integers(1, 6))) for _ in range(40)]
    lines = [" ".join(draws.choice(words, 12)) for _ in range(30)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    tokenizer = opened(folder / "start").tokenizer
    counts = collections.Counter(" ".join(lines).split())
    gains = {
        word: count * (len(tokenizer.tokenize([word])[0]) - 1)
        for word, count in counts.items()
        if count > 1
    }
    best = sorted((word for word in gains if gains[word]), key=lambda word: (-gains[word], word))
    lengths = extension.num_pieces(tokenizer, counts)
    for number in (1, 2, 19, 100):
        assert extension.choose(counts, lengths, number) == best[:number]
    given = [f"--input_file={tmp_path}/text.txt", "--num_tokens=7", "--quiet"]
    assert extend(folder, tmp_path / "new", *given) == 0
    assert opened(tmp_path / "new").tokenizer.vocab == [*PIECES, *best[:7]]


def test_a_list_of_words_is_added_in_its_order(folder, tmp_path, capsys):
    """As the tokenizer reads them; an unknown word begins with the row of [UNK]."""
    (tmp_path / "words.txt").write_text("Hid\ncab\n\nhid\nab-c\nz\nfade\n" + 101 * "a" + "\n")
    assert extend(folder, tmp_path / "new", f"--tokens_file={tmp_path}/words.txt") == 0
    out, err = capsys.readouterr()
    assert opened(tmp_path / "new").tokenizer.vocab == [*PIECES, "hid", "z", "fade"]
    assert "already one piece: 1 words, cab\n" in out and "pieces per word: 2.000 before" in out
    assert "left out" in err and f"2 words, ab-c, {20 * 'a'}" in err


def test_the_folder_does_not_depend_on_the_workers(folder, tmp_path):
    (tmp_path / "more.txt").write_text((folder / "text.txt").read_text() * 3)
    for number in (1, 2):
        given = [f"--input_file={folder}/text.txt,{tmp_path}/more.txt", f"--num_workers={number}"]
        assert extend(folder, tmp_path / str(number), *given, "--quiet") == 0
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in "12")
    assert one == two and not list(tmp_path.glob("*.unpacked"))


@pytest.mark.parametrize(
    "flags, parts",
    [
        ([], ["--input_file: give either this or --tokens_file"]),
        (["--input_file=a", "--tokens_file=b"], ["--input_file=a: give either this or"]),
        (["--input_file=none.txt"], ["none.txt"]),
        (["--tokens_file=none.txt"], ["none.txt", "no such list of words"]),
        (["--tokens_file=odd.txt"], ["odd.txt: line 2 is not UTF-8"]),
        (["--tokens_file=empty.txt"], ["empty.txt: is empty"]),
        (["--tokens_file=known.txt"], ["known.txt", "no word that is several pieces"]),
        (["--input_file=known.txt"], ["known.txt", "no word that is several pieces"]),
        (["--input_file=known.txt", "--num_tokens=0"], ["--num_tokens=0", "at least 1"]),
    ],
)
def test_what_is_wrong_is_one_line(folder, tmp_path, monkeypatch, capsys, flags, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known.txt").write_text("cab\n")
    (tmp_path / "odd.txt").write_bytes(b"caf\xc3\xa9\ncaf\xe9\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    assert extend(folder, tmp_path / "new", *flags) == 2
    *warnings, error = capsys.readouterr().err.splitlines()
    assert all(part in error for part in parts), error
    assert all("has ids for 30 of the 33 rows" in line for line in warnings)
    assert not (tmp_path / "new").exists()


def test_a_model_without_a_vocabulary_is_refused(folder, tmp_path, capsys):
    model = opened(folder / "start")
    write_own(model._replace(tokenizer=None), str(tmp_path / "bare"))
    given = [f"--input_file={folder}/text.txt"]
    assert extend(tmp_path, tmp_path / "new", *given, source="bare") == 2
    assert "has no vocabulary" in capsys.readouterr().err


# -- added tokens of a tokenizer.json


def learn(kind, path):
    """Write a tokenizer.json of a kind, learnt from the text."""
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers, processors, trainers

    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    lines = [sentence for document in DOCUMENTS for sentence in document]
    rules = dict(special_tokens=specials, show_progress=False)
    if kind == "BPE":
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        letters = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=265, initial_alphabet=sorted(letters), **rules)
        frame = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    else:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=24, unk_token="<unk>", **rules)
        frame = processors.TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A </s> $B </s>",
            special_tokens=[("<s>", 0), ("</s>", 2)],
        )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = frame
    tokenizer.save(str(path))


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_words_become_added_tokens_of_a_tokenizer_json(kind, folder, tmp_path):
    """A text without them keeps its ids; where a word stands alone it is one piece, and inside a
    longer word it is not.
    """
    from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer

    learn(kind, tmp_path / "tokenizer.json")
    old = HuggingFaceTokenizer(str(tmp_path / "tokenizer.json"))
    words = ["abcde", "fade"]
    ids = [old.vocab_size, old.vocab_size + 1]
    new = extension.with_words(old, words, 1)
    assert new.vocab == [*old.vocab, *words] and new.separators == old.separators
    plain = ["bad ice. dig", " cab  hid", "xabcde fades", "<mask> bad"]
    for ours, theirs in zip(new.tokenize(plain), old.tokenize(plain), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    found = new.tokenize(["bad abcde fade. abcde"])[0].tolist()
    assert [index for index in found if index >= old.vocab_size] == [ids[0], ids[1], ids[0]]
    assert extension.num_pieces(new, words) == dict.fromkeys(words, 1)
    # from a folder to a folder: no piece a second time, also where it is one inside words only
    config = ModelConfig(**SMALL | dict(vocab_size=old.vocab_size))
    model = model_of(config, "BertForMaskedLM")._replace(tokenizer=old)
    write_own(model, str(tmp_path / "start"))
    given = [f"--input_file={folder}/text.txt", "--num_tokens=100", "--quiet"]
    assert extend(tmp_path, tmp_path / "new", *given) == 0
    grown = opened(tmp_path / "new")
    added = grown.tokenizer.vocab[old.vocab_size :]
    assert {"abcde", "fade"} <= {*added} and "." not in added
    assert len({*grown.tokenizer.vocab}) == grown.config.vocab_size
    check_rows(
        opened(tmp_path / "start"), grown, added, range(old.vocab_size, grown.config.vocab_size)
    )
    lines = (folder / "text.txt").read_text().splitlines()
    assert len(grown.tokenizer.tokenize(lines)[0]) < len(old.tokenize(lines)[0])


def test_words_of_a_sentence_piece_model_become_added_tokens(tmp_path):
    from bert_gpu.text.tokenizers.sentence_piece import learn_sentencepiece

    counts = collections.Counter(" ".join(sum(DOCUMENTS, [])).lower().split())
    (tmp_path / "x.model").write_bytes(learn_sentencepiece(counts, 24))
    old = open_tokenizer(str(tmp_path / "x.model"), None)
    new = extension.with_words(old, ["abcde"], 2)
    lines = ["bad ice hid", "Fade abc"]
    np.testing.assert_array_equal(new.tokenize(lines)[0], old.tokenize(lines)[0])
    assert new.tokenize(["Bad ABCDE bad"])[0].tolist().count(old.vocab_size) == 1
    assert json.loads(new.files()["tokenizer.json"])["added_tokens"][-1]["content"] == "abcde"


# -- what is unknown, what stands beside a word, and the text that comes back

NEW = ["remdesivir", "zorblax", "naïve", "über", "€", "\U0001f600", "дом", "かな"]
KNOWN = ["the", "old", "man", "went", "(", ")", ".", ",", "to"]
GLUE = ["", " ", " ", " ", "  "]


def made(kind):
    """A tokenizer.json of `kind`, model and pre-tokenizer; its letters are those of KNOWN."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    model, form = kind.split()
    first = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    rules = dict(special_tokens=first, show_progress=False)
    if model == "BPE":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=form == "prefixed")
        tokenizer.decoder = decoders.ByteLevel()
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=letters, **rules)
    else:
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC() if form != "bare" else None
        spaces = pre_tokenizers.Metaspace(split=form != "whole")
        white = pre_tokenizers.WhitespaceSplit()
        tokenizer.pre_tokenizer = (
            pre_tokenizers.Sequence([white, spaces]) if form in ("white", "bare") else spaces
        )
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=40, unk_token="<unk>", **rules)
    words = [word for word in KNOWN if word.isalpha()]
    tokenizer.train_from_iterator([" ".join(words), ". , ( )"] * 9, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer.to_str()


SPLITTING = ["BPE plain", "BPE prefixed"]
SPLITTING += [f"Unigram {form}" for form in ("plain", "whole", "white", "bare")]


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """{kind: (library's tokenizer before, after the words of NEW were added, our own)}."""
    import tokenizers

    from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer

    found = {}
    for kind in SPLITTING:
        path = tmp_path_factory.mktemp("grown") / "tokenizer.json"
        path.write_text(made(kind))
        old = HuggingFaceTokenizer(str(path))
        new = extension.with_words(old, NEW, 1)
        contents = path.read_text(), new.files()["tokenizer.json"].decode()
        found[kind] = (*map(tokenizers.Tokenizer.from_str, contents), new)
    return found


TEXTS = st.lists(
    st.tuples(st.sampled_from(GLUE), st.sampled_from([*KNOWN, *NEW])), min_size=1, max_size=8
)


def spaced(parts):
    """A text of words that touch no other word, and the places of words of NEW in it."""
    text, places = "", []
    for glue, word in parts:
        touches = bool(text) and not {text[-1], word[0]} & {*"(). ,"}
        text += " " if touches and not glue.strip(" ") and not glue else glue
        if word in NEW:
            places.append((len(text), len(text) + len(word)))
        text += word
    return text, places


@pytest.mark.parametrize("kind", SPLITTING)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(parts=TEXTS)
def test_the_text_beside_an_added_word_is_cut_as_before(grown, kind, parts):
    """By the library itself, before and after: the same pieces, but for the blank before the word,
    which the word takes.
    """
    before, after, _ = grown[kind]
    text, places = spaced(parts)
    inside = {index for begin, end in places for index in range(begin, end)}

    def beside(tokenizer, takes_blanks):
        row = tokenizer.encode(text, add_special_tokens=False)
        pieces = zip(row.tokens, row.offsets, strict=True)
        kept, is_before = [], False  # whether a word stands behind, with blanks alone between
        for piece, offsets in reversed([*pieces]):
            is_word = bool({*range(*offsets)} & inside)
            is_before = is_word or (is_before and piece in ("▁", "Ġ"))
            kept += [piece] * (not (is_before if takes_blanks else is_word))
        return kept

    assert beside(before, takes_blanks=True) == beside(after, takes_blanks=False)
    if not places:
        assert before.encode(text).ids == after.encode(text).ids


@pytest.mark.parametrize("kind", SPLITTING)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(words=st.lists(st.sampled_from([*KNOWN[:4], *NEW]), min_size=1, max_size=6))
def test_decoding_gives_back_a_text_with_added_words(grown, kind, words):
    """Where there is a blank before each of them; one more stands in front of byte-level text."""
    _, after, tokenizer = grown[kind]
    text = " ".join(words)
    ids = after.encode(text, add_special_tokens=False).ids
    first = " " * (kind == "BPE prefixed" or kind == "BPE plain" and words[0] in NEW)
    assert after.decode(ids) == tokenizer.decode(ids) == first + text


SPELLED = ["abc€", "zyx", "the", "Ünknown", "İstanbul", "ﬁne", "zero\u200bwidth", "Σας"]


@pytest.mark.parametrize("kind", ["vocab.txt", "cased", *SPLITTING])
@settings(max_examples=3, deadline=None, derandomize=True)
@given(words=st.lists(st.sampled_from([*NEW, *SPELLED]), min_size=1))
def test_what_is_unknown_is_added_or_named(folder, kind, words, tmp_path_factory):
    """Every word of the list is then one known piece, or was one."""
    work = tmp_path_factory.mktemp("unknown")
    if kind in SPLITTING:
        (work / "tokenizer.json").write_text(made(kind))
        tokenizer = open_tokenizer(str(work / "tokenizer.json"), None)
    else:
        tokenizer = open_tokenizer(str(folder / "vocab.txt"), kind != "cased")
    config = ModelConfig(**SMALL | dict(vocab_size=tokenizer.vocab_size))
    model = model_of(config, "BertForMaskedLM")._replace(tokenizer=tokenizer)
    (work / "words").write_text("\n".join(words) + "\n")
    said = []
    console = SimpleNamespace(say=said.append, warn=said.append)
    settings_of = ExtendConfig(source="x", to="y", tokens_file=str(work / "words"))
    try:
        new = extension.extend(model, settings_of, TextFormat(), console, None)
    except UserError:  # none is unknown, and each is one piece or a piece inside words
        for word in words:
            ids, _ = tokenizer.tokenize([f" {word}"])
            assert (len(ids) == 1 or word in tokenizer.vocab) and tokenizer.unk_id not in ids
        return
    ids, splits = new.tokenizer.tokenize([f" {word}" for word in words])
    for word, row in zip(words, np.split(ids, splits[1:-1]), strict=True):
        lines = itertools.chain.from_iterable(map(str.splitlines, said))
        named = "".join(line for line in lines if "left as they are" in line or "still sev" in line)
        is_known = len(row) == 1 and new.tokenizer.unk_id not in row
        assert is_known or f" {word.lower()}" in named.lower(), (word, row, said)


ORACLE = """
import json, sys, transformers
folder, lines = sys.argv[1], json.loads(sys.argv[2])
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model, report = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
ids = tokenizer(lines, add_special_tokens=False)["input_ids"]
names = [key for key in report["missing_keys"] if "position_ids" not in key]
print(json.dumps([ids, model.config.vocab_size, len(tokenizer), names]))
"""


@needs_oracle
@pytest.mark.long
def test_transformers_reads_the_extended_folder(folder, tmp_path):
    config = ModelConfig(**SMALL | dict(vocab_size=len(PIECES)))
    tokenizer = open_tokenizer(str(folder / "vocab.txt"), True)
    start = model_of(config, "BertForMaskedLM")._replace(tokenizer=tokenizer)
    write_own(start, str(tmp_path / "start"))
    given = [f"--input_file={folder}/text.txt", "--quiet"]
    assert extend(tmp_path, tmp_path / "new", *given) == 0
    lines = [sentence for document in DOCUMENTS for sentence in document] + ["abcdef xfade Fades"]
    done = subprocess.run(
        [oracle_python(), "-c", ORACLE, str(tmp_path / "new"), json.dumps(lines)],
        env=oracle_environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ids, vocab_size, num_pieces, missing = json.loads(done.stdout.splitlines()[-1])
    new = opened(tmp_path / "new")
    flat, splits = new.tokenizer.tokenize(lines)
    assert ids == [row.tolist() for row in np.split(flat, splits[1:-1])]
    assert vocab_size == num_pieces == new.config.vocab_size == len(PIECES) + 5 and not missing
    tensors = safetensors.numpy.load_file(str(tmp_path / "new" / "model.safetensors"))
    assert len(tensors["bert.embeddings.word_embeddings.weight"]) == vocab_size
