"""What a data job says of its input before it works: the format, the validation rows, and warnings,
which --strict makes errors.
"""

import json
import re
import shutil

import numpy as np
import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.base.errors import UserError
from bert_gpu.data import advice, build, validation
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.text import corpus

# as words, because sentences that differ in digits alone count as copies
NUMBERS = [f"{begin}{end}" for begin in "bdfgk" for end in "aeiouyrl"]
SENTENCES = [
    f"The {kind} of the house had {number} doors, and the wind came through every one of them."
    for number in NUMBERS
    for kind in ("front", "back", "side")
]
DOCUMENTS = "\n\n".join("\n".join(SENTENCES[i : i + 6]) for i in range(0, 120, 6))
LINES = "\n".join(f"{sentence} {sentence}" for sentence in SENTENCES)
FLAGS = ["--dupe_factor=1", "--max_seq_length=32", "--num_workers=1"]


def call(folder, text, *flags):
    (folder / "in.txt").write_text(text)
    output = () if "--output_dir" in " ".join(flags) else (f"--output_dir={folder}/out",)
    size = [] if any("--vocab_file" in flag for flag in flags) else ["--vocab_size=200"]
    files = [f"--input_file={folder}/in.txt", *output]
    return command(["bert-gpu", "data", *files, *size, *FLAGS, *flags])


def vocabulary(folder, *words):
    path = folder / "words.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    return f"--vocab_file={path}"


COMMON = ["the", "of", "house", "had", "doors", ",", "and", "wind", "came", "through", "every"]
COMMON += ["one", "them", ".", "front", "back", "side", *NUMBERS]


def test_the_first_lines(tmp_path, capsys):
    assert call(tmp_path, DOCUMENTS) == 0
    output = capsys.readouterr()
    first, *others = output.out.splitlines()
    (second,) = [line for line in others if line.startswith("validation: ")]
    assert first.startswith("input: 1 file, 9.8 kB, lines: one sentence a line") and not output.err
    assert first.endswith("documents end at blank lines (as its first lines show)")
    assert second.startswith("validation: 2 of 20 documents (10.0% of the text), about ")
    assert second.endswith("too few for a steady eval_loss; more text makes more")
    settings = json.loads((tmp_path / "out" / "dataset.json").read_text())["settings"]
    assert settings["input_format"] == "lines" and "strict" not in settings
    # what was decided is what the flag says
    assert call(tmp_path, DOCUMENTS, "--input_format=lines", "--strict") == 0
    assert "nothing to do" in capsys.readouterr().out


def test_the_input_is_said_before_it_is_read(tmp_path, capsys, monkeypatch):
    """Reading a large one takes minutes, of which progress is shown."""
    said = []

    def read_file(read, checksums, report, path, name):
        said.append(capsys.readouterr().out)
        checksums[path] = 0
        report(10**6)
        yield from read(path, name)

    monkeypatch.setattr(build, "read_file", read_file)
    monkeypatch.setattr(build, "LARGE_TEXT_BYTES", 0)
    text = f"{DOCUMENTS}\n\n" * 20
    assert call(tmp_path, text, vocabulary(tmp_path, *COMMON)) == 0
    assert said[0].startswith("input: 1 file, ")
    output = capsys.readouterr().out
    assert "looking for documents: 0.2/0.2 MB " in output
    # of a finished data set only the checksums are compared
    assert call(tmp_path, text, vocabulary(tmp_path, *COMMON)) == 0
    assert re.search(r"computing checksums: [\d.]+/[\d.]+ MB ", capsys.readouterr().out)


