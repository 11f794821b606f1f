"""Words of scripts without spaces, with marks between them: the tokens are those of the text that
has no marks, whole words are masked together, and none across a mark.
"""

import io
import random

import numpy as np
import pytest

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.data import build
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.word_marks import MARK, word_starts
from tests.data.test_build import config, content, run

TEXTS = dict(
    thai="ภาษา|ไทย|เป็น|ภาษา|ที่|มี|เสียง|วรรณยุกต์ การ|เขียน|ไม่|เว้น|วรรค|ระหว่าง|คำ",
    chinese="今天|天气|很|好|，|我们|去|公园|散步|。|他|是|北京大学|的|学生|。",
    japanese="私|は|東京|タワー|を|見|まし|た|。|コンピュータ|の|本|を|読む|。",
)
# Each word has characters of its own, so that a token says of which word it is.
LETTERS = [*map(chr, range(0x4E00, 0x4E3C)), *map(chr, range(0x0E01, 0x0E2B))]
WORDS = ["".join(LETTERS[start : start + 3]) for start in range(0, 102, 3)]
OWNERS = {letter: number for number, word in enumerate(WORDS) for letter in word}


def write(folder, separator="\u200b"):
    """Writes marked.txt and plain.txt: 60 documents of words, no word beside itself."""
    draws, marked = random.Random(1), []
    for _ in range(60):
        numbers = [draws.randrange(len(WORDS))]
        while len(numbers) < 72:
            number = draws.randrange(len(WORDS))
            numbers += [number] * (number != numbers[-1])
        words = [WORDS[number] for number in numbers]
        lines = [separator.join(words[first : first + 12]) for first in range(0, 72, 12)]
        marked.append("\n".join(lines))
    text = "\n\n".join(marked) + "\n"
    (folder / "marked.txt").write_text(text)
    (folder / "plain.txt").write_text(text.replace(separator, ""))


KINDS = {
    "WordPiece": "vocab.txt",
    "SentencePiece": "sentencepiece.model",
    "BPE": "tokenizer.json",
}
JOBS = [
    ("WordPiece", dict(masking="static", objective="nsp")),
    ("WordPiece", dict(masking="dynamic", objective="packed", max_ngram_size=2)),
    ("SentencePiece", dict(masking="dynamic", objective="nsp")),
    ("BPE", dict(masking="static", objective="packed")),
]


@pytest.mark.parametrize("tokenization, settings", JOBS, ids=str)
def test_tokens_are_those_of_the_plain_text_and_words_are_masked_whole(
    tmp_path, tokenization, settings
):
    write(tmp_path)
    size = dict(WordPiece=700, SentencePiece=130, BPE=400)[tokenization]
    settings = dict(settings, tokenization=tokenization, do_whole_word_mask=True, vocab_size=size)
    rows = {}
    for name in ("plain", "marked"):
        folder = tmp_path / name
        run(folder, tmp_path / f"{name}.txt", **settings, masked_lm_prob=0.3, num_workers=1)
        data = Dataset(InputConfig(input_file=str(folder / "*.tfrecord")))
        tokenizer = open_tokenizer(str(folder / KINDS[tokenization]), True)
        reader = data.reader("train", tokenizer, 1)
        batch = reader.read(np.arange(len(reader)), np.zeros(len(reader), int))
        is_masked = np.zeros(batch["input_ids"].shape, bool)
        for row, places, ids, weights in zip(
            range(len(is_masked)),
            *(batch[f"masked_lm_{part}"] for part in ("positions", "ids", "weights")),
            strict=True,
        ):
            is_masked[row, places[weights > 0]] = True
            batch["input_ids"][row, places[weights > 0]] = ids[weights > 0]
        rows[name] = batch["input_ids"]
    vocabularies = {
        (tmp_path / name / KINDS[tokenization]).read_bytes() for name in ("plain", "marked")
    }
    assert len(vocabularies) == 1 and (rows["plain"] == rows["marked"]).all()
    whole = broken = 0
    for ids, masked in zip(rows["marked"].tolist(), is_masked, strict=True):
        owners = [owner_of(tokenizer, number) for number in ids]
        ends = [i for i in range(1, len(ids)) if owners[i] != owners[i - 1]]
        for first, last in zip([0, *ends], [*ends, len(ids)], strict=True):
            if owners[first] is not None:
                broken += 0 < masked[first:last].sum() < last - first
                whole += last - first > 1 and masked[first:last].all()
    # pieces of bytes that are frequent beside each other cross the words
    assert tokenization == "BPE" or (whole > 30 and not broken)


def test_any_number_of_workers_writes_the_same_bytes(tmp_path):
    write(tmp_path)
    contents = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        settings = dict(masking="dynamic", objective="packed", do_whole_word_mask=True)
        settings |= dict(num_workers=number, num_shards=2, vocab_size=400)
        run(folder, tmp_path / "marked.txt", **settings)
        contents.append({x: y for x, y in content(folder).items() if x != "dataset.json"})
    assert contents[0] == contents[1]


def owner_of(tokenizer, number):
    """The word that a piece is part of, None for others."""
    piece = tokenizer.vocab[number]
    found = {OWNERS[letter] for letter in piece if letter in OWNERS}
    return found.pop() if len(found) == 1 else None


@pytest.mark.parametrize("script", TEXTS)
def test_words_of_real_text(tmp_path, script):
    """Chinese characters are pieces of their own, which begin words without marks."""
    words = TEXTS[script].split("|")
    pieces = sorted({letter for word in words for letter in word if letter.strip()})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *pieces, *(f"##{x}" for x in pieces)]))
    tokenizer = open_tokenizer(str(tmp_path / "vocab.txt"), False)
    line = MARK.decode().join(words)
    ids, splits = tokenizer.tokenize(["".join(words), "one"])
    starts = word_starts(tokenizer, [line.encode(), b"one"], MARK, ids, splits)
    found, spelled = [], "".join(words).replace(" ", "")
    for index, is_start in zip(ids[: splits[1]], starts, strict=False):
        piece = tokenizer.vocab[index].removeprefix("##")
        found += [piece] if is_start else []
        found[-1] += "" if is_start else piece
    assert found == [part for word in words for part in word.split()]
    assert "".join(found) == spelled
    assert word_starts(tokenizer, ["".join(words).encode(), b"one"], MARK, ids, splits) is None


def test_another_mark_and_the_line_that_names_it(tmp_path):
    write(tmp_path, "|")
    told = {}
    for name, more in dict(marked=dict(word_separator="|"), plain={}).items():
        output = io.StringIO()
        job = build.open_job(
            config(tmp_path / name, tmp_path / f"{name}.txt", vocab_size=400, **more),
            False,
            console=Console(stream=output),
        )
        build.run_job(job)
        told[name] = output.getvalue()
    marked, plain = ((tmp_path / name / "vocab.txt").read_bytes() for name in ("marked", "plain"))
    assert marked == plain
    hint = "words: the script of the text has no spaces between them"
    assert hint in told["plain"] and hint not in told["marked"]
    with pytest.raises(UserError, match="--word_separator=ab: must be one character"):
        config(tmp_path, "x", word_separator="ab")
