"""Flags are made from settings, and what is wrong with them is one line."""

import dataclasses

import pytest

from bert_gpu.cli import data, flags, pretrain
from bert_gpu.settings import Settings, UserError, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example(Settings):
    """Numbers."""

    rate: float = setting(0.5, "A rate.", above=0.0, high=1.0)
    size: int | None = setting(None, "A size.", low=2, aliases=("n_size",))
    color: str = setting("red", "A color.", choices=("red", "blue"))
    label: str | None = setting(None, "A label.")
    fast: bool = setting(True, "Be fast.")
    names: tuple[str, ...] = setting((), "Some names.")


def parse(*argv):
    return flags.parse(
        ["script.py", *argv], "Does things.", ["script.py --rate=1"], [Example, flags.CommonConfig]
    )


def test_defaults_and_given():
    parsed = parse("--n_size=3", "--nofast", "--names=a,b")
    assert parsed.make(Example) == Example(size=3, fast=False, names=("a", "b"))
    assert parsed.overrides(Example) == dict(size=3, fast=False, names=("a", "b"))
    assert not parsed.given("rate")
    assert parse().make(Example, rate=0.25).rate == 0.25
    assert parse("--rate=1").make(Example, rate=0.25).rate == 1.0


@pytest.mark.parametrize(
    "argv, complaint",
    [
        (["--colour=red"], "'colour'. Did you mean: color"),
        (["--size=abc"], "size=abc"),
        (["--fast=perhaps"], "fast=perhaps"),
        (["extra"], "'extra': not a flag"),
        (["--size"], "size"),
    ],
)
def test_bad_flags(argv, complaint):
    with pytest.raises(UserError, match=complaint):
        parse(*argv)


@pytest.mark.parametrize(
    "argv, complaint",
    [
        (["--rate=0"], "--rate=0.0: must be above 0"),
        (["--rate=2"], "--rate=2.0: must be at most 1"),
        (["--label="], "--label=: is empty; name a value, or leave the flag out"),
        (["--rate=nan"], "--rate=nan: must be a finite number"),
        (["--size=1"], "--size=1: must be at least 2"),
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


def test_errors_are_one_short_line_and_exit_code_2(capsys):
    def main(argv):
        raise UserError("x" * 500 + "\nmore")

    assert flags.exit_code(main, []) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error) <= 301
    assert flags.exit_code(lambda argv: None, []) == 0
    assert flags.exit_code(lambda argv: 3, []) == 3


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
    "argv, message, told",
    [
        # a value that only the recipe set, wherever it stands
        ([], "--clip_norm=1.0: is odd", "--recipe=bert sets --clip_norm=1.0; your own value wins"),
        ([], "too long; lower --train_batch_size", "--recipe=bert sets --train_batch_size=32"),
        ([], "max_seq_length is 32 there", "--recipe=bert sets --max_seq_length=128"),
        (["--phase=2"], "max_seq_length=512: no", "--recipe=bert --phase=2 sets --max_seq_length"),
        ([], "--adam_bias_correction: no", "--recipe=bert sets --noadam_bias_correction"),
        ([], "its hidden_size is 128, that of the model 768", "--recipe=bert sets --model=base"),
        ([], f"{'x' * 245} --model", f"{'x' * 245} --model (--recipe=bert sets --model=base)"),
        ([], "--curve, --model", "--recipe=bert sets --curve=linear"),
        # what is not the recipe's, or already told so
        (["--clip_norm=2"], "--clip_norm=2.0: is odd", None),
        (["--hidden_size=64"], "--hidden_size=64: is odd", None),
        (["--model=tiny"], "its hidden_size is 128", None),
        ([], "--optimizer=muon: give it", None),
        ([], "runs/model/optimizer: the curve of a model", None),
        ([], "--recipe=bert: clip_norm", None),
    ],
)
def test_a_recipes_problem_is_told_as_the_recipes(argv, message, told, capsys):
    parsed = flags.parse(
        ["pretrain", "--recipe=bert", *argv], "", [], pretrain.CLASSES, script="pretrain"
    )
    with pytest.raises(UserError) as error, parsed.blaming_recipe():
        raise UserError(message)
    text = str(error.value)
    assert text == message if told is None else text.startswith(message) and told in text
    parsed.console(quiet=True).warn(message)
    assert capsys.readouterr().err == f"warning: {text}\n"


def test_a_recipes_problem_with_another_flag_is_found_before_work(capsys):
    for command, argv, found in (
        (data, ["--recipe=crammed", "--max_predictions_per_seq=200"], "max_seq_length=128"),
        (pretrain, ["--recipe=modern", "--num_attention_heads=256"], "embedding_type=rotary"),
    ):
        assert flags.exit_code(command.main, ["script.py", *argv]) == 2
        error = capsys.readouterr().err
        assert f"({argv[0]} sets --" in error and found in error and error.count("\n") == 1