@pytest.mark.parametrize(
    "text, flags, part",
    [
        ("\n".join(SENTENCES), ["--objective=sop"], "a document has 120 lines"),
        ("\n\n".join(SENTENCES), [], "100% of the pairs come from a single sentence"),
        (
            "\n".join('{"text": "x"}' for _ in range(9)),
            ["--objective=sop", "--input_format=lines"],
            "look like JSON",
        ),
        (
            "\n".join(f"<p>{text} {text}</p>" for text in SENTENCES),
            ["--objective=sop"],
            "look like markup",
        ),
        (
            "\n".join(map(" ".join, zip(SENTENCES[::2], SENTENCES[1::2], strict=True))),
            ["--objective=sop", "--language=xx"],
            "--language=xx",
        ),
        (DOCUMENTS + " ещё" * 40, [], "such as 'ещё' -> 'еще'; give --nostrip_accents"),
        (f"{DOCUMENTS}\n" + "Next page.\nPage 7.\n" * 30, [], "30 of 'Next page.'; remove"),
        (DOCUMENTS, [vocabulary, *COMMON[3:]], "the commonest unknown words: 'the', 'of', 'house'"),
        (DOCUMENTS, [vocabulary, *COMMON, "The"], "--nodo_lower_case"),
        (DOCUMENTS, [vocabulary, *COMMON, "--nodo_lower_case"], "no piece of the vocabulary"),
        (f"{DOCUMENTS}\n\n" * 3, ["--drop_duplicates"], "40 of 60 documents equal an earlier one"),
        (DOCUMENTS, ["--max_tokens_per_character=.1"], "drops 100% of the documents"),
    ],
)
def test_warnings_and_strict(tmp_path, capsys, text, flags, part):
    if vocabulary in flags:
        words = [word for word in flags[1:] if not word.startswith("--")]
        flags = [flag for flag in flags[1:] if flag.startswith("--")]
        flags.append(vocabulary(tmp_path, *words))
    assert call(tmp_path, text, *flags, "--strict") == 2
    error = capsys.readouterr().err
    assert error.startswith("--strict: ") and part in error and error.count("\n") == 1
    assert len(error) <= 301
    if "duplicates" in "".join(flags):
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".pretrain.lock"]
    else:
        assert not (tmp_path / "out").exists()
    code = call(tmp_path, text, *flags)
    error = capsys.readouterr().err
    assert f"warning: {error[9:]}" == error and part in error
    assert code == (2 if "character" in "".join(flags) else 0), "nothing is left"


def test_strict_removes_no_finished_data_set(tmp_path, capsys):
    """What it refuses by all of the text, copies, is known before --overwrite removes anything."""
    text = f"{DOCUMENTS}\n\n" * 3
    assert call(tmp_path, text, vocabulary(tmp_path, *COMMON)) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    flags = [vocabulary(tmp_path, *COMMON), "--overwrite", "--strict", "--drop_duplicates"]
    assert call(tmp_path, text, *flags) == 2
    assert "equal an earlier one" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_files_of_a_folder_that_are_no_text_are_warned_of(tmp_path, capsys):
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "a.txt").write_text(f"{DOCUMENTS}\n\n")
    for name in ("b.pdf", "c.html", "LICENSE", "sentencepiece.model"):  # the last one is no text's
        (folder / name).write_text("x")
    flags = [f"--input_file={folder}", f"--output_dir={folder}", *FLAGS]
    flags.append(vocabulary(tmp_path, *COMMON))
    warning = "left out: 3 files of other kinds (.html, .pdf, no ending); extract their text"
    assert command(["bert-gpu", "data", *flags, "--strict"]) == 2
    assert warning in capsys.readouterr().err and not list(folder.glob("*.tfrecord"))
    for flag in ("--quiet", "--overwrite"):  # then its own files are there, too
        assert command(["bert-gpu", "data", *flags, flag]) == 0
        assert warning in capsys.readouterr().err


