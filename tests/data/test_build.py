"""Laws of the data job: same bytes for any number of workers and after any interruption; files
of others stay.
"""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import only_writer
from bert_gpu.base.settings import REMOVED
from bert_gpu.data import build, manifest, output_folder, workers
from bert_gpu.data.config import DataConfig, InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.data.shards import VALIDATION
from bert_gpu.data.validation import choose_validation
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory, sample_text):
    folder = tmp_path_factory.mktemp("first")
    run(folder, sample_text, vocab_size=600, dupe_factor=1)
    return str(folder / "vocab.txt")


def config(folder, text, **settings):
    return DataConfig(
        **dict(
            input_file=str(text),
            output_file=str(folder / "x.tfrecord"),
            max_seq_length=64,
            dupe_factor=2,
        )
        | settings
    )


def run(folder, text, overwrite=False, **settings):
    return build.run_job(build.open_job(config(folder, text, **settings), overwrite))


def content(folder):
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in os.listdir(folder)
    }


def read_all(data, split="train"):
    reader = data.reader(split, WordPieceTokenizer(f"{data.folder}/vocab.txt"), 1)
    return reader.read(np.arange(len(reader)), np.zeros(len(reader), int))


def test_the_data_set_is_what_it_says(tmp_path, sample_text, vocab_file):
    made, counts, _ = run(
        tmp_path, sample_text, vocab_file=vocab_file, num_shards=3, validation_share=0.1
    )
    assert sorted(os.listdir(tmp_path)) == sorted(
        [
            ".x.lock",
            "dataset.json",
            "vocab.txt",
            *(f"x-{i:05d}-of-00003.{kind}" for i in range(3) for kind in ("tfrecord", "index")),
            *(f"x-validation-00000-of-00001.{kind}" for kind in ("tfrecord", "index")),
        ]
    )
    assert manifest.read_manifest(str(tmp_path)) == made
    data = Dataset(InputConfig(input_file=str(tmp_path / "*.tfrecord")))
    assert len(data.train.files) == 3 and len(data.train) == made.num_train_instances
    assert len(data.validation) == made.num_validation_instances > 0
    assert counts.num_instances == len(data.train) + len(data.validation)
    assert made.num_documents == 64 and made.num_sentences == 1196
    batch, held_out = (read_all(data, split) for split in ("train", "validation"))
    assert (
        abs(batch["next_sentence_labels"].mean() - counts.num_random_next / counts.num_instances)
        < 0.02
    )
    assert batch["input_mask"].sum() + held_out["input_mask"].sum() == counts.num_row_tokens
    assert made.tokens_per_record == batch["input_mask"].sum() / len(data.train)
    assert (batch["input_ids"][batch["input_mask"] == 0] == 0).all()
    assert (batch["segment_ids"] <= batch["input_mask"]).all()


def test_any_number_of_workers_writes_the_same_bytes(
    tmp_path, sample_text, vocab_file, monkeypatch
):
    """One, two threads, two processes."""
    contents = []
    for num_workers, limit in ((1, workers.THREADS_BYTES), (2, workers.THREADS_BYTES), (2, 0)):
        monkeypatch.setattr(workers, "THREADS_BYTES", limit)
        folder = tmp_path / f"{num_workers}-{limit}"
        settings = dict(num_shards=3, num_workers=num_workers, dupe_factor=2)
        run(folder, sample_text, vocab_file=vocab_file, **settings)
        contents.append(content(folder))
    assert contents[0] == contents[1] == contents[2]


def test_a_data_set_made_with_a_removed_flag_is_finished_or_refused(
    tmp_path, sample_text, vocab_file
):
    def repeat(**removed):
        settings = made.settings | removed
        manifest.write_manifest(str(tmp_path), dataclasses.replace(made, settings=settings))
        return build.build(config(tmp_path, sample_text, vocab_file=vocab_file), console=QUIET)

    made, _, _ = run(tmp_path, sample_text, vocab_file=vocab_file)
    assert repeat(**REMOVED).num_train_instances == made.num_train_instances
    for name in REMOVED:
        with pytest.raises(UserError, match=f"was made with --{name}=7, a flag that was removed"):
            repeat(**{**REMOVED, name: 7})


def test_the_seed_decides(tmp_path, sample_text, vocab_file):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(tmp_path / name, sample_text, vocab_file=vocab_file, random_seed=seed)
    shard = "x-00000-of-00001.tfrecord"
    first, second, other = (content(tmp_path / name)[shard] for name in "abc")
    assert first == second != other


