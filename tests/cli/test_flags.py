"""Flags are made from settings, and what is wrong with them is one line."""

import contextlib
import dataclasses
import importlib
import io
import keyword
import os
import re
import shlex
import unittest.mock

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings as examples_of
from hypothesis import strategies as st

import bert_gpu
from bert_gpu.__main__ import COMMANDS as ALL_COMMANDS
from bert_gpu.__main__ import main as bert_gpu_command
from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, fields_of, setting
from bert_gpu.cli import classify, data, flags, help_text, pretrain
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.train.config import EndingConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example(Settings):
    """Numbers."""

    rate: float = setting(0.5, "A rate.", above=0.0, high=1.0)
    size: int | None = setting(None, "A size.", low=2, aliases=("n_size",))
    color: str = setting("red", "A color.", choices=("red", "blue"))
    label: str | None = setting(None, "A label.")
    fast: bool = setting(True, "Be fast.")
    names: tuple[str, ...] = setting((), "Some names.")
    wait: float | None = setting(None, "A time.", above=0.0, unit="minutes")


def parse(*argv):
    return flags.parse(
        ["script.py", *argv], "Does things.", ["script.py --rate=1"], [Example, flags.CommonConfig]
    )


def test_defaults_and_given():
    parsed = parse("--n_size=3", "--nofast", "--names=a,b")
    assert parsed.make(Example) == Example(size=3, fast=False, names=("a", "b"))
    assert parsed.overrides(Example) == dict(size=3, fast=False, names=("a", "b"))
    assert not parsed.is_set("rate")
    assert parse().make(Example, rate=0.25).rate == 0.25
    assert parse("--rate=1").make(Example, rate=0.25).rate == 1.0


@pytest.mark.parametrize(
    "argv, complaint",
    [
        (["--colour=red"], "--colour=red: no such flag; did you mean --color"),
        (["--size=abc"], "--size=abc: must be a whole number"),
        (["--rate", "abc"], "--rate=abc: must be a number"),
        (["--fast=perhaps"], "--fast=perhaps: must be true or false"),
        (["extra"], "'extra': not a flag"),
        (["--nofast", "--", "extra"], "'extra': not a flag"),
        (["--size"], "--size: needs a value; write --size=VALUE"),
        (["--n_size=3", "--size=4"], "--n_size=3 and --size=4: both set --size; give one of them"),
        (["--wait=3w"], "--wait=3w: must be a time with the units d, h, m or s, such as 24h"),
        (["--wait=30m1h"], "a bare number means minutes"),
        (["--wait="], "--wait=: must be a time"),
        (["--wait=1,5h"], "--wait=1,5h: must be a time"),
    ],
)
def test_bad_flags(argv, complaint):
    with pytest.raises(UserError, match=complaint):
        parse(*argv)


@pytest.mark.parametrize(
    "text, minutes",
    [
        ("90", 90.0),
        ("1.5", 1.5),
        ("1e2", 100.0),
        ("90s", 1.5),
        ("90m", 90.0),
        ("1h30m", 90.0),
        ("1.5h", 90.0),
        ("2d", 2880.0),
        ("1d2h3m6s", 1563.1),
        (".5h", 30.0),
    ],
)
def test_times_take_units(text, minutes):
    parsed = parse(f"--wait={text}")
    assert parsed.make(Example).wait == minutes
    assert f"--wait={minutes}  # command line" in flags.describe(parsed, [parsed.make(Example)])


def test_every_setting_that_is_a_time_has_a_unit():
    kinds = [kind for command in (data, pretrain, classify) for kind in command.CLASSES]
    fields = fields_of(*kinds)
    with_unit = {name: f.metadata["unit"] for name, f in fields.items() if f.metadata["unit"]}
    assert with_unit == dict(
        total_training_time="hours",
        early_stop_time="minutes",
        worker_timeout="seconds",
    )
    spoken = [
        name
        for name, field in fields.items()
        if name != "recipe"  # its help sums up the recipes
        and re.search(r"\b(seconds|minutes|hours)\b", field.metadata["help"], re.IGNORECASE)
    ]
    assert set(spoken) <= with_unit.keys()
    for config, name in (
        (ScheduleConfig, "total_training_time"),
        (EndingConfig, "early_stop_time"),
    ):
        parsed = flags.parse(["x", f"--{name}=36h"], "", [], [config])
        assert getattr(parsed.make(config), name) == (36.0 if config is ScheduleConfig else 2160.0)