@pytest.mark.parametrize("pattern", ["", "*.txt", "*"], ids=["folder", "glob", "all"])
def test_own_files_are_no_input(tmp_path, capsys, pattern):
    """So that the folder of the text may be that of the output."""
    folder = tmp_path / "inout"
    folder.mkdir()
    (folder / "in.txt").write_text(DOCUMENTS)
    words = tmp_path / "words.txt"
    vocabulary(tmp_path, *COMMON)
    words.rename(folder / "vocab.txt")
    flags = [f"--output_dir={folder}", f"--vocab_file={folder}/vocab.txt", *FLAGS]

    def run(path, *more):
        return command(["bert-gpu", "data", f"--input_file={path}", *flags, *more])

    assert run(f"{folder}/{pattern}") == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("input: 1 file, 9.8 kB, lines: ")
    assert second.startswith("input: left out") and second.endswith(f"{folder}/vocab.txt")
    shards = {path.name: path.read_bytes() for path in folder.glob("*.tfrecord")}
    assert run(f"{folder}/{pattern}") == 0 and "nothing to do" in capsys.readouterr().out
    assert run(f"{folder}/{pattern}", "--overwrite") == 0
    assert {path.name: path.read_bytes() for path in folder.glob("*.tfrecord")} == shards
    capsys.readouterr()
    for name in ("vocab.txt", "dataset.json"):
        assert run(f"{folder}/{name}", "--overwrite") == 2
        error = capsys.readouterr().err
        assert (
            f"{folder}/{name}: was written by bert-gpu and is not text" in error
            and error.count("\n") == 1
        )
    (folder / "in.txt").unlink()
    assert run(f"{folder}/{pattern}", "--overwrite") == 2
    assert "name files with text" in capsys.readouterr().err and [*folder.glob("*.tfrecord")]


def test_enough_validation_rows(tmp_path, capsys):
    """If the text has them; and of a large one not more than are needed."""
    text = "\n\n".join("\n".join(SENTENCES[i % 100 : i % 100 + 9]) for i in range(2400))
    assert call(tmp_path, text) == 0
    (said,) = re.findall("^validation: .*", capsys.readouterr().out, re.MULTILINE)
    data = Dataset(InputConfig(input_file=f"{tmp_path}/out/*.tfrecord"))
    # the default counts rows of 64 tokens, and these have 32
    assert len(data.validation) >= 2 * validation.NUM_ROWS and "too few" not in said
    assert len(data.validation) < 0.11 * (len(data.train) + len(data.validation))
    assert validation.default_share(10**6) == validation.LEAST_SHARE
    assert validation.default_share(10**8) * 10**8 == validation.MOST_ROWS
    assert validation.default_share(100) == validation.LARGEST_SHARE
    assert 1000 <= validation.default_share(13_000) * 26_000 <= 2000


def test_validation_documents_get_one_pass(tmp_path):
    for passes in (1, 3):
        flags = f"--dupe_factor={passes}", f"--output_dir={tmp_path}/{passes}"
        assert call(tmp_path, DOCUMENTS, *flags) == 0
    once, thrice = (
        Dataset(InputConfig(input_file=f"{tmp_path}/{passes}/*.tfrecord")) for passes in (1, 3)
    )
    assert len(thrice.validation) == len(once.validation) > 0
    assert 2.5 * len(once.train) < len(thrice.train) < 3.5 * len(once.train)


@pytest.mark.parametrize(
    "num_documents, flags, part",
    [
        (1, ["--objective=sop"], "none, because the text is one document; training will have no"),
        (3, [], "none, because the text has 3 documents, and nsp needs two each for training and"),
        (20, ["--validation_share=0"], "none, because of --validation_share=0"),
        (20, ["--validation_share=.2"], "too few for a steady eval_loss; give a larger"),
        (20, [], "2 of 20 documents (10.0% of the text), about "),
    ],
)
def test_none_or_too_few_validation_rows_are_said(tmp_path, capsys, num_documents, flags, part):
    text = "\n\n".join(DOCUMENTS.split("\n\n")[:num_documents])
    assert call(tmp_path, text, *flags, "--dry_run") == 0
    (said,) = re.findall("^validation: .*", capsys.readouterr().out, re.MULTILINE)
    assert part in said and ("rows: too few" in said) == ("none" not in said)


