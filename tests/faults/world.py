"""What faults are thrown at: a small text, a data set, a run, a classifier, each made once by the
command itself, in this process.
"""

import functools
import pathlib
import shutil
from unittest import mock

from bert_gpu.data.output_folder import OutputFolder
from tests.faults import oracle

DATA_FLAGS = ("--vocab_size=300", "--dupe_factor=1", "--max_seq_length=32", "--num_shards=2")
TINY = ("--model=tiny", "--hidden_size=16", "--intermediate_size=32", "--num_hidden_layers=1")
RUN_FLAGS = (*TINY, "--train_batch_size=4", "--num_train_steps=4", "--log_steps=1")
CLASSIFY_FLAGS = ("--train_batch_size=4", "--num_train_epochs=1", "--max_seq_length=32")


TEXT = "text.txt"


def sorting(folder):
    """A data job of the text in a folder; its rows are sorted, so that shards keep their scores."""
    files = f"--input_file={folder}/{TEXT}", f"--output_file={folder}/out/x.tfrecord"
    return ["data", *files, *DATA_FLAGS, "--order=length", "--num_workers=1", "--quiet"]


class World:
    """Everything lies in one folder; what is there already is used as it is."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def make(self, name, write):
        """The path of a part that `write(path)` makes."""
        path = self.folder / name
        if not path.exists():
            partial = self.folder / f"{name}.partial"
            if partial.is_dir():
                shutil.rmtree(partial)
            write(partial)
            partial.rename(path)
        return path

    def command(self, *arguments):
        outcome = oracle.call(*arguments, "--quiet", watch=self.folder)
        assert outcome.code == 0, outcome.stderr

    @functools.cached_property
    def text(self):
        """120 documents of the sample."""

        def write(path):
            documents = (oracle.ROOT / "tests" / "sample_text.txt").read_text().split("\n\n")
            path.write_text("\n\n".join(documents[:120]) + "\n")

        return self.make("text.txt", write)

    @functools.cached_property
    def data(self):
        """A data set in two shards, with validation records."""
        return self.make(
            "data",
            lambda path: self.command(
                "data", f"--input_file={self.text}", f"--output_file={path}/x.tfrecord", *DATA_FLAGS
            ),
        )

    @functools.cached_property
    def unfinished(self):
        """A folder with text.txt and out/, of a data job stopped when all shards were written."""

        def write(path):
            path.mkdir()
            shutil.copy(self.text, path / TEXT)
            with mock.patch.object(OutputFolder, "finish", side_effect=KeyboardInterrupt):
                outcome = oracle.call(*sorting(path), watch=path)
            assert outcome.code == 130 and list(path.glob("out/.x-*.scores")), outcome

        return self.make("unfinished", write)

    @functools.cached_property
    def run(self):
        """A finished pretraining of 4 steps with two checkpoints."""
        return self.make(
            "run",
            lambda path: self.command(
                "pretrain",
                f"--input_file={self.data}/*.tfrecord",
                f"--output_dir={path}",
                "--save_checkpoints_steps=2",
                *RUN_FLAGS,
            ),
        )

    @functools.cached_property
    def pairs(self):
        """A classification task of a few examples."""

        def write(path):
            path.mkdir()
            for name, rows in (("train", 16), ("dev", 6), ("test", 4)):
                source = (oracle.ROOT / "examples" / "pairs" / f"{name}.tsv").read_text()
                (path / f"{name}.tsv").write_text("\n".join(source.split("\n")[: rows + 1]) + "\n")

        return self.make("pairs", write)

    @functools.cached_property
    def classified(self):
        """A finished fine-tuning of `run`'s model on `pairs`."""
        return self.make(
            "classified",
            lambda path: self.command(
                "classify",
                f"--init_checkpoint={self.run}/model",
                f"--data_dir={self.pairs}",
                f"--output_dir={path}",
                *CLASSIFY_FLAGS,
            ),
        )
