"""docs/migration.md is what the commands do: each row of its tables is given to our real parsers,
and no flag of another project that they know is missing.
"""

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.cli import aliases, classify, data, flags, pretrain
from tests.documents import code
from tests.test_architecture import ROOT

CLASSES = dict(data=data.CLASSES, pretrain=pretrain.CLASSES, classify=classify.CLASSES)
OWNERS = (aliases.GOOGLE, aliases.HUGGING_FACE, aliases.NVIDIA)


def rows(owner):
    """[(script, flag of theirs, ours or a word, remark)] of the table below a project's heading."""
    section = (ROOT / "docs" / "migration.md").read_text().split(f"\n## {owner}\n")[1]
    found = []
    for line in section.split("\n## ")[0].splitlines():
        if line.startswith("| ") and not line.startswith("| script"):
            scripts, theirs, ours, remark = (cell.strip() for cell in line[1:-1].split("|"))
            for script in scripts.replace("training", "pretrain, classify").split(", "):
                found.append((script, *code(theirs), ours, remark))
    return found


def parse(script, *arguments):
    return flags.parse([script, *arguments], "", (), CLASSES[script], script=script)


def given(parsed):
    """{flag: value} that the user gave, after the checks of the settings classes."""
    for kind in parsed.classes:
        parsed.make(kind)
    return {name: parsed.values[name].value for name in parsed.sources}


@pytest.mark.parametrize("owner", OWNERS)
def test_every_row_is_what_the_parsers_do(owner, capsys):
    for script, theirs, ours, remark in rows(owner):
        case, name = f"{owner}, {script}: {theirs}", theirs.removeprefix("--").partition("=")[0]
        alias = aliases.ALIASES[script].get(name)
        assert (alias is None) == ours.startswith("same"), case
        assert alias is None or owner in alias.owners, case
        capsys.readouterr()
        if ours == "refused":
            assert remark.replace("`", "") == alias.refusal, case
            with pytest.raises(UserError) as refused:
                parse(script, theirs)
            assert str(refused.value) == f"{theirs}: {alias.refusal}", case
            assert len(str(refused.value)) <= 300, case
        elif ours == "no effect":
            assert given(parse(script, theirs)) == {} and remark.replace("`", "") == alias.note
            assert f"warning: {theirs} has no effect here: {alias.note}" in capsys.readouterr().err
        elif ours.startswith("same"):
            assert given(parse(script, theirs)).keys() == {name}, case
        else:
            assert given(parse(script, theirs)) == given(parse(script, *code(ours))) != {}, case
            assert f"as {theirs}" in next(iter(parse(script, theirs).sources.values())).source
        if ours != "refused" and "=" in theirs:
            value = theirs.split("=", 1)
            assert given(parse(script, *value)) == given(parse(script, theirs)), case


@pytest.mark.parametrize("owner", OWNERS)
def test_no_flag_of_theirs_is_missing(owner):
    shown = {(script, theirs[2:].partition("=")[0]) for script, theirs, *_ in rows(owner)}
    for script, table in aliases.ALIASES.items():
        known = {(script, alias.name) for alias in table.values() if owner in alias.owners}
        assert known - shown == set()


def test_aliases_set_flags_of_their_scripts():
    for script, table in aliases.ALIASES.items():
        fields = {name for kind in CLASSES[script] for name in kind.__dataclass_fields__}
        for alias in table.values():
            assert alias.name not in fields, alias.name
            assert set(alias.flags) <= fields, alias.name
            assert bool(alias.flags) + bool(alias.note) + bool(alias.refusal) == 1, alias.name


