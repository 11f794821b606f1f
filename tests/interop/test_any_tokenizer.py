"""Any tokenizer of Hugging Face's: the ids of transformers, in every job, and back again."""

import base64
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.files.squad import Question
from bert_gpu.finetune.tasks.question_answering import cut_rows
from bert_gpu.finetune.tasks.token_classification import word_pieces
from bert_gpu.inference.masked_words import frame_masked
from bert_gpu.interop.tokenizer_rules import find_casing
from bert_gpu.interop.tokenizers import load_tokenizer, tokenizer_files
from bert_gpu.model.config import ModelConfig
from bert_gpu.text.framing import frame
from bert_gpu.text.tokenizers import basic
from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer, learn_bpe
from bert_gpu.text.tokenizers.offsets import locate_pieces
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.sentence_piece import count_words, learn_sentencepiece
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from bert_gpu.text.vocabulary.wordpiece_learner import count_words as count_pieces
from bert_gpu.text.vocabulary.wordpiece_learner import learn_wordpiece
from tests.cli.test_continued import make_data
from tests.finetune.evaluations import form_of
from tests.interop.test_huggingface import needs_oracle, oracle_environment, oracle_python
from tests.interop.test_tokenizer_json import ODD, text_lines
from tests.test_architecture import ROOT

MORE = [
    "a <mask> b<mask> c [MASK] <s> </s> <unk> <pad>",
    "covid-19 [E1] and [E1]s remdesivir",
    " leading blank, \x00 NUL inside a\x00b",
    "東京 にて 中文字 😀👍🏽 🇩🇪",
    "Le garçon à l’école, où ça? ÉTÉ Ünïcödé",
    "",
]
LINES = [*MORE, *ODD]


def lines_of(count):
    return [*LINES, *text_lines(count)]


def special(content, lstrip=False):
    return tokenizers.AddedToken(content, lstrip=lstrip, normalized=False, special=True)


def roberta(lines):
    return learn_bpe(count_words([lines]), 3000, False).decode()


