"""What transformers reads of a tokenizer: the same ids as ours, or no file at all."""

import dataclasses
import io
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece

from bert_gpu.base.errors import UserError
from bert_gpu.interop import huggingface
from bert_gpu.interop.tokenizer_json import tokenizer_json
from bert_gpu.interop.tokenizer_rules import find_casing
from bert_gpu.interop.tokenizers import load_tokenizer, tokenizer_files
from bert_gpu.model.config import ModelConfig
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.sentence_piece import count_words, learn_sentencepiece
from bert_gpu.text.vocabulary.wordpiece_learner import count_words as count_pieces
from bert_gpu.text.vocabulary.wordpiece_learner import learn_wordpiece
from tests.interop.test_huggingface import needs_oracle, oracle_environment, oracle_python
from tests.interop.test_leaving import OF_OURS, model_of
from tests.test_architecture import ROOT

# what tokenizers treat in ways of their own
ODD = [
    "Straße groß ﬁne ﬂow Ⅳ ½ … № ™ naïve café déjà ÅNGSTRÖM",
    "Σίσυφος ΟΔΟΣ ΑΣ. ΣΑΣ ΑΣ.Α ΑΣ’ Σ İstanbul IŞIK Ꭰ Ꭱ ꭰ ǅ ẞ ŉ ΐ",
    "日本語 テスト 한국어 ｶﾞｷﾞ パーティー～です ①②③ ㎏ ㍍ नमस्ते שָׁלוֹם",
    "a\u00a0b\u200bc\u200d d\ufeffe tab\tand\x01control\x7f 😀👩‍👩‍👧 🇩🇪",
    "  leading and trailing  with   spaces ",
    "e\u0323\u0302 a\u0308 \u1112\u1161\u11ab don't $5.00 #tag @user a_b-c [UNKNOWN]",
    f"{'x' * 99} {'y' * 150} {'z' * 201}",
]
CONFIG = ModelConfig(max_position_embeddings=24)


def text_lines(count):
    lines = (ROOT / "sample_text.txt").read_text().splitlines()
    return [line for line in lines if line][:count]


def make_vocabularies(folder, documents, size, casings=(True, False)):
    """[(path, do_lower_case)] of WordPiece and SentencePiece vocabularies, uncased and cased."""
    made = []
    for lowers in casings:
        path = folder / f"{lowers}.txt"
        pieces = learn_wordpiece(count_pieces(documents, lowers), size)
        path.write_text("".join(f"{piece}\n" for piece in pieces))
        made.append((path, lowers))
        path = folder / f"{lowers}.model"
        path.write_bytes(learn_sentencepiece(count_words(documents), size, lowers))
        made.append((path, None))
    return made


def put(folder, tokenizer, config=CONFIG):
    folder.mkdir()
    for name, content in tokenizer_files(tokenizer, config).items():
        (folder / name).write_bytes(content)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return str(folder)


def score(model, ids):
    return sum(model.get_score(index) for index in ids)