def test_a_shard_that_a_power_cut_has_cut_is_written_again(
    tmp_path, sample_text, vocab_file, monkeypatch
):
    settings = dict(vocab_file=vocab_file, num_shards=2, num_workers=1)
    run(tmp_path / "whole", sample_text, **settings)

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(output_folder.OutputFolder, "finish", dies)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut", sample_text, **settings)
    os.truncate(tmp_path / "cut" / "x-00001-of-00002.tfrecord", 0)
    assert run(tmp_path / "cut", sample_text, **settings)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_a_killed_job_goes_on(tmp_path, sample_text, vocab_file, monkeypatch, capsys):
    """Killed in the third shard: two shards are kept, and the result is that of an unkilled job.
    The validation documents kept with the two may be missing or damaged.
    """
    settings = dict(vocab_file=vocab_file, num_shards=4, num_workers=1)
    run(tmp_path / "whole", sample_text, **settings)
    write = build.ShardBuilder.write_shard

    def dies(worker, shard, report):
        if shard.index == 2:
            raise KeyboardInterrupt
        return write(worker, shard, report)

    monkeypatch.setattr(build.ShardBuilder, "write_shard", dies)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", sample_text, **settings)
    assert not (tmp_path / "killed" / "dataset.json").exists()
    with pytest.raises(UserError, match=r"\.x\.building\.json: the data job .* is unfinished"):
        Dataset(InputConfig(input_file=f"{tmp_path}/killed/*.tfrecord"))
    first, second = (tmp_path / "killed").glob(".x-*.held_out")
    first.unlink()
    second.write_bytes(second.read_bytes().replace(b"e", b"a", 1))
    written = []
    monkeypatch.setattr(
        build.ShardBuilder,
        "write_shard",
        lambda *args: (written.append(args[1].path), write(*args)),
    )
    settings = config(tmp_path / "killed", sample_text, **settings)
    job = build.open_job(settings, console=Console())
    assert job.status == "resumed"
    build.run_job(job)
    assert "resuming from 1 of 5 shards\n" in capsys.readouterr().out
    assert len(written) == 4  # three training shards and the validation shard
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_same_and_changed_settings(tmp_path, sample_text, vocab_file):
    run(tmp_path, sample_text, vocab_file=vocab_file)
    before = content(tmp_path)
    assert build.open_job(config(tmp_path, sample_text, vocab_file=vocab_file)).status == "finished"
    with pytest.raises(UserError, match=r"--dupe_factor: 2 -> 3.*--overwrite"):
        build.open_job(config(tmp_path, sample_text, vocab_file=vocab_file, dupe_factor=3))
    with pytest.raises(UserError, match="holds the data set 'x'"):
        build.open_job(
            config(
                tmp_path,
                sample_text,
                vocab_file=vocab_file,
                output_file=str(tmp_path / "y.tfrecord"),
            ),
            overwrite=True,
        )
    assert content(tmp_path) == before
    run(tmp_path, sample_text, vocab_file=vocab_file, dupe_factor=1, num_shards=2, overwrite=True)
    assert len([name for name in os.listdir(tmp_path) if name.endswith("00002.tfrecord")]) == 2
    assert not (tmp_path / "x-00000-of-00001.tfrecord").exists()


@pytest.mark.parametrize("missing", ["vocab.txt", "x.order"])
def test_a_finished_data_set_that_lacks_a_file_is_not_touched(tmp_path, sample_text, missing):
    settings = dict(vocab_size=300, dupe_factor=1, order="length")
    run(tmp_path, sample_text, **settings)
    (tmp_path / missing).unlink()
    before = content(tmp_path)
    with pytest.raises(UserError, match=f"its {missing} is missing; put it back, or --overwrite"):
        run(tmp_path, sample_text, **settings)
    assert content(tmp_path) == before