@pytest.mark.parametrize("large", [0, 7, 19])
def test_a_document_that_is_most_of_the_text_is_for_training(tmp_path, capsys, large):
    """Wherever it stands, by all seeds; documents of like size are chosen by their hash alone."""
    documents = ["\n".join(SENTENCES[i : i + 5]) for i in range(0, 100, 5)]
    documents[large] = "\n".join(SENTENCES * 10)
    (tmp_path / "in.txt").write_text("\n\n".join(documents))
    sizes = []
    corpus.plan_blocks([str(tmp_path / "in.txt")], 1000, sizes=sizes)
    is_large = validation.find_large(np.concatenate(sizes), 0.1)
    assert np.flatnonzero(is_large).tolist() == [large]
    for seed in range(30):
        chosen = validation.choose_validation(20, 0.1, seed, is_large)
        assert chosen.sum() == 2 and not chosen[large]
        same = validation.choose_validation(20, 0.1, seed)
        assert same[large] or (chosen == same).all()
    assert call(tmp_path, "\n\n".join(documents)) == 0
    output = capsys.readouterr()
    assert "validation: 2 of 20 documents (0.8% of the text), about 6 rows" in output.out
    assert "validation takes" not in output.err


def test_a_validation_of_much_of_the_text_is_warned_of(tmp_path, capsys):
    """Several documents, each of which is large, but none too large."""
    documents = ["\n".join(SENTENCES[i : i + 2]) for i in range(0, 80, 2)]
    chosen = np.flatnonzero(validation.choose_validation(40, 0.1, 12345))
    for part, index in enumerate(chosen[:3]):
        documents[index] = "\n".join(SENTENCES[60 + 20 * part : 80 + 20 * part])
    text, flags = "\n\n".join(documents), [vocabulary(tmp_path, *COMMON), "--validation_share=.1"]
    assert call(tmp_path, text, *flags) == 0
    assert "takes 46% of the text, as 4 of 40 documents, because" in capsys.readouterr().err
    assert call(tmp_path, text, *flags, "--overwrite", "--strict") == 2
    assert "takes 46%" in capsys.readouterr().err


@pytest.mark.parametrize("copies, num_different", [(10, 10), (2, 1)])
def test_duplicates_leave_validation_and_training(tmp_path, capsys, copies, num_different):
    """Of ten documents, each ten times, those chosen were copies; of one twice, the first was."""
    documents = ["\n".join(SENTENCES[i : i + 6]) for i in range(0, 6 * num_different, 6)]
    text = "\n\n".join(document for document in documents for _ in range(copies))
    flags = vocabulary(tmp_path, *COMMON), "--drop_duplicates", "--validation_share=.05"
    flags += "--quiet", "--overwrite", f"--output_dir={tmp_path}/out", "--objective=full_sentences"
    for seed in range(1, 4):
        assert call(tmp_path, text, *flags, f"--random_seed={seed}") == 0
        data = Dataset(InputConfig(input_file=f"{tmp_path}/out/*.tfrecord"))
        assert (data.validation is not None) == (num_different > 1)
    capsys.readouterr()
    assert call(tmp_path, text, *[flag for flag in flags if flag != "--quiet"]) == 0
    said = capsys.readouterr().out
    assert said.count("validation: ") == 1
    num_dropped = num_different * (copies - 1)
    assert f"duplicates: {num_dropped} of {num_different * copies} documents equal an" in said
    assert f"dropped: {num_dropped} duplicates" in said
    if num_different > 1:
        assert "validation: 1 of 10 documents (" in said
    else:
        assert "validation: none, because the text is one document" in said


def test_no_duplicates_are_reported_too(tmp_path, capsys):
    for flag, is_reported in (("--drop_duplicates", True), ("--nodrop_duplicates", False)):
        assert call(tmp_path, DOCUMENTS, flag, "--overwrite") == 0
        said = capsys.readouterr().out
        line = "duplicates: none of 20 documents equals an earlier one\n"
        assert (
            (line in said) == ("documents     20; dropped: 0 duplicates\n" in said) == is_reported
        )


