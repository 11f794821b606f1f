"""--flagfile reads flags as a command line does, and says in one line what is wrong."""

import os

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import fields_of, value_type
from bert_gpu.cli import classify, data, flags, pretrain
from bert_gpu.model.config import ShapeConfig

COMMANDS = dict(data=data, pretrain=pretrain, classify=classify)
CALLS = [
    ("data", []),
    ("data", ["--recipe=bert", "--phase=2", "--input_file=my books/a, b.txt,-", "--nostrict"]),
    ("data", ["--train_file", "a.txt", "--mlm_probability=.2", "--text_column=the text = all"]),
    ("pretrain", []),
    ("pretrain", ["--recipe=crammed", "--total_training_time=90m", "--noshuffle", "--fp16"]),
    ("pretrain", ["--recipe=bert", "--phase=2", "--init_checkpoint=a b", "--train_batch_size=9"]),
    ("pretrain", ["--model=small", "--hidden_size=256", "--freeze=layers:2,attention/.*bias"]),
    ("pretrain", ["--weight_decay_exclude=", "--finetune_time_markers=0.5,0.25", "--max_steps=9"]),
    ("pretrain", ['--freeze="a,b",c', "--wandb_project=# no comment", "--early_stop_time=1h30m"]),
    ("classify", []),
    ("classify", ["--text_b=", "--label=is it?", "--do_train", "True", "--nodo_predict"]),
    ("classify", ["--train_batch_size=auto", "--n_gpus=0", "--weight_decay_exclude="]),
    ("classify", ["--recipe=roberta", "--learning_rate=3e-5", "--data_dir=/x y/\u00e4"]),
]  # fmt: skip


def parse(script, *arguments):
    command = COMMANDS[script]
    defaults = {}
    if script == "classify":
        from bert_gpu.cli import training
        from bert_gpu.finetune.config import FinetuneSettings

        defaults = training.defaults_of(FinetuneSettings)
    return flags.parse(
        [script, *arguments], "", (), command.CLASSES, defaults=defaults, script=script
    )


def configs(parsed):
    """The settings, but the model's, which need its size."""
    left_out = (flags.CommonConfig, ShapeConfig)
    return [parsed.make(kind) for kind in parsed.classes if kind not in left_out]


def resolved(parsed):
    """All that follows from a call: the settings, what is given, recipe and phase."""
    return (
        configs(parsed),
        parsed.overrides(ShapeConfig) if parsed.script == "pretrain" else None,
        {name: parsed.values[name].value for name in parsed.sources},
        (parsed.recipe_name, parsed.recipe, parsed.phase),
    )


@pytest.mark.parametrize("script, arguments", CALLS, ids=range(len(CALLS)))
def test_a_call_from_a_file_is_the_same_call(script, arguments, tmp_path):
    path = tmp_path / "a.flags"
    called = parse(script, *arguments)
    path.write_text("\n".join(flag.argument for flag in called.sources.values()))
    assert resolved(parse(script, f"--flagfile={path}")) == resolved(called)
    assert resolved(parse(script, "--flagfile", str(path))) == resolved(called)


def test_flagfiles_are_absls(tmp_path):
    inner, outer = tmp_path / "inner.flags", tmp_path / "outer.flags"
    inner.write_text("// a comment\n  --optimizer=lamb  \n--nodo_train\n")
    outer.write_text(f"\ufeff# a comment\n\n--flagfile={inner}\n-seed=3\n--xla\noff\n--max_steps=8")
    parsed = parse("pretrain", "--seed=1", f"--flagfile={outer}", "--num_train_steps=9")
    values = {name: parsed.values[name].value for name in parsed.sources}
    assert values == dict(optimizer="lamb", do_train=False, seed=3, xla="off", num_train_steps=9)
    assert parsed.sources["optimizer"].source == f"{inner}: line 2"
    assert parsed.sources["seed"].source == f"{outer}: line 4"
    assert parsed.sources["num_train_steps"].source == "command line"
    # what comes first loses, also under its other name
    parsed = parse("pretrain", "--max_steps=7", f"--flagfile={outer}")
    assert parsed.values["num_train_steps"].value == 8


@pytest.mark.parametrize(
    "content, complaint",
    [
        ("--seed=1\n--sede=2\n", "{0}: line 2: --sede=2: no such flag; did you mean --seed"),
        ("--seed=x\n", "{0}: line 1: --seed=x: must be a whole number"),
        ("--seed=-1\n", "--seed=-1: must be at least 0 ({0}: line 1)"),
        ("\n--max_steps=0\n", "--num_train_steps=0: must be at least 1 ({0}: line 2: from --max_s"),
        ("--max_steps=1\n--num_train_steps=2\n", "{0}: line 2: --max_steps=1 and --num_train_st"),
        ("--horovod\n", "{0}: line 1: --horovod: one process trains on all GPUs"),
        ("--seed 1\n", "{0}: line 1: '--seed 1': write --name=value, one flag a line"),
        ("seed=1\n", "{0}: line 1: 'seed=1': not a flag; flags are written --name=value"),
        ("--flagfile={0}\n", "{0}: line 1: --flagfile={0}: includes itself"),
        ("--flagfile=/none/x\n", "{0}: line 1: --flagfile=/none/x: No such file or directory"),
        (b"--seed=1\n\xff\n", "--flagfile={0}: is not UTF-8"),
        (b"\x00" * ((1 << 20) + 1), "--flagfile={0}: is larger than 1 MB"),
    ],
    ids=range(12),
)
def test_a_bad_flagfile_is_named(content, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "f"
    content = content if isinstance(content, bytes) else content.format("f").encode()
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        resolved(parse("pretrain", "--flagfile=f"))
    assert complaint.format("f") in str(error.value) and len(str(error.value)) <= 300


def test_what_is_no_flagfile_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, complaint in [
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "a pipe"),
        ("", "--flagfile=: is empty"),
    ]:
        with pytest.raises(UserError, match=complaint):
            parse("data", f"--flagfile={path}")


def test_what_comes_from_a_file_is_said_of_every_flag(tmp_path):
    """Also of one whose name begins with no, which is no switch that is turned off."""
    path = tmp_path / "a.flags"
    names = {
        name: field
        for name, field in fields_of(*pretrain.CLASSES).items()
        if name.startswith("no") or name in ("xla", "model")
    }
    assert "norm_type" in names and "norm_first" in names
    for name, field in names.items():
        value = "" if value_type(field)[0] is bool else "=1"
        path.write_text(f"--{name}{value}\n")
        parsed = parse("pretrain", f"--flagfile={path}")
        with pytest.raises(UserError, match=rf"--{name}: odd \({path}: line 1\)$"):
            with parsed.naming_origins():
                raise UserError("odd", setting=name)