@pytest.mark.parametrize("share, most", [(0, 10), (0.2, 8)])
def test_as_many_shards_as_documents(tmp_path, vocab_file, share, most):
    """Any number up to that; the number that is advised for a larger one is possible."""
    text = tmp_path / "text.txt"
    text.write_text("The sea was calm.\nThe night was dark.\n\n" * 10)
    settings = dict(vocab_file=vocab_file, validation_share=share)

    def opened(num_shards):
        return build.open_job(config(tmp_path / "out", text, num_shards=num_shards, **settings))

    possible = []
    for num_shards in range(1, 15):
        try:
            shards = [shard for shard in opened(num_shards).plan.shards() if shard.split == "train"]
            assert len(shards) == num_shards and all(shard.windows for shard in shards)
            possible.append(num_shards)
        except UserError as error:
            assert int(str(error).split("give ")[1]) in possible
    assert max(possible) <= most and (share or possible == [*range(1, most + 1)])


def test_changed_text_is_noticed(tmp_path, vocab_file):
    text = tmp_path / "text.txt"
    text.write_text("One man came.\nAnother man went.\n\nThe sea was calm.\nThe night was dark.\n")
    run(tmp_path / "out", text, vocab_file=vocab_file)
    text.write_text("One man came.\nAnother cat went.\n\nThe sea was calm.\nThe night was dark.\n")
    with pytest.raises(UserError, match="the text itself"):
        build.open_job(config(tmp_path / "out", text, vocab_file=vocab_file))


def test_foreign_shards_are_left_alone(tmp_path, sample_text, vocab_file):
    (tmp_path / "x-00000-of-00001.tfrecord").write_bytes(b"precious")
    with pytest.raises(UserError, match="exists and was not written by this script"):
        build.open_job(config(tmp_path, sample_text, vocab_file=vocab_file))
    assert (tmp_path / "x-00000-of-00001.tfrecord").read_bytes() == b"precious"


def test_overwriting_removes_shards_alone(tmp_path, sample_text, vocab_file):
    """Not what a user has put beside them, whose name begins as theirs do."""
    settings = dict(vocab_file=vocab_file, dupe_factor=1)
    run(tmp_path, sample_text, num_shards=2, **settings)
    mine = ["x-backup.tfrecord", "x-00000-of-00002-old.tfrecord", "x-mine.index"]
    for name in mine:
        (tmp_path / name).write_text("precious")
    run(tmp_path, sample_text, overwrite=True, **settings)
    assert all((tmp_path / name).read_text() == "precious" for name in mine)
    assert not list(tmp_path.glob("x-*-of-00002.*"))


def test_overwriting_removes_a_vocabulary_that_was_learnt(tmp_path):
    """By the earlier data set, for another tokenization. One that was given may be the user's."""
    text, words = tmp_path / "text.txt", tmp_path / "out" / "vocab.txt"
    text.write_text("The sea was calm.\nThe night was dark.\n\nOne man came.\nHe went.\n" * 9)

    def overwrite(**settings):
        run(tmp_path / "out", text, overwrite=True, vocab_size=100, dupe_factor=1, **settings)
        return {path.name for path in (tmp_path / "out").iterdir()}

    assert "vocab.txt" in overwrite()
    learnt = words.read_bytes()
    assert "sentencepiece.model" in (found := overwrite(tokenization="SentencePiece"))
    assert "vocab.txt" not in found
    assert "sentencepiece.model" not in overwrite()
    overwrite(vocab_file=str(words))
    assert words.read_bytes() == learnt
    assert "vocab.txt" in overwrite(tokenization="SentencePiece")


def test_a_foreign_vocabulary_is_left_alone(tmp_path, sample_text):
    (tmp_path / "vocab.txt").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="vocab.txt: exists and was not written"):
            build.open_job(config(tmp_path, sample_text), overwrite)
    assert (tmp_path / "vocab.txt").read_text() == "precious"


def test_a_killed_rebuild_learns_its_own_vocabulary(tmp_path, sample_text, monkeypatch):
    run(tmp_path, sample_text, vocab_size=300, dupe_factor=1)
    write = build.ShardBuilder.write_shard
    monkeypatch.setattr(
        build.learning, "learn", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, sample_text, vocab_size=600, dupe_factor=1, overwrite=True)
    assert (
        build.open_job(config(tmp_path, sample_text, vocab_size=300, dupe_factor=1)).status
        == "finished"
    ), "nothing is cleared too early"
    monkeypatch.undo()
    monkeypatch.setattr(
        build.ShardBuilder, "write_shard", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, sample_text, vocab_size=600, dupe_factor=1, overwrite=True)
    monkeypatch.setattr(build.ShardBuilder, "write_shard", write)
    assert run(tmp_path, sample_text, vocab_size=600, dupe_factor=1)[0].vocab_size == 600