def xlm_roberta(lines):
    """Unigram with SentencePiece's table of characters, as in the public tokenizer.json."""
    content = learn_sentencepiece(count_words([lines[-200:]]), 300, False)
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    table = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Precompiled(base64.b64decode(table))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=2000,
        special_tokens=[*map(special, names), special("<mask>", True)],
        unk_token="<unk>",
        show_progress=False,
    )
    made.train_from_iterator(lines, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    stored = json.loads(made.to_str())
    # scores of float32, as published; with more digits than transformers keeps, ties may differ
    rows = stored["model"]["vocab"]
    stored["model"]["vocab"] = [[piece, round(score, 4)] for piece, score in rows]
    return json.dumps(stored)


def word_piece(lines, lowers, strips, *others):
    vocab = learn_wordpiece(count_pieces([lines], lowers, strips is not False), 2000)
    made = tokenizers.Tokenizer(
        models.WordPiece({piece: index for index, piece in enumerate(vocab)}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.BertNormalizer(True, True, strips, lowers)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.add_special_tokens(
        [*map(special, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")), *others]
    )
    return made.to_str()


def modernbert(lines):
    """Byte-level BPE with pieces for runs of spaces, and the special pieces behind all others."""
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["|||IP_ADDRESS|||", "<|padding|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(lines, trainer)
    made.add_tokens([tokenizers.AddedToken(" " * count) for count in range(24, 1, -1)])
    made.add_special_tokens([*map(special, ("[UNK]", "[CLS]", "[SEP]", "[PAD]"))])
    made.add_special_tokens([special("[MASK]", True)])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(piece, made.token_to_id(piece)) for piece in ("[CLS]", "[SEP]")],
    )
    return made.to_str()


FORMS = {
    "modernbert": (modernbert, "PreTrainedTokenizerFast"),
    "roberta": (roberta, "RobertaTokenizer"),
    "xlm-roberta": (xlm_roberta, "XLMRobertaTokenizer"),
    "added": (
        lambda lines: word_piece(
            lines, True, None, special("[E1]"), tokenizers.AddedToken("covid-19")
        ),
        "BertTokenizer",
    ),
    "accents": (lambda lines: word_piece(lines, True, False), "BertTokenizer"),
    "cased": (lambda lines: word_piece(lines, False, True), "PreTrainedTokenizerFast"),
}


def put(folder, name, lines):
    make, class_name = FORMS[name]
    folder.mkdir()
    (folder / "tokenizer.json").write_text(make(lines))
    settings = dict(tokenizer_class=class_name)
    if name == "accents":  # transformers reads these before the tokenizer.json
        settings |= dict(do_lower_case=True, strip_accents=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(dict(model_type="bert")))
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    work = tmp_path_factory.mktemp("forms")
    lines = [*LINES * 3, *text_lines(500)]
    return {name: put(work / name, name, lines) for name in FORMS}


@needs_oracle
def test_ten_thousand_lines_get_the_ids_of_transformers_before_and_after(folders, tmp_path):
    lines = lines_of(10_000)
    both = {}
    for name, folder in folders.items():
        again = tmp_path / name
        again.mkdir()
        tokenizer = load_tokenizer(folder)
        num_segments = 1 + (tokenizer.separators == 1)
        files = tokenizer_files(tokenizer, ModelConfig(type_vocab_size=num_segments), True)
        for file, content in files.items():
            (again / file).write_bytes(content)
        (again / "config.json").write_text(json.dumps(dict(model_type="bert")))
        both |= {folder: tokenizer, str(again): load_tokenizer(str(again))}
    (tmp_path / "lines.json").write_text(json.dumps(lines))
    script = [oracle_python(), ROOT / "tests" / "interop" / "tokenizers_oracle.py"]
    subprocess.run(
        [*script, tmp_path / "lines.json", tmp_path / "out.json", *both],
        env=oracle_environment(tmp_path),
        check=True,
    )
    theirs = json.loads((tmp_path / "out.json").read_text())
    for folder, tokenizer in both.items():
        ids, splits = tokenizer.tokenize(lines)
        for line, mine, row in zip(
            lines, np.split(ids, splits[1:-1]), theirs[folder]["ids"], strict=True
        ):
            # by Google's rules, which ours has, a final sigma is another letter, "[MASK]" three
            # words, and a word of 101 to 200 characters is known
            odd = "Σ" in line or "[MASK]" in line or any(len(word) > 100 for word in line.split())
            is_googles = odd and not isinstance(tokenizer, HuggingFaceTokenizer)
            assert is_googles or mine.tolist() == row, (folder, line)
        specials = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id]
        # their class has no names, nor their settings
        is_unnamed = folder in (folders["cased"], folders["modernbert"])
        assert theirs[folder]["specials"] == ([None] * 4 if is_unnamed else specials)
        (masked,) = frame_masked(tokenizer, ["a [MASK] ."])[:1]
        name = tokenizer.vocab[tokenizer.mask_id]
        assert frame_masked(tokenizer, [f"a {name} ."])[0].tolist() == masked.tolist()
        assert (masked == tokenizer.mask_id).sum() == 1
        pair = frame(tokenizer, lines[:1], lines[1:2], 12)
        assert len(pair.ids) == len(theirs[folder]["pair"][0]) == 12


OURS = {"accents"}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_opened_with_its_casing_frame_and_word_starts(folders, name):
    tokenizer = load_tokenizer(folders[name])
    assert isinstance(tokenizer, HuggingFaceTokenizer) == (name not in OURS)
    lowers = name in ("added", "accents")
    assert tokenizer.do_lower_case == lowers == find_casing(folders[name]).is_lower
    assert tokenizer.strip_accents == (name != "accents")
    pairs = tokenizer.separators
    assert pairs == (2 if "roberta" in name else 1)
    if name not in OURS:
        with pytest.raises(UserError, match="lower-cases the text|keeps capital letters"):
            load_tokenizer(folders[name], do_lower_case=not lowers)
    specials = [tokenizer.cls_id, tokenizer.sep_id]
    framed = frame(tokenizer, ["a b"], ["c d " * 40], 24)
    separated = [specials[1]] * pairs
    assert len(framed.ids) == 24 and framed.ids[0] == specials[0] and framed.ids[-1] == specials[1]
    before = int(framed.first_lengths[0])
    assert framed.ids[before - pairs : before].tolist() == separated
    assert framed.ids.tolist().count(specials[1]) == pairs + 1
    text = "The house, of the naïve men: 25,000 trees"
    ids, _ = tokenizer.tokenize([text])
    ((pieces, begins, ends),) = locate_pieces(tokenizer, [text])
    assert pieces.tolist() == ids.tolist()
    starts = {
        int(begin)
        for begin, is_start in zip(begins, tokenizer.word_starts(ids), strict=True)
        if is_start
    }
    words = {i for i in range(len(text)) if text[i] != " " and (i == 0 or text[i - 1] == " ")}
    marks = {i for i, letter in enumerate(text) if letter in ",:"}
    if name in ("roberta", "modernbert"):
        words -= {0}  # no space before it
    assert words | marks <= starts
    lettered = {i for i in starts - words - marks if text[i - 1] not in ",:"}
    assert lettered <= {0}
    covered = {i for begin, end in zip(begins, ends, strict=True) for i in range(begin, end)}
    assert {i for i, letter in enumerate(text) if letter != " "} <= covered
    counts = word_pieces(tokenizer, text.split())[1]
    assert counts.sum() >= len(text.split()) and counts.min() >= 1


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta"])
def test_words_begin_where_those_of_bert_do(folders, name):
    """After punctuation too, so that the first word of a sentence, which has no space before it, is
    not joined to the full stop of the sentence before.
    """
    tokenizer = load_tokenizer(folders[name])
    sentences = ["Houses (of Kensington) aren't 25,000.", '"Trees," he wrote!', "Iron: zyx-wvu?"]
    ids = tokenizer.tokenize(sentences)[0]
    located = locate_pieces(tokenizer, sentences)
    starts = np.split(tokenizer.word_starts(ids), np.cumsum([len(row[0]) for row in located])[:-1])
    for number, (sentence, (_, begins, _), found) in enumerate(
        zip(sentences, located, starts, strict=True)
    ):
        (words,) = basic.split_words([sentence], False)
        places, end = [], 0
        for word in words:
            places.append(sentence.index(word, end))
            end = places[-1] + len(word)
        # a piece of a space alone begins the word after it
        is_first = np.diff(begins, prepend=-1) > 0
        expected = (np.isin(begins, places) & is_first).tolist()
        assert found[number == 0 :].tolist() == expected[number == 0 :], sentence


def test_a_word_alone_has_the_pieces_that_it_has_in_a_text(folders):
    tokenizer = load_tokenizer(folders["roberta"])
    ids, _ = tokenizer.tokenize([" of the house and trees"])
    assert word_pieces(tokenizer, "of the house and trees".split())[0].tolist() == ids.tolist()


@pytest.mark.parametrize("lowers", [True, False])
def test_a_tokenizer_json_alone_states_its_casing(folders, tmp_path, lowers):
    path = tmp_path / "tokenizer.json"
    path.write_text(word_piece(["The house"] * 9, lowers, None))
    tokenizer = load_tokenizer(None, str(path))
    assert isinstance(tokenizer, WordPieceTokenizer) and tokenizer.do_lower_case == lowers
    assert load_tokenizer(None, f"{folders['roberta']}/tokenizer.json").kind == "BPE"


def test_the_mask_of_a_tokenizer_and_ours_both_mean_it(folders):
    tokenizer = load_tokenizer(folders["roberta"])
    rows = [
        frame_masked(tokenizer, [f"of the {mask} ."])[0].tolist() for mask in ("[MASK]", "<mask>")
    ]
    assert rows[0] == rows[1] and rows[0].count(tokenizer.mask_id) == 1
    assert tokenizer.pieces(rows[0])[2:4] == ["Ġthe", "<mask>"]  # which takes the space before it


def test_pairs_of_another_segment_get_a_rule_of_their_own(folders, tmp_path):
    tokenizer = load_tokenizer(folders["roberta"])
    for segments, second in ((1, 0), (2, 1)):
        files = tokenizer_files(tokenizer, ModelConfig(type_vocab_size=segments), True)
        is_same = files["tokenizer.json"] == tokenizer.files()["tokenizer.json"]
        assert is_same == (second == 0)
        written = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
        pair = written.encode("a", "b")
        assert pair.type_ids == [0] * 4 + [second] * 2
        framed = frame(tokenizer, ["a"], ["b"], 9)
        assert pair.ids == framed.ids.tolist() and framed.first_lengths[0] == 4
        for file, content in files.items():
            (tmp_path / file).write_bytes(content)
        again = load_tokenizer(str(tmp_path))
        assert again.identity == tokenizer.identity and again.second_segment == second


def test_questions_and_contexts_are_framed_as_pairs(folders):
    tokenizer = load_tokenizer(folders["roberta"])
    context = "The naïve men, of the house, built trees of iron. " * 3
    answer = "trees of iron"
    question = Question("1", "Who built it?", 0, (answer,), context.index(answer))
    located = locate_pieces(tokenizer, [context])
    cut = cut_rows(form_of(tokenizer, 32), [[(0, question)]], located, 16, 8)
    rows = np.split(cut.ids, np.cumsum(cut.lengths)[:-1])
    first, last = tokenizer.cls_id, tokenizer.sep_id
    asked, _ = tokenizer.tokenize([question.text])
    assert len(rows) > 1 and cut.lengths.max() == 32
    for row, before, (start, end) in zip(rows, cut.firsts, cut.labels, strict=True):
        assert row[:before].tolist() == [first, *asked[:8], last, last] and row[-1] == last
        assert (row == last).sum() == 3
        if start:
            assert tokenizer.decode(row[start : end + 1]).strip() == answer
    assert (cut.labels > 0).any()


LEARN = """
import sys
from bert_gpu.text.tokenizers.hugging_face import learn_bpe
counts = dict(the=9, then=5, there=4, thy=3, **{f"w{i:x}": i % 7 + 1 for i in range(400)})
counts = dict(sorted(counts.items(), reverse=int(sys.argv[1])))
sys.stdout.buffer.write(learn_bpe(counts, 500, False))
"""


@pytest.mark.long
def test_a_learnt_bpe_is_robertas_and_the_same_in_every_process():
    made = [
        subprocess.run(
            [sys.executable, "-c", LEARN, order],
            env={**os.environ, "TOKENIZERS_PARALLELISM": parallel, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for order, parallel in (("0", "true"), ("1", "false"))
    ]
    assert made[0] == made[1]
    stored = json.loads(made[0])
    ids = stored["model"]["vocab"]
    assert [*ids][:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] and 261 < len(ids) <= 500
    assert stored["post_processor"]["type"] == "RobertaProcessing" and "Ġthe" in ids
    with pytest.raises(UserError, match="at least 261"):
        learn_bpe(dict(a=2), 260, False)


@pytest.mark.long
@pytest.mark.parametrize("name", ["roberta", "added", "accents"])
def test_a_data_set_is_the_same_for_any_workers_and_keeps_its_tokenizer(folders, tmp_path, name):
    (tmp_path / "text.txt").write_text("\n".join([*LINES, "", *text_lines(300)]))
    made = []
    for workers in ("1", "2"):
        out = tmp_path / workers
        flags = [f"--vocab_file={folders[name]}", "--objective=full_sentences", "--quiet"]
        flags += [f"--num_workers={workers}", "--do_whole_word_mask", "--num_shards=2"]
        assert make_data(tmp_path / "text.txt", out, *flags) == 0
        made.append({path.name: path.read_bytes() for path in out.iterdir() if path.is_file()})
    assert made[0] == made[1]
    info = json.loads(made[0]["dataset.json"])
    assert info["vocab_file"] == ("vocab.txt" if name in OURS else "tokenizer.json")
    strips = info["settings"].get("strip_accents", True)
    written = open_tokenizer(
        str(tmp_path / "1" / info["vocab_file"]), info["do_lower_case"], strips
    )
    assert written.identity == load_tokenizer(folders[name]).identity == info["tokenizer"]


def test_pairs_need_a_tokenizer_of_one_separator_and_flags_must_agree(folders, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("\n".join(text_lines(50)))
    vocabulary = f"--vocab_file={folders['roberta']}/tokenizer.json"
    for flags, answer in (
        ([vocabulary, "--objective=sop"], "full_sentences"),
        (["--tokenization=BPE"], "full_sentences"),
        ([vocabulary, "--do_lower_case", "--objective=packed"], "--do_lower_case"),
        (["--tokenization=BPE", "--vocab_file=a.txt"], ".json"),
    ):
        assert make_data(tmp_path / "text.txt", tmp_path / "data", *flags) == 2
        err = capsys.readouterr().err
        assert answer in err and err.count("\n") == 1, err


PROBLEMS = ["is no tokenizer.json", r"\[CLS\], \[SEP\] missing", "frames texts otherwise"]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_broken_tokenizer_json_is_one_clear_line(tmp_path, problem):
    made = tokenizers.Tokenizer(
        models.WordLevel({"<unk>": 0, "<pad>": 1, "<mask>": 2, "a": 3}, "<unk>")
    )
    if "frames" in problem:
        made.add_tokens(["<s>", "</s>"])
        made.post_processor = processors.TemplateProcessing("</s> $A", "</s> $A $B", [("</s>", 5)])
    content = dict(model=dict(type="BPE")) if "is no" in problem else json.loads(made.to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=problem) as caught:
        load_tokenizer(str(tmp_path))
    assert len(str(caught.value)) <= 300 and "\n" not in str(caught.value)