@needs_oracle
def test_ten_thousand_lines_get_the_same_ids_there(tmp_path):
    """The odd ones among them are in the vocabularies, so that they are not all [UNK]. Only where
    SentencePiece finds two ways equally probable may the other be chosen.
    """
    lines = [*ODD, *text_lines(10_000)]
    vocabularies = make_vocabularies(tmp_path, [lines[:4000], *[ODD] * 9], 6000)
    vocabularies.append((tmp_path / "False.model", True))  # lower-cases before a cased model
    tokenizers = {}
    for index, (path, lowers) in enumerate(vocabularies):
        tokenizer = open_tokenizer(str(path), lowers)
        tokenizers[put(tmp_path / f"model{index}", tokenizer)] = tokenizer
    (tmp_path / "lines.json").write_text(json.dumps(lines))
    script = [pathlib.Path(__file__).parent / "tokenizers_oracle.py", tmp_path / "lines.json"]
    done = subprocess.run(
        [oracle_python(), *map(str, script), str(tmp_path / "found.json"), *tokenizers],
        env=oracle_environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    for folder, tokenizer in tokenizers.items():
        theirs, (ids, splits) = found[folder], tokenizer.tokenize(lines)
        assert theirs["limit"] == theirs["cut"] == 24 and theirs["masked"] == 1
        assert theirs["specials"] == [0, 1, 2, 3]
        assert sorted(set(theirs["pair"][1])) == [0, 1] and len(theirs["pair"][0]) == 12
        others = []
        for index, line in enumerate(lines):
            ours = ids[splits[index] : splits[index + 1]].tolist()
            if ours != theirs["ids"][index]:
                others.append((line, ours, theirs["ids"][index]))
        for line, ours, there in others:
            assert hasattr(tokenizer, "lowers_first"), (line, ours, there)
            assert tokenizer.decode(ours) == tokenizer.decode(there), line
            model = tokenizer._model
            np.testing.assert_allclose(score(model, ours), score(model, there), rtol=1e-5)
        assert len(others) <= 5


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A tokenizer of each kind."""
    folder = tmp_path_factory.mktemp("vocabularies")
    vocabularies = make_vocabularies(folder, [text_lines(60)], 300, casings=(True,))
    return [open_tokenizer(str(path), lowers) for path, lowers in vocabularies]


def test_a_folder_says_how_long_a_text_may_be(pieces, tmp_path):
    for index, tokenizer in enumerate(pieces):
        folder = put(tmp_path / str(index), tokenizer)
        said = json.loads((tmp_path / str(index) / "tokenizer_config.json").read_text())
        names = json.loads((tmp_path / str(index) / "special_tokens_map.json").read_text())
        assert said["model_max_length"] == 24 and said.items() >= names.items()
        assert names["mask_token"] == "[MASK]" and names["unk_token"] == "[UNK]"
        assert load_tokenizer(folder).identity == tokenizer.identity


def test_the_files_are_the_same_bytes_in_every_process(pieces, tmp_path):
    """A set would order strings by a hash that two processes seed differently."""
    folders = [put(tmp_path / str(index), tokenizer) for index, tokenizer in enumerate(pieces)]
    code = (
        "import json, sys\n"
        "from bert_gpu.interop.tokenizers import load_tokenizer, tokenizer_files\n"
        "from bert_gpu.model.config import ModelConfig\n"
        "config = ModelConfig(max_position_embeddings=24)\n"
        "found = [tokenizer_files(load_tokenizer(path), config) for path in sys.argv[1:]]\n"
        "texts = [{name: data.hex() for name, data in files.items()} for files in found]\n"
        "print(json.dumps(texts))"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", code, *folders],
        env=dict(os.environ, PYTHONHASHSEED=seed),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    texts = json.loads(done.stdout)
    found = [{name: bytes.fromhex(data) for name, data in files.items()} for files in texts]
    assert found == [tokenizer_files(tokenizer, CONFIG) for tokenizer in pieces]


def test_settings_that_transformers_has_saved_anew_are_read(pieces, tmp_path):
    """It keeps our checksum, which is then of another file."""
    folder = put(tmp_path / "model", pieces[0])
    path = tmp_path / "model" / "tokenizer_config.json"
    said = json.loads(path.read_text()) | dict(backend="tokenizers")
    path.write_text(json.dumps(said))
    with pytest.raises(UserError, match="does not match its checksum"):
        load_tokenizer(folder)
    path.write_text(json.dumps(said | dict(is_local=True)))
    (tmp_path / "model" / "vocab.txt").unlink()
    assert load_tokenizer(folder).identity == pieces[0].identity
    path.unlink()  # then tokenizer.json alone tells the casing
    assert find_casing(folder) == (True, "")


@pytest.mark.parametrize("num_segments, second", [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_pairs_stay_inside_the_models_segments(pieces, num_segments, second):
    content = json.loads(tokenizer_json(pieces[0], num_segments))
    pair = content["post_processor"]["pair"]
    assert [list(part.values())[0]["type_id"] for part in pair] == [0, 0, 0, second, second]


def train(folder, **options):
    """A SentencePiece model of another tool."""
    model = io.BytesIO()
    settings = dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece="[PAD]", unk_piece="[UNK]")
    settings |= dict(control_symbols=["[CLS]", "[SEP]", "[MASK]"], minloglevel=2, vocab_size=200)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text_lines(200)), model_writer=model, **settings | options
    )
    (folder / "sentencepiece.model").write_bytes(model.getvalue())
    return open_tokenizer(str(folder / "sentencepiece.model"), None)


@pytest.mark.parametrize(
    "options, reason",
    [
        (dict(model_type="bpe"), "is not a unigram model"),
        (dict(user_defined_symbols=["<user>"]), "has user-defined or unused pieces"),
        (dict(add_dummy_prefix=False), "treats spaces in a way of its own"),
        (dict(remove_extra_whitespaces=False), "treats spaces in a way of its own"),
    ],
)
def test_a_tokenizer_that_has_no_equal_there_is_not_written(options, reason, tmp_path):
    """An export refuses it; a training, which must end, leaves it out, and transformers says so."""
    tokenizer = train(tmp_path, **options)
    config = dataclasses.replace(OF_OURS["quick"], vocab_size=tokenizer.vocab_size)
    model = model_of(config, "BertForMaskedLM")._replace(tokenizer=tokenizer)
    with pytest.raises(UserError, match=reason) as caught:
        huggingface.write(model, str(tmp_path / "there"))
    assert len(str(caught.value)) <= 300 and not (tmp_path / "there").exists()
    huggingface.write_own(model, str(tmp_path / "here"))
    assert not (tmp_path / "here" / "tokenizer.json").exists()
    said = json.loads((tmp_path / "here" / "tokenizer_config.json").read_text())
    assert said["tokenizer_class"] == "SentencePieceTokenizer"
    assert load_tokenizer(str(tmp_path / "here")).identity == tokenizer.identity