def test_two_jobs_in_one_new_folder(tmp_path, sample_text, vocab_file, monkeypatch):
    """Both are planned before there is a folder. The second is refused while the first writes, and
    touches nothing then or later.
    """
    run(tmp_path / "alone", sample_text, vocab_file=vocab_file)
    first, second = (
        build.open_job(config(tmp_path / "shared", sample_text, vocab_file=vocab_file))
        for _ in range(2)
    )
    write, seen = build.ShardBuilder.write_shard, []

    def disturbed(worker, shard, report):
        before = content(tmp_path / "shared")
        with pytest.raises(
            UserError, match=r"--output_file=.*another process \(\d+\) writes to .*shared"
        ):
            build.run_job(second)
        assert content(tmp_path / "shared") == before
        seen.append(shard)
        write(worker, shard, report)

    with monkeypatch.context() as patch:
        patch.setattr(build.ShardBuilder, "write_shard", disturbed)
        build.run_job(first)
    assert seen and content(tmp_path / "shared") == content(tmp_path / "alone")
    with pytest.raises(UserError, match="another process has just written to .*shared"):
        build.run_job(second)
    assert content(tmp_path / "shared") == content(tmp_path / "alone")


def test_the_lock_outlives_its_holder(tmp_path):
    """If it were removed, one process could hold the old file and another a new one."""
    lock = tmp_path / ".x.lock"
    with only_writer(str(tmp_path), "x", "output_file"):
        held = lock.stat().st_ino
    with (
        only_writer(str(tmp_path), "x", "output_file"),
        pytest.raises(UserError, match=r"^--output_file: another process \(\d+\) writes to"),
    ):
        assert lock.stat().st_ino == held
        with only_writer(str(tmp_path), "x", "output_file"):
            pass
    assert lock.stat().st_ino == held


def test_a_lock_ends_with_its_process(tmp_path):
    code = (
        "import sys; from bert_gpu.base.files import only_writer\n"
        "with only_writer(sys.argv[1], 'x', 'output_file'): print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        with (
            pytest.raises(UserError, match="another process"),
            only_writer(str(tmp_path), "x", "output_file"),
        ):
            pass
        process.kill()
    with only_writer(str(tmp_path), "x", "output_file"):
        pass


def test_what_is_not_the_jobs_own_stays_when_it_fails(tmp_path, sample_text, vocab_file):
    """In a folder that was empty only the lock stays; in another one, the files that were there
    before.
    """
    for name, others in (("empty", []), ("used", ["mine.txt"])):
        (tmp_path / name).mkdir()
        for other in others:
            (tmp_path / name / other).write_text("mine")
        with pytest.raises(UserError, match="left to train on after cleaning"):
            run(tmp_path / name, sample_text, vocab_file=vocab_file, max_tokens_per_character=0.001)
        assert set(os.listdir(tmp_path / name)) >= {".x.lock", *others}
    assert (
        os.listdir(tmp_path / "empty") == [".x.lock"]
        and (tmp_path / "used" / "mine.txt").read_text() == "mine"
    )


def test_what_is_refused_with_overwrite_removes_nothing(tmp_path, sample_text, vocab_file):
    run(tmp_path, sample_text, vocab_file=vocab_file, dupe_factor=1)
    before = content(tmp_path)
    with pytest.raises(UserError, match="left to train on after cleaning"):
        run(
            tmp_path,
            sample_text,
            overwrite=True,
            vocab_file=vocab_file,
            max_tokens_per_character=0.001,
        )
    assert content(tmp_path) == before


def test_dropped_duplicates_may_leave_shards_without_instances(tmp_path, vocab_file):
    """The number of shards is checked before anything is removed, and not again after."""
    documents = [f"The sea was calm on day {day}.\nThe night was dark.\n" for day in range(3)]
    text = tmp_path / "text.txt"
    text.write_text("\n".join([*documents, *documents[:1] * 30]))
    settings = dict(vocab_file=vocab_file, validation_share=0, num_shards=4)
    run(tmp_path / "out", text, **settings)
    made, counts, num_dropped = run(
        tmp_path / "out", text, overwrite=True, drop_duplicates=True, **settings
    )
    assert num_dropped == 30 and counts.num_documents == 3
    assert made.train_shards == ("x-00000-of-00004.tfrecord",)
    assert len(Dataset(InputConfig(input_file=f"{tmp_path}/out/*.tfrecord")).train) > 0


