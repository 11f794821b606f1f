"""The flags of other projects do what cli/aliases.py says: each is given to our real parsers, and
flags that are the same here are taken as they are.
"""

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import fields_of, value_type
from bert_gpu.cli import aliases, classify, data, flags, pretrain

CLASSES = dict(data=data.CLASSES, pretrain=pretrain.CLASSES, classify=classify.CLASSES)
OWNERS = (aliases.GOOGLE, aliases.HUGGING_FACE, aliases.NVIDIA)
# Flags of these projects that have our names and meanings: {script: {flag: value}}.
TRAINED = dict(
    output_dir="runs/a", init_checkpoint="my_bert", max_seq_length="128", do_train="true",
    do_eval="true", train_batch_size="32", eval_batch_size="8", learning_rate="1e-4",
    num_train_epochs="3", gradient_accumulation_steps="4", adam_beta1="0.9", adam_beta2="0.999",
    adam_epsilon="1e-8", eval_steps="500", seed="42", warmup_proportion="0.2843", num_gpus="8",
    steps_per_loop="100", bert_config_file="bert_config.json", save_checkpoints_steps="1000",
)  # fmt: skip
SAME = dict(
    data=dict(
        input_file="a.txt,b.txt", output_file="data/x.tfrecord", vocab_file="vocab.txt",
        do_lower_case="true", do_whole_word_mask="true", max_seq_length="128",
        max_predictions_per_seq="20", random_seed="12345", dupe_factor="10", masked_lm_prob="0.15",
        short_seq_prob="0.1",
    ),
    pretrain=TRAINED | dict(
        input_file="data/*.tfrecord", max_predictions_per_seq="20", num_train_steps="100000",
        num_warmup_steps="10000", max_eval_steps="100",
    ),
    classify=TRAINED | dict(
        data_dir="quora", task_name="mnli", vocab_file="vocab.txt", do_lower_case="true",
        do_predict="true", train_file="train.csv", test_file="test.csv", doc_stride="128",
        max_answer_length="30", version_2_with_negative="true", null_score_diff_threshold="0.5",
    ),
)  # fmt: skip
# What a flag with a function for its value sets: {flag: (value, our flags)}.
CONVERTED = dict(
    logging_steps=("50", "--log_steps=50"),
    save_steps=("500", "--save_checkpoints_steps=500"),
    lr_scheduler_type=("linear", "--curve=one_cycle"),
    eval_strategy=("epoch", "--validation_epochs=1"),
    evaluation_strategy=("epoch", "--validation_epochs=1"),
    config_name=("my_bert", "--bert_config_file=my_bert/config.json"),
    metric_for_best_model=("accuracy", "--best_metric=accuracy"),
    validation_split_percentage=("5", "--validation_share=0.05"),
    overwrite_output_dir=("true", ""),
    max_steps=("1000", "--num_train_steps=1000"),
    warmup_steps=("500", "--num_warmup_steps=500"),
    input_files_dir=("a,b", "--input_file=a/*,b/*"),
    eval_files_dir=("c", "--eval_input_file=c/*"),
)
EXAMPLES = {int: "7", float: "0.5", bool: "true"}


def theirs(owner):
    """[(script, alias)] of a project."""
    pairs = [
        (script, alias) for script, table in aliases.ALIASES.items() for alias in table.values()
    ]
    return [(script, alias) for script, alias in pairs if owner in alias.owners]


def examples(script, alias):
    """[(value, our flags that it stands for)] of an alias that sets flags of ours."""
    if alias.convert:
        return [CONVERTED[alias.name]]
    if alias.values:
        return [
            (text, " ".join(f"--{name}={value}" for name, value in settings.items()))
            for text, settings in alias.values.items()
        ]
    field = fields_of(*CLASSES[script])[alias.flag]
    text = EXAMPLES.get(value_type(field)[0], "a")
    return [(text, f"--{alias.flag}={text}")]


def parse(script, *arguments):
    return flags.parse([script, *arguments], "", (), CLASSES[script], script=script)


def given(parsed):
    """{flag: value} that the user gave, after the checks of the settings classes."""
    for kind in parsed.classes:
        parsed.make(kind)
    return {name: parsed.values[name].value for name in parsed.sources}


@pytest.mark.parametrize("owner", OWNERS)
def test_every_flag_is_translated_refused_or_named_as_without_effect(owner, capsys):
    for script, alias in theirs(owner):
        case = f"{owner}, {script}: {alias.name}"
        is_bare = alias.is_switch and alias.name not in aliases.BESIDE.get(script, {})
        bare = f"--{alias.name}" if is_bare else f"--{alias.name}=x"
        capsys.readouterr()
        if alias.refusal:
            with pytest.raises(UserError) as refused:
                parse(script, bare)
            assert str(refused.value) == f"{bare}: {alias.refusal}", case
            assert len(str(refused.value)) <= 300, case
        elif alias.note and not alias.convert:
            assert given(parse(script, bare)) == {}, case
            assert f"warning: {bare} has no effect here: {alias.note}" in capsys.readouterr().err
        else:
            for value, ours in examples(script, alias):
                parsed = parse(script, f"--{alias.name}={value}")
                assert given(parsed) == given(parse(script, *ours.split())), case
                assert given(parse(script, f"--{alias.name}", value)) == given(parsed), case
                for source in parsed.sources.values():
                    assert f"as --{alias.name}={value}" in source.source, case
            if alias.is_switch:
                assert given(parse(script, bare)) == given(parse(script, f"{bare}=true")), case


@pytest.mark.parametrize("script", SAME)
def test_flags_of_our_names_are_taken_as_they_are(script):
    assert not SAME[script].keys() & aliases.ALIASES[script].keys()
    for name, value in SAME[script].items():
        assert given(parse(script, f"--{name}={value}")).keys() == {name}
        assert given(parse(script, f"--{name}", value)) == given(parse(script, f"--{name}={value}"))


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