@pytest.mark.parametrize(
    "script, argument, settings",
    [
        ("pretrain", "--max_steps=-1", {}),
        ("pretrain", "--warmup_steps=0.1", dict(warmup_proportion=0.1)),
        ("pretrain", "--warmup_steps=0", dict(num_warmup_steps=0)),
        ("pretrain", "--warmup_steps=0 --warmup_ratio=0.1", dict(warmup_proportion=0.1)),
        ("pretrain", "--fp16=False --bf16=True", dict(precision="bfloat16")),
        ("pretrain", "--nofp16", dict(precision="float32")),
        ("pretrain", "--fp16 True", dict(precision="float16")),
        ("classify", "--fp16 --nobf16", dict(precision="float16")),
        ("classify", "--fp16 --nofp16", dict(precision="float32")),
        ("pretrain", "--fp16 --use_fp16", dict(precision="float16")),
        ("pretrain", "--max_steps=5 --max_steps=6", dict(num_train_steps=6)),
        ("pretrain", "--max_steps=5 --num_train_steps=5", dict(num_train_steps=5)),
        ("pretrain", "--fp16 --precision=float16", dict(precision="float16")),
        ("pretrain", "--precision=float32 --nofp16", dict(precision="float32")),
        ("classify", "--warmup_ratio=.1 --warmup_proportion=0.10", dict(warmup_proportion=0.1)),
        ("classify", "--load_best_model_at_end --export_best=True", dict(export_best=True)),
        ("data", "--seed=1 --random_seed=1", dict(random_seed=1)),
        ("classify", "--lr_scheduler_type=constant", dict(curve="constant", num_warmup_steps=0)),
        ("pretrain", "--nopad_to_max_length --group_by_length", dict(padding="uniform")),
        ("pretrain", "--nopad_to_max_length", dict(padding="dynamic")),
        ("classify", "--optim=adamw_bnb_8bit", dict(optimizer="adamw8bit")),
        ("pretrain", "--eval_strategy=steps --eval_steps=7", dict(eval_steps=7)),
        ("pretrain", "--nouse_tpu --nohorovod --no_cuda=false", {}),
        ("pretrain", "--recompute --gradient_checkpointing", dict(recompute_every=1)),
        ("data", "--train_file=a.txt --mlm_probability 0.2",
         dict(input_file="a.txt", masked_lm_prob=0.2)),
    ],
)  # fmt: skip
def test_values_mean_what_they_mean_there(script, argument, settings):
    assert given(parse(script, *argument.split())) == settings


@pytest.mark.parametrize(
    "script, argument, complaint",
    [
        ("pretrain", "--max_steps=5 --num_train_steps=6", "both set --num_train_steps; give one"),
        ("pretrain", "--fp16 --bf16", "--fp16 and --bf16: both set --precision"),
        ("pretrain", "--fp16 --precision=float32", "--fp16 and --precision=float32: both set"),
        ("pretrain", "--nofp16 --precision=auto", "--nofp16 and --precision=auto: both set"),
        ("data", "--seed=1 --random_seed=2", "--seed=1 and --random_seed=2: both set"),
        ("pretrain", "--max_steps=0", "must be at least 1 (from --max_steps=0)"),
        ("pretrain", "--max_steps=many", "--max_steps=many: must be a number"),
        ("pretrain", "--max_steps=1.5", "--max_steps=1.5: must be a whole number"),
        ("pretrain", "--save_steps=0.1", "--save_steps=0.1: a share of the run; give --save_ch"),
        ("pretrain", "--fp16=perhaps", "--fp16=perhaps: must be true or false"),
        ("pretrain", "--report_loss=x", "--report_loss=x: must be true or false"),
        ("pretrain", "--lr_scheduler_type=inverse_sqrt", "=inverse_sqrt: has no counterpart here"),
        ("pretrain", "--eval_strategy=steps", "--eval_strategy=steps: a run validates at every"),
        ("pretrain", "--report_to=wandb", "Weights & Biases needs --wandb_project=NAME"),
        ("pretrain", "--per_device_train_batch_size=0", "(from --per_device_train_batch_size=0)"),
        ("data", "--validation_split_percentage=100", "(from --validation_split_percentage=100)"),
    ],
)  # fmt: skip
def test_what_is_wrong_names_what_was_written(script, argument, complaint):
    with pytest.raises(UserError) as error:
        given(parse(script, *argument.split()))
    assert complaint in str(error.value) and len(str(error.value)) <= 300


@pytest.mark.parametrize("script", ["pretrain", "classify"])
def test_every_way_to_ask_for_a_resume_is_told_the_reason(script):
    name = "--resume_from_checkpoint"
    for argument in ("", "=runs/x/checkpoint-500", " runs/x/checkpoint-500", "=True", "=latest"):
        with pytest.raises(UserError) as error:
            parse(script, *f"{name}{argument}".split())
        assert str(error.value).endswith(f": {aliases.RESUMES}")
    for argument in ("=false", "=False", "=none", "=None", "="):
        assert given(parse(script, f"{name}{argument}")) == {}