@pytest.mark.parametrize(
    "argv, complaint",
    [
        (["--rate=0"], "--rate=0.0: must be above 0"),
        (["--rate=2"], "--rate=2.0: must be at most 1"),
        (["--label="], "--label=: is empty; name a value, or leave the flag out"),
        (["--rate=nan"], "--rate=nan: must be a finite number"),
        (["--size=1"], "--size=1: must be at least 2"),
        (["--n_size=1"], r"--size=1: must be at least 2 \(from --n_size=1\)"),
        (["--wait=0s"], "--wait=0.0: must be above 0"),
        (["--wait=inf"], "--wait=inf: must be a finite number"),
        (["--color=green"], "--color=green: must be one of red, blue"),
    ],
)
def test_bad_values(argv, complaint):
    parsed = parse(*argv)
    with pytest.raises(UserError, match=complaint):
        parsed.make(Example)


def test_help_teaches_every_flag(capsys):
    with pytest.raises(SystemExit) as stopped:
        parse("--help")
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for field in dataclasses.fields(Example):
        assert f"--{field.name}" in text and field.metadata["help"] in text
    assert "--n_size" in text and "(default: 0.5)" in text and "One of: red, blue." in text


COMMANDS = dict(data=data, pretrain=pretrain, classify=classify)


def help_of(script, flag, capsys):
    with pytest.raises(SystemExit) as stopped:
        COMMANDS[script].main([f"{script}.py", flag])
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("script", COMMANDS)
def test_help_shows_the_main_flags_by_topic(script, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    main = COMMANDS[script].MAIN
    names = [name for topic in main.values() for name in topic]
    assert 15 <= len(names) <= 21 and len(set(names)) == len(names)
    text = help_of(script, "--help", capsys)
    lines = text.splitlines()
    assert re.findall(r"^  --(\w+)", text, re.MULTILINE) == names
    assert all(topic in lines for topic in main) and "--helpfull shows all flags" in text
    fields = fields_of(*COMMANDS[script].CLASSES)
    for name in names:
        start = help_text.brief(fields[name].metadata["help"], 94, help_text.LINES)
        assert " ".join(start.split()).removesuffix(".") in " ".join(text.split())
        if "Default: " in fields[name].metadata["help"]:
            assert "Default: " in start
    full = " ".join(help_of(script, "--helpfull", capsys).split())
    for name, field in fields.items():
        assert f"--{name}" in full and " ".join(field.metadata["help"].split()) in full
    assert "--flagfile=FILE" in full
    if script != "data":
        assert "--max_steps (Hugging Face, NVIDIA)" in full and "--max_steps (" not in text


def help_at(columns, *argv):
    """What a command prints in a terminal of so many columns."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        with unittest.mock.patch.dict(os.environ, COLUMNS=str(columns)):
            bert_gpu_command(["bert-gpu", *argv])
    return printed.getvalue()


@examples_of(max_examples=60)
@given(
    st.integers(20, 200),
    st.sampled_from(["", *ALL_COMMANDS]),
    st.sampled_from(["--help", "--helpfull"]),
)
def test_help_follows_columns(columns, command, flag):
    """A line that is wider is one word or one quoted text. For a shell, the examples stay the
    commands that they are.
    """
    text = help_at(columns, command, flag) if command else help_at(columns, "--help")
    for line in text.splitlines():
        is_one = re.fullmatch(r"""[^\s'"]*(".*"|'.*')?\S*( \\)?""", line.strip())
        assert len(line) <= min(columns, 110) or is_one, line
    if command:
        name = command.replace("-", "_") + "_" * keyword.iskeyword(command)
        lines = text.replace("\\\n", "").splitlines()
        found = [shlex.split(line) for line in lines if re.match("  [^ -]", line)]
        expected = importlib.import_module(f"bert_gpu.cli.{name}").EXAMPLE
        assert found == [shlex.split(example) for example in expected]


def test_an_interrupt_in_compiled_code_is_one():
    """Which returns a result and leaves the exception for Python to find."""

    def run(argv):
        inner = SystemError("returned a result with an exception set")
        inner.__cause__ = KeyboardInterrupt()
        raise SystemError("returned a result with an exception set") from inner

    assert flags.exit_code(run, []) == 130
    with pytest.raises(SystemError):
        flags.exit_code(lambda argv: (_ for _ in ()).throw(SystemError("another")), [])


def test_brief_keeps_whole_sentences():
    assert (
        help_text.brief("One is here. two follows. Three too.", 25, 1)
        == "One is here. two follows."
    )
    told = help_text.brief("One is here. Two follows here. Default: three.", 30, 1)
    assert told == "One is here. Default: three."
    told = help_text.brief("One is here; two follows here. Default: three.", 30, 1)
    assert told == "One is here. Default: three."
    assert help_text.brief("a: one thing; b: another thing", 20, 1) == "a: one thing."
    assert help_text.brief("one sentence that is far too long", 10, 1) == (
        "one sentence that is far too long"
    )


@pytest.mark.parametrize(
    "script, argument, answer",
    [
        ("pretrain", "--checkpoint=x", "did you mean --init_checkpoint?"),
        ("data", "--mask_prob=.2", "did you mean --masked_lm_prob?"),
        ("data", "--workers=2", "did you mean --num_workers?"),
        ("pretrain", "--mixed_precision=fp16", "did you mean --precision?"),
        ("pretrain", "--maxSteps=5", "did you mean --max_steps?"),
        ("pretrain", "--no-shuffle", "did you mean --noshuffle?"),
        ("pretrain", "--resume", "a job resumes by itself: repeat its command"),
        ("pretrain", "--dupe_factor=5", "it is one of create_pretraining_data.py"),
        ("pretrain", "--dupe-factor=5", "--dupe_factor of create_pretraining_data.py?"),
        ("data", "--learning_rate=1", "it is one of run_pretraining_gpu.py"),
        ("data", "--noshuffle", "it is one of run_pretraining_gpu.py"),
        ("pretrain", "--warmup_proporton=.1", "did you mean --warmup_proportion"),
        ("pretrain", "--zzzzz", "--help shows those that matter"),
    ],
)
def test_an_unknown_flag_is_understood(script, argument, answer):
    with pytest.raises(UserError) as error:
        COMMANDS[script].main([script, argument])
    assert str(error.value).startswith(f"{argument}: no such flag") and answer in str(error.value)


def test_the_source_of_a_value_is_the_flag_that_was_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--max_steps", "7", "--fp16", "--total_training_time=90m"]
    assert flags.exit_code(pretrain.main, ["pretrain", "--show_config", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "--num_train_steps=7  # command line, as --max_steps=7" in lines
    assert "--precision=float16  # command line, as --fp16" in lines
    assert "--total_training_time=1.5  # command line" in lines


def test_errors_are_one_short_line_and_exit_code_2(capsys):
    def main(argv):
        raise UserError("x" * 500 + "\nmore")

    assert flags.exit_code(main, []) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error) <= 301
    assert flags.exit_code(lambda argv: None, []) == 0
    assert flags.exit_code(lambda argv: 3, []) == 3


@pytest.mark.parametrize(
    "path, reason", [("s3://bucket/x", "scheme 's3' not implemented"), ("/proc/no/x", "/proc/no")]
)
def test_files_that_tensorflow_cannot_write(path, reason, capsys):
    def write(argv):
        with tf.io.gfile.GFile(path, "w") as file:
            file.write("x")

    assert flags.exit_code(write, []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line and ("file system" in line or "check the path" in line)


def test_every_value_is_explained(capsys):
    parsed = parse("--rate=1")
    text = flags.describe(parsed, [parsed.make(Example, size=7)])
    assert (
        "--rate=1.0  # command line" in text
        and "--size=7  # derived" in text
        and "--color=red  # default" in text
    )


def test_what_has_no_effect_is_said_once(capsys):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Curve(Settings):
        curve: str = setting("linear", "A curve.", choices=("linear", "power"))
        power: float = setting(2.0, "A power.", needs=("curve", ("power",)))
        minutes: float | None = setting(None, "Minutes.")
        share: float = setting(0.1, "A share.", needs=("minutes", None))

    def warnings(*argv):
        parsed = flags.parse(["script.py", *argv], "Does things.", [], [Curve])
        parsed.make(Curve), parsed.make(Curve)
        return capsys.readouterr().err.splitlines()

    assert warnings("--power=3") == ["warning: --power has no effect without --curve=power"]
    assert warnings("--share=0.5") == ["warning: --share has no effect without --minutes"]
    assert (
        not warnings("--power=3", "--curve=power", "--share=0.5", "--minutes=1") and not warnings()
    )
    for kind in Settings.__subclasses__():
        names = {field.name for field in dataclasses.fields(kind)}
        assert all(
            field.metadata["needs"] is None or field.metadata["needs"][0] in names
            for field in dataclasses.fields(kind)
        )


@pytest.mark.parametrize(
    "argv, error, told",
    [
        # a value that only the recipe set, also where another setting is in conflict with it
        ([], dict(setting="clip_norm", value=1.0), "sets --clip_norm=1.0; your own value wins"),
        ([], dict(setting=("num_gpus", "train_batch_size")), "sets --train_batch_size=32; your"),
        (["--phase=2"], dict(setting="max_seq_length"), "--phase=2 sets --max_seq_length=512;"),
        ([], dict(setting="adam_bias_correction"), "sets --noadam_bias_correction; your"),
        ([], dict(setting="hidden_size", value=128), "sets --model=base; your own value wins"),
        ([], dict(setting="model", where="run.json"), "sets --model=base)"),
        # what is not the recipe's
        (["--clip_norm=2"], dict(setting="clip_norm", value=2.0), None),
        (["--hidden_size=64"], dict(setting="hidden_size", value=64), None),
        (["--model=tiny"], dict(setting="hidden_size", value=128), None),
        ([], dict(where="runs/model/optimizer"), None),
    ],
)
def test_a_recipes_problem_is_told_as_the_recipes(argv, error, told, capsys):
    parsed = flags.parse(
        ["pretrain", "--recipe=bert", *argv], "", [], pretrain.CLASSES, script="pretrain"
    )
    plain = str(UserError("is odd", "do it", **error))
    with pytest.raises(UserError) as caught, parsed.naming_origins():
        raise UserError("is odd", "do it", **error)
    text = str(caught.value)
    assert text == plain if told is None else text.startswith(f"{plain} (--recipe=bert")
    assert told is None or told in text
    parsed.console(quiet=True).warn(UserError("is odd", "do it", **error))
    assert capsys.readouterr().err == f"warning: {text}\n"


def test_a_recipes_problem_with_another_flag_is_found_before_work(capsys):
    for command, argv, found in (
        (data, ["--recipe=crammed", "--max_predictions_per_seq=200"], "max_seq_length=128"),
        (pretrain, ["--recipe=modern", "--num_attention_heads=256"], "embedding_type=rotary"),
    ):
        assert flags.exit_code(command.main, ["script.py", *argv]) == 2
        error = capsys.readouterr().err
        assert f"({argv[0]} sets --" in error and found in error and error.count("\n") == 1


def test_the_version_is_that_of_the_package(capsys):
    assert bert_gpu_command(["bert-gpu", "--version"]) == 0
    assert capsys.readouterr().out == f"bert-gpu {bert_gpu.__version__}\n"


def test_out_of_memory_names_the_flags_of_the_step_and_of_the_validation():
    names = dict(__module__="tensorflow.python.framework.errors_impl", message="OOM: [32,2,8192]")
    error = type("ResourceExhaustedError", (Exception,), names)()
    message = flags.tensorflow_problem(error)
    for flag in ("train_batch_size", "gradient_accumulation_steps", "eval_batch_size"):
        assert f"--{flag}" in message
    assert message.endswith(f"({error.message})")