def test_a_folder_as_vocabulary_is_called_a_folder(tmp_path, capsys):
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "words.txt").write_text("[PAD]")
    for flags in (
        [f"--vocab_file={tmp_path}/pieces"],
        [f"--sp_model_file={tmp_path}/pieces", "--tokenization=SentencePiece"],
    ):
        assert call(tmp_path, DOCUMENTS, *flags) == 2
        assert f"{tmp_path}/pieces: " in (error := capsys.readouterr().err)
        assert "is a folder; name the" in error and ("words.txt" in error) == ("vocab" in flags[0])


def test_errors_about_the_output_name_the_flag_that_was_given(tmp_path, capsys, monkeypatch):
    (tmp_path / "in.txt").write_text(DOCUMENTS)

    def refused(*flags):
        flags = f"--input_file={tmp_path}/in.txt", "--dupe_factor=1", "--quiet", *flags
        assert command(["bert-gpu", "data", *flags]) == 2
        return capsys.readouterr().err

    file, folder = tmp_path / "win.txt", tmp_path / "made"
    file.write_text("mine")
    assert refused(f"--output_dir={file}").startswith(f"--output_dir={file}: {file} is a file")
    records = f"--output_file={file}/pretrain.tfrecord"
    assert refused(records).startswith(f"{records}: {file} is a file")
    assert refused("--output_dir=gs://a").startswith("--output_dir=gs://a: records, runs")
    assert call(tmp_path, DOCUMENTS, f"--output_dir={folder}", "--quiet") == 0
    error = refused(f"--output_dir={folder}/")
    assert error.startswith(f"--output_dir={folder}/: holds a data set with other settings (")
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(advice.shutil, "disk_usage", lambda path: usage)
    error = refused(f"--output_dir={tmp_path}/full")
    assert error.startswith(f"--output_dir={tmp_path}/full: about ") and "are free" in error


def test_output_dir(tmp_path, capsys):
    assert (
        call(tmp_path, DOCUMENTS, f"--output_dir={tmp_path}/a", "--output_file=b/c.tfrecord") == 2
    )
    assert "give one of them" in capsys.readouterr().err and not (tmp_path / "a").exists()
    assert call(tmp_path, DOCUMENTS, f"--output_dir={tmp_path}/a", "--show_config") == 0
    assert f"--output_file={tmp_path}/a/pretrain.tfrecord" in capsys.readouterr().out


def test_a_folder_with_a_comma_in_its_name_is_shown(tmp_path, capsys):
    folder = f"--output_dir={tmp_path}/o, e[1]"
    assert call(tmp_path, DOCUMENTS, vocabulary(tmp_path, *COMMON), folder, "--show=1") == 0
    assert "next sentence: " in capsys.readouterr().out


def test_data_of_two_kinds_are_called_by_their_names(tmp_path, capsys):
    kinds = {"a": [], "b": ["--masking=dynamic", "--objective=sop"]}
    flags = vocabulary(tmp_path, *COMMON)
    for name, more in kinds.items():
        assert call(tmp_path, DOCUMENTS, flags, f"--output_dir={tmp_path}/{name}", *more) == 0
    records = ",".join(f"{tmp_path}/{name}/*.tfrecord" for name in kinds)
    with pytest.raises(UserError, match=r"b holds dynamic sop data, and .*a static nsp;"):
        Dataset(InputConfig(input_file=records))
    apart = dict(input_file=f"{tmp_path}/a/*.tfrecord", eval_input_file=f"{tmp_path}/b/*.tfrecord")
    with pytest.raises(UserError, match=r"^--eval_input_file: .*b holds dynamic sop data, and "):
        Dataset(InputConfig(**apart))
    for name in kinds:
        (tmp_path / name / "dataset.json").unlink()
    with pytest.raises(UserError, match=r"holds dynamic .*pairs rows, and .* static pairs rows of"):
        Dataset(InputConfig(input_file=records))