def test_a_shard_without_instances_is_left_out(tmp_path, vocab_file):
    text = tmp_path / "text.txt"
    text.write_text("hello world this is text\nmore text here\n\n\u200b\n")
    settings = dict(validation_share=0.99, objective="full_sentences")
    made, *_ = run(tmp_path / "out", text, vocab_file=vocab_file, **settings)
    assert made.validation_shards == () or made.train_shards
    Dataset(InputConfig(input_file=f"{tmp_path}/out/*.tfrecord"))


@pytest.mark.parametrize(
    "change",
    [
        dict(train_shards=5),
        dict(settings=5),
        dict(vocab_size="abc"),
        dict(max_seq_length=None),
        dict(odd=1),
    ],
)
def test_a_broken_dataset_json_is_named(tmp_path, sample_text, vocab_file, change):
    run(tmp_path, sample_text, vocab_file=vocab_file, dupe_factor=1)
    content = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(content | change))
    with pytest.raises(UserError, match="dataset.json"):
        build.open_job(config(tmp_path, sample_text, vocab_file=vocab_file, dupe_factor=1))
    with pytest.raises(UserError, match="dataset.json"):
        Dataset(InputConfig(input_file=f"{tmp_path}/*.tfrecord"))


@pytest.mark.parametrize("objective", ["nsp", "packed"])
def test_rows_of_any_length_hold_the_same_documents_out(tmp_path, vocab_file, objective):
    """So that a run on long rows is not validated on what a run on short rows was trained on."""
    text = tmp_path / "text.txt"
    text.write_text(("The sea was calm.\nThe night was dark.\n" * 50 + "\n") * 2000)
    settings = dict(vocab_file=vocab_file, objective=objective)

    def split(length):
        data = config(tmp_path / "out", text, max_seq_length=length, **settings)
        return build.open_job(data).plan.split

    splits = [split(length) for length in (32, 128, 512)]
    assert 0.02 < np.mean(splits[0] == VALIDATION) < 0.09  # no limit of the share
    assert all((each == splits[0]).all() for each in splits)


def test_validation_documents_are_set_aside(tmp_path, sample_text):
    chosen = choose_validation(1000, 0.05, 1)
    assert chosen.sum() == 50 and (chosen == choose_validation(1000, 0.05, 1)).all()
    assert choose_validation(64, 0.01, 1).sum() == 1
    assert choose_validation(64, 0.0, 1).sum() == 0
    assert choose_validation(2, 0.99, 1).sum() == 1
    assert choose_validation(1, 0.5, 1).sum() == 0


@pytest.mark.parametrize("num_documents, num_chosen", [(3, 0), (4, 2), (5, 2), (100, 2), (400, 4)])
@pytest.mark.parametrize("num_large", [0, 1, 3])
def test_each_split_has_two_documents_or_none_for_pairs(num_documents, num_chosen, num_large):
    is_large = np.arange(num_documents) < num_large
    for seed in range(9):
        chosen = choose_validation(num_documents, 0.01, seed, is_large, least=2)
        assert chosen.sum() == num_chosen
        assert num_documents < num_large + 2 or not chosen[:num_large].any()


@pytest.mark.parametrize("text", ["", "\n\n  \n", "\x00\x07\n"])
def test_text_without_words(tmp_path, vocab_file, text):
    path = tmp_path / "text.txt"
    path.write_text(text)
    with pytest.raises(UserError, match="text.txt"):
        run(tmp_path / "out", path, vocab_file=vocab_file)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "settings, complaint",
    [
        (dict(output_file="data/x"), "--output_file=data/x: must be DIR/NAME.tfrecord"),
        (
            dict(max_predictions_per_seq=100),
            "--max_predictions_per_seq=100: must be at most --max_seq_length=64",
        ),
        (dict(num_shards=1000), "--num_shards=1000: the text has too few documents to"),
        (dict(vocab_file="no.txt"), "no.txt"),
        (dict(input_file="no.txt"), "no.txt"),
        (dict(masked_lm_prob=1.5), "--masked_lm_prob=1.5: must be below 1"),
    ],
)
def test_bad_settings(tmp_path, sample_text, settings, complaint):
    with pytest.raises(UserError, match=complaint):
        run(tmp_path / "out", sample_text, **settings)
    assert not (tmp_path / "out").exists()
