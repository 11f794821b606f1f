"""~ in a flag that names a path is the home folder, as it is in a word of a shell."""

import itertools
import subprocess

import pytest

from bert_gpu.__main__ import COMMANDS
from bert_gpu.base.settings import fields_of, value_type
from bert_gpu.cli import data, flags
from bert_gpu.data import build
from tests.test_documents import ROOT, imported

CLASSES = {
    command: imported(ROOT / "docs" / "make_reference.py").classes_of(command)[0]
    for command in COMMANDS
}
NOT_PATHS = """
best_metric class_weights columns encoder finetune_time_markers freeze grid input_weights
input_weights_from label language mlflow_experiment passage_prefix positive_label query query_prefix
ray_address task_name text_a text_b text_field validation_marks wandb_project weight_decay_exclude
word_separator
""".split()
LISTS = {("evaluate", "model")} | {
    (command, name) for command in COMMANDS for name in ("input_file", "eval_input_file")
}
PATHS = [
    (command, name)
    for command, classes in CLASSES.items()
    for name, field in fields_of(*classes).items()
    if value_type(field)[0] in (str, tuple)
    and not field.metadata["choices"]
    and name not in NOT_PATHS
]
WITH = dict(sp_model_file=dict(tokenization="SentencePiece"))  # {flag: what it cannot be without}
# words that a shell expands or leaves; all end as the strictest flag (embed --output) demands
NAMES = """
~/x.npy ~//x.npy ~/a/../x.npy ~root/x.npy ~nobody_here/x.npy a~/x.npy ./~/x.npy ~/~/x.npy x~.npy
/tmp/~x.npy gs://b/~/x.npy ~/d=e:.5.npy http://h/~me/x.npy -/~.npy
""".split()


def by_shell(words, home):
    """What a shell makes of words."""
    script = "printf '%s\\n' " + " ".join(words)
    return subprocess.check_output(
        ["bash", "-c", script], text=True, env=dict(HOME=home)
    ).splitlines()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    folder = tmp_path / "my home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return str(folder)


def settings_with(command, words):
    """The settings that a command line has."""
    parsed = flags.parse([command, *words], "", (), CLASSES[command])
    return lambda name: getattr(
        parsed.make(next(kind for kind in CLASSES[command] if name in fields_of(kind))), name
    )


def test_each_text_flag_is_known_to_be_a_path_or_not():
    marked = {
        (command, name): field.metadata["path"]
        for command, classes in CLASSES.items()
        for name, field in fields_of(*classes).items()
        if field.metadata["path"]
    }
    assert set(marked) == set(PATHS) and len(PATHS) > 50
    assert {key for key, kind in marked.items() if kind == "list"} == LISTS & set(PATHS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_in_any_flag_is_what_a_shell_makes_of_the_word(command, home, tmp_path):
    wanted = dict(zip(NAMES, by_shell(NAMES, home), strict=True))
    assert sum(name != path for name, path in wanted.items()) == 6
    names = [name for owner, name in PATHS if owner == command]
    for flag, (name, path) in itertools.product(names, wanted.items()):
        if flag == "output_file":
            if "://" in path:
                continue  # refused
            name, path = name.replace(".npy", ".tfrecord"), path.replace(".npy", ".tfrecord")
        (tmp_path / "my home" / "inner.flags").write_text(f"--{flag}={name}\n")
        (tmp_path / "outer.flags").write_text("--flagfile=~/inner.flags\n")
        more = WITH.get(flag, {})
        for words in (
            [f"--{flag}={name}"],
            [f"-{flag}", name],
            [f"--flagfile={tmp_path / 'outer.flags'}"],
        ):
            words += [f"--{other}={value}" for other, value in more.items()]
            assert settings_with(command, words)(flag) == path, (flag, words)
        for kind in (kind for kind in CLASSES[command] if flag in fields_of(kind)):
            assert getattr(kind(**{flag: name, **more}), flag) == path, (kind, flag)


@pytest.mark.parametrize("command, flag", sorted(LISTS & set(PATHS)))
@pytest.mark.parametrize("comma", [",", ", "])
def test_each_name_of_a_list_is_what_a_shell_makes_of_the_word(command, flag, comma, home):
    names = [*(name.replace("x", "[x]?*") for name in NAMES), "~", "-"]
    paths = by_shell(
        [name.replace("[", r"\[").replace("*", r"\*").replace("?", r"\?") for name in names], home
    )
    value = settings_with(command, [f"--{flag}={comma.join(names)}"])(flag)
    assert [part.strip() for part in value.split(",")] == paths


def test_a_data_job_reads_and_writes_in_the_home_folder(home, monkeypatch, tmp_path):
    jobs = []
    monkeypatch.setattr(build, "build", lambda config, *_, **__: jobs.append(config))
    words = ["--input_file=~/a.txt,b.txt", "--output_dir=~/d"]
    (tmp_path / "my home" / "s.flags").write_text("\n".join(words))
    data.main(["data", *words])
    data.main(["data", "--flagfile=~/s.flags"])
    for job in jobs:
        assert job.input_file == f"{home}/a.txt,b.txt"
        assert job.output_file == f"{home}/d/pretrain.tfrecord"
    assert f"--output_dir={home}/d  # " in data.main(["data", *words, "--show_config"])