def test_records_to_validate_on_have_the_vocabulary_of_training(tmp_path):
    for name, words in (("a", COMMON), ("b", COMMON[1:])):
        folder = f"--output_dir={tmp_path}/{name}"
        assert call(tmp_path, DOCUMENTS, vocabulary(tmp_path, *words), folder) == 0
    apart = dict(input_file=f"{tmp_path}/a/*.tfrecord", eval_input_file=f"{tmp_path}/b/*.tfrecord")
    with pytest.raises(UserError, match=r"^--eval_input_file: .* differ in tokenizer \(.*others$"):
        Dataset(InputConfig(**apart))
    (tmp_path / "b" / "dataset.json").unlink()
    assert len(Dataset(InputConfig(**apart)).validation) > 0


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_rows_that_are_masked_when_read_are_masked_alike(tmp_path, masking):
    flags = vocabulary(tmp_path, *COMMON), f"--masking={masking}", "--max_predictions_per_seq=5"
    for name, share in (("a", 0.15), ("b", 0.4)):
        more = f"--output_dir={tmp_path}/{name}", f"--masked_lm_prob={share}"
        assert call(tmp_path, DOCUMENTS, *flags, *more) == 0
    records = InputConfig(input_file=f"{tmp_path}/a/*.tfrecord,{tmp_path}/b/*.tfrecord")
    if masking == "static":
        Dataset(records)
        return
    with pytest.raises(UserError, match=r"differ in masked_lm_prob \(0.4 and 0.15\); build both"):
        Dataset(records)


TEXTS = [part.replace("\n", " ") for part in DOCUMENTS.split("\n\n")]


def rows(kind, texts):
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        sink = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.table({"text": texts}), sink)
        return sink.getvalue().to_pybytes()
    if kind == "csv":
        return "".join(f'{n},"{text or ""}"\n' for n, text in enumerate(["text", *texts])).encode()
    objects = [dict(text=text) for text in texts]
    content = "\n".join(map(json.dumps, objects)) if kind == "jsonl" else json.dumps(objects)
    return content.encode()


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_rows_without_text_are_counted(tmp_path, capsys, kind):
    """Null and empty alike; warned of when they are more than half."""
    path = tmp_path / f"in.{kind}"
    flags = [f"--input_file={path}", vocabulary(tmp_path, *COMMON), *FLAGS]
    for num_empty, code in ((4, 0), (30, 2)):
        path.write_bytes(rows(kind, [*TEXTS[:9], *[None, ""] * (num_empty // 2), *TEXTS[9:]]))
        output = f"--output_dir={tmp_path}/out{num_empty}"
        assert command(["bert-gpu", "data", *flags, output, "--strict"]) == code
        said = capsys.readouterr()
        assert f"input: {num_empty} rows have no text" in said.out
        assert ("30 of 50 rows have no text" in said.err) == bool(code)


def test_a_column_of_text_that_is_no_table_is_idle(tmp_path, capsys):
    flags = [vocabulary(tmp_path, *COMMON), "--text_column=body"]
    assert call(tmp_path, DOCUMENTS, *flags) == 0
    assert "--text_column=body (or --text_field) has no effect" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, header, part",
    [
        ("a.csv", "id;text", "has ';' between its columns"),
        ("a.csv", "id\ttext", "--input_format=tsv"),
        ("a.tsv", "id,text", "--input_format=csv"),
    ],
)
def test_another_delimiter_is_named(tmp_path, capsys, name, header, part):
    (tmp_path / name).write_text(f"{header}\n{header}\n")
    flags = [f"--input_file={tmp_path}/{name}", f"--output_dir={tmp_path}/out"]
    assert command(["bert-gpu", "data", *flags]) == 2
    error = capsys.readouterr().err
    assert part in error and error.count("\n") == 1 and "no column" not in error
