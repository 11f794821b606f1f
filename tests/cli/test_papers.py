"""The commands of two papers, word by word: 24-hour BERT's lines mean here what they mean there,
and Cramming's words are answered. The references are written after IntelLabs/academic-budget-bert
(run_pretraining.py, pretraining/schedules.py) and Hugging Face's optimization.py.
"""

import fractions
import itertools
import json
import math
import random
import re

import hypothesis
import pytest
from hypothesis import strategies

from bert_gpu.__main__ import main as command
from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import fields_of
from bert_gpu.cli import aliases, classify, data, flags, pretrain
from bert_gpu.model.config import ShapeConfig
from bert_gpu.optim.config import OptimizerConfig, ScheduleConfig
from bert_gpu.optim.schedules import learning_rate_factor
from bert_gpu.recipes.table import RECIPES
from bert_gpu.train.cadence import Cadence
from bert_gpu.train.config import BatchConfig, CadenceConfig, EndingConfig
from bert_gpu.train.divergence import DivergenceMonitor
from bert_gpu.train.plan import plan_batch
from tests.test_documents import ROOT, imported

LINE = """
--model_type bert-mlm --tokenizer_name bert-large-uncased --hidden_act gelu --hidden_size 1024
--num_hidden_layers 24 --num_attention_heads 16 --intermediate_size 4096 --hidden_dropout_prob 0.1
--attention_probs_dropout_prob 0.1 --encoder_ln_mode pre-ln --lr 1e-3 --train_batch_size 4096
--train_micro_batch_size_per_gpu 32 --lr_schedule time --curve linear --warmup_proportion 0.06
--gradient_clipping 0.0 --optimizer_type adamw --weight_decay 0.01 --adam_beta1 0.9
--adam_beta2 0.98 --adam_eps 1e-6 --total_training_time 24.0 --early_exit_time_marker 24.0
--dataset_path DATA --output_dir OUT --print_steps 100 --num_epochs_between_checkpoints 10000
--job_name NAME --project_name NAME --validation_epochs 3 --validation_epochs_begin 1
--validation_epochs_end 1 --validation_begin_proportion 0.05 --validation_end_proportion 0.01
--validation_micro_batch 16 --deepspeed --data_loader_type dist --do_validation
--use_early_stopping --early_stop_time 180 --early_stop_eval_loss 6 --seed 42 --fp16
"""
GLUE_LINE = """
--model_name_or_path MODEL --task_name MRPC --max_seq_length 128 --output_dir OUT
--overwrite_output_dir --do_train --do_eval --evaluation_strategy steps
--per_device_train_batch_size 32 --gradient_accumulation_steps 1 --per_device_eval_batch_size 32
--learning_rate 5e-5 --weight_decay 0.01 --eval_steps 50 --evaluation_strategy steps
--max_grad_norm 1.0 --num_train_epochs 5 --lr_scheduler_type polynomial --warmup_steps 50
"""
TINY = (
    "--hidden_size=16 --num_hidden_layers=1 --num_attention_heads=2 --intermediate_size=32".split()
)
MODULES = dict(data=data, pretrain=pretrain, classify=classify)
SETTINGS = RECIPES["budget24h"].settings("pretrain")
OF_THE_DATA = {"max_seq_length", "max_predictions_per_seq"}  # the line leaves them to the data


def parsed(script, *arguments):
    module = MODULES[script]
    return flags.parse([script, *arguments], "", (), module.CLASSES, script=script)


def given(script, *arguments):
    """{flag of ours: value} of a call."""
    found = parsed(script, *arguments)
    for kind in found.classes:
        found.make(kind)
    return {name: found.values[name].value for name in found.sources}


def words(line, **names):
    return [names.get(word, word) for word in line.split()]


def shown(capsys, *arguments):
    """{flag: text of its value} that --show_config prints."""
    assert command(["bert-gpu", "pretrain", *arguments, "--show_config"]) == 0
    lines = re.findall(r"^--(\w+)=(.*?)  # ", capsys.readouterr().out, re.M)
    return dict(lines)


def test_the_line_has_the_values_of_its_recipe(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ours = shown(capsys, "--recipe=budget24h", "--input_file=DATA")
    theirs = shown(capsys, *words(LINE))
    names = (SETTINGS.keys() - OF_THE_DATA) | fields_of(ShapeConfig).keys()
    assert {name: theirs[name] for name in names} == {name: ours[name] for name in names}
    assert {theirs[name] for name in OF_THE_DATA} == {"None"}
    assert theirs["seed"] == "42" and theirs["precision"] == "float16"


def test_flags_without_a_meaning_are_named_in_one_line_and_a_loss_by_itself(capsys):
    given("pretrain", *words(LINE), "--fp16_backend=ds", "--fp16_opt", "O2", "--fp16_opt=O2")
    unused, lost, marks = capsys.readouterr().err.splitlines()
    names = "num_epochs_between_checkpoints job_name project_name deepspeed data_loader_type"
    named = ", ".join(f"--{name}" for name in [*names.split(), "fp16_backend", "fp16_opt"])
    assert unused == f"warning: {named} have no effect here; docs/migration.md says why"
    assert lost.startswith("warning: --tokenizer_name=bert-large-uncased has no counterpart here, ")
    values = ",".join(SETTINGS["validation_marks"][0])
    assert marks.endswith(f"its validations become --validation_marks={values}")


def groups(line):
    """[[flag, value] or [switch]] of a line."""
    found = []
    for word in line.split():
        if word.startswith("--"):
            found.append([word])
        else:
            found[-1].append(word)
    return found


@pytest.mark.parametrize("script, line", [("pretrain", LINE), ("classify", GLUE_LINE)])
def test_order_form_and_repetition_change_nothing(script, line):
    expected = given(script, *words(line))
    draw = random.Random(1)
    for _ in range(40):
        parts = groups(line)
        parts += draw.sample(parts, 3)
        draw.shuffle(parts)
        forms = []
        for flag, *value in parts:
            value = value or draw.choice([[], ["true"], ["True"]])
            forms += ["=".join([flag, *value])] if draw.random() < 0.5 else [flag, *value]
        assert given(script, *forms) == expected, forms


@pytest.mark.parametrize(
    "theirs, ours",
    [
        ("--train_micro_batch_size_per_gpu=16", dict(train_batch_size="16")),
        ("--train_micro_batch_size_per_gpu=16 --train_batch_size=64",
         dict(train_batch_size="16", global_batch_size=64)),
        ("--train_batch_size=64 --train_micro_batch_size_per_gpu=16 "
         "--gradient_accumulation_steps=1",
         dict(train_batch_size="16", global_batch_size=64)),
        ("--train_micro_batch_size_per_gpu=16 --gradient_accumulation_steps=2",
         dict(train_batch_size="16", gradient_accumulation_steps=2)),
        ("--train_batch_size=64", dict(train_batch_size="64")),
        ("--train_batch_size=64 --adam_eps=1e-6", dict(train_batch_size="64", adam_epsilon=1e-6)),
        ("--lr=2e-3", dict(learning_rate=2e-3, lr_scaling="none")),
        ("--lr=2e-3 --lr_scaling=sqrt", dict(learning_rate=2e-3, lr_scaling="sqrt")),
        ("--lr=2e-3 --curve=linear", dict(learning_rate=2e-3, lr_scaling="none", curve="linear")),
        ("--gradient_clipping=0.5", dict(clip_norm=0.5)),
        ("--encoder_ln_mode=pre-ln", dict(norm_first=True)),
        ("--encoder_ln_mode=post-ln", dict(norm_first=False)),
        ("--layer_norm_type=rms_norm", dict(norm_type="rms_norm")),
        ("--layer_norm_type=apex", dict(norm_type="layer_norm")),
        ("--dataset_path=a/b", dict(input_file="a/b")),
        ("--print_steps=7", dict(log_steps=7)),
        ("--validation_micro_batch=4", dict(eval_batch_size=4)),
        ("--early_exit_time_marker=12", dict(total_training_time=12.0)),
        ("--early_exit_time_marker=24 --total_training_time=24", dict(total_training_time=24.0)),
        ("--early_exit_time_marker=24 --total_training_time=30m", dict(total_training_time=0.5)),
        ("--use_early_stopping", dict(early_stop_time=720.0, early_stop_eval_loss=2.1)),
        ("--use_early_stopping --early_stop_time=9",
         dict(early_stop_time=9.0, early_stop_eval_loss=2.1)),
        ("--use_early_stopping=false --early_stop_time=9", {}),
        ("--early_stop_time=9", dict(early_stop_time=9.0)),
        ("--nodo_validation --validation_epochs=3", {}),
        ("--validation_epochs=3", dict(validation_epochs=3.0)),
        ("--optimizer_type=adamw --adam_eps=1e-7", dict(optimizer="adamw", adam_epsilon=1e-7)),
        ("--model_type=bert-mlm-nsp --adam_eps=1e-7",
         dict(train_objective=["mlm", "nsp"], model="budget24h", adam_epsilon=1e-7)),
        ("--model_type=bert-mlm --model=tiny --adam_eps=1e-7",
         dict(train_objective=["mlm"], model="tiny", adam_epsilon=1e-7)),
        ("--lr_schedule=constant_step --num_warmup_steps=9 --adam_eps=1e-7",
         dict(lr_schedule="step", num_warmup_steps=9, adam_epsilon=1e-7)),
        ("--lr_schedule=step --num_warmup_steps=9 --adam_eps=1e-7",
         dict(lr_schedule="step", adam_epsilon=1e-7)),
        ("--curve=constant --adam_eps=1e-7", dict(curve="constant", adam_epsilon=1e-7)),
        ("--deepspeed", {}),
        ("--deepspeed --seed 3", dict(seed=3)),
        ("--seed 3 --deepspeed=true", dict(seed=3)),
        ("--fp16 --precision=float16", dict(precision="float16")),
        ("--lr 1e-3 --learning_rate 0.001", dict(learning_rate=1e-3, lr_scaling="none")),
        ("--finetune_time_markers=0.5,0.9", dict(finetune_time_markers=["0.5", "0.9"])),
        *((f"--{name}=1", {}) for name in (
            "fp16_backend fp16_opt job_name current_run_id steps_per_print num_workers decay_step "
            "max_coeff scale_cnt_limit log_throughput_every num_epochs max_steps_per_epoch"
        ).split()),
        *((f"--{name}", {}) for name in (
            "add_nsp async_worker bias_correction gelu_checkpoint prescale_gradients "
            "no_fused_linear_layer").split()),
    ],
)  # fmt: skip
def test_each_flag_means_what_it_means_there(theirs, ours):
    assert given("pretrain", *theirs.split()) == ours


@pytest.mark.parametrize(
    "theirs, complaint",
    [
        ("--encoder_ln_mode=mid-ln", "--encoder_ln_mode=mid-ln: must be one of pre-ln, post-ln"),
        ("--layer_norm_type=x", "--layer_norm_type=x: must be one of pytorch, apex, rms_norm"),
        ("--optimizer_type=lamb --adam_eps=1", "=lamb: only its adamw has a counte"),
        ("--curve=exp --adam_eps=1", "--curve=exp: must be one of linear, cosine"),
        ("--lr_schedule=x --adam_eps=1", "=x: must be one of step, constant_step, time"),
        ("--model_type=gpt --adam_eps=1", "=gpt: must be one of bert-mlm, bert-mlm-rob"),
        ("--early_exit_time_marker=12 --total_training_time=24", "its schedule of 24 hours"),
        ("--early_exit_time_marker=soon", "--early_exit_time_marker=soon: must be a time"),
        ("--validation_epochs_begin=0", "--validation_epochs_begin=0 must be a whole number"),
        ("--validation_epochs=1.5 --do_validation", "--validation_epochs=1.5 must be a whole"),
        ("--validation_end_proportion=2", "=2 must be a share of the run, from 0 to 1"),
        ("--validation_end_proportion=x", "=x must be a share of the run, from 0 to 1"),
        ("--load_training_checkpoint=x", aliases.RESUMES),
        ("--deepspeed ds.json", f"--deepspeed=ds.json: {aliases.ONE_PROCESS}"),
        ("--deepspeed=ds.json --adam_eps=1", f"--deepspeed=ds.json: {aliases.ONE_PROCESS}"),
        ("--fp16 --precision=bfloat16", "--fp16 and --precision=bfloat16: both set --precision"),
        ("--lr=1e-3 --learning_rate=1e-4", "both set --learning_rate"),
        ("--lr_scheduler_type=inverse_sqrt", "=inverse_sqrt: has no counterpart here; must be one"),
        ("--gradient_clippin=1", "did you mean --gradient_clipping"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_said_in_one_line(theirs, complaint):
    with pytest.raises(UserError) as error:
        given("pretrain", *theirs.split())
    assert complaint in str(error.value) and len(str(error.value)) <= 300


def test_train_batch_size_is_the_global_batch_beside_the_micro_batch():
    call = parsed("pretrain", *words(LINE))
    plan = plan_batch(call.make(BatchConfig), call.make(OptimizerConfig).learning_rate, 8)
    assert (plan.global_batch_size, plan.micro_batch_size, plan.num_micro_batches) == (4096, 32, 16)
    assert plan.learning_rate == 1e-3  # whatever the number of GPUs


def academic_rate(position, total, warmup):
    """LinearCurve of pretraining/schedules.py."""
    if position < warmup:
        return position / warmup
    return max(0.0, total - position) / max(1.0, total - warmup)


@pytest.mark.parametrize("warmup", [0.06, 0.3, 0.5])
def test_their_linear_is_our_curve_by_the_clock_and_by_steps(warmup):
    line = ["--adam_eps=1e-6", "--curve=linear", f"--warmup_proportion={warmup}"]
    by_time = [*line, "--lr_schedule=time", "--total_training_time=24"]
    config = parsed("pretrain", *by_time).make(ScheduleConfig)
    for hour in range(25):
        ours = learning_rate_factor(0, 1, config, hour / 24)
        assert ours == pytest.approx(academic_rate(hour, 24, 24 * warmup), abs=1e-12)
    by_steps = [*line, "--lr_schedule=step"]
    fixed = [*line, "--lr_schedule=constant_step", "--num_warmup_steps=30"]
    for arguments, steps in ((by_steps, 100 * warmup), (fixed, 30)):
        config = parsed("pretrain", *arguments).make(ScheduleConfig)
        for step in range(101):
            expected = academic_rate(step, 100, steps)
            assert learning_rate_factor(step, 100, config) == pytest.approx(expected, abs=1e-12)


def trainer_rate(kind, step, total, warmup, peak):
    """get_polynomial_decay_schedule_with_warmup and get_cosine_schedule_with_warmup, with the
    values that Trainer gives them.
    """
    if step < warmup:
        return step / max(1, warmup)
    if kind == "cosine":
        progress = (step - warmup) / max(1, total - warmup)
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * progress)))
    remaining = 1 - (step - warmup) / (total - warmup)
    return ((peak - 1e-7) * remaining**1.0 + 1e-7) / peak


WARMUPS = {
    **{"": 0, "--warmup_steps=0": 0, "--warmup_steps=50": 50, "--warmup_ratio=0.1": 20},
    **{"--warmup_steps 0.25": 50, "--num_warmup_steps=7": 7, "--warmup_proportion=0": 0},
}


@pytest.mark.parametrize("script", ["pretrain", "classify"])
@pytest.mark.parametrize("kind", ["polynomial", "cosine"])
@pytest.mark.parametrize("warmup", WARMUPS)
@pytest.mark.parametrize("peak", ["5e-5", "0.001", None])
def test_trainers_schedules_are_equal(script, kind, warmup, peak):
    module = MODULES[script]
    rates = [] if peak is None else [f"--learning_rate={peak}"]
    arguments = [f"--lr_scheduler_type={kind}", *warmup.split(), *rates]
    defaults = getattr(module, "DEFAULTS", None)
    call = flags.parse(
        [script, *arguments], "", (), module.CLASSES, defaults=defaults, script=script
    )
    config = call.make(ScheduleConfig)
    rate = call.make(OptimizerConfig).learning_rate
    for step in range(200):
        expected = trainer_rate(kind, step, 200, WARMUPS[warmup], rate)
        assert learning_rate_factor(step, 200, config) == pytest.approx(expected, rel=1e-9)


def test_the_end_of_a_recipes_rate_is_equal_too():
    call = parsed("classify", "--recipe=crammed", "--lr_scheduler_type=polynomial")
    rate = call.make(OptimizerConfig).learning_rate
    assert call.make(ScheduleConfig).min_lr_ratio * rate == pytest.approx(1e-7)
    assert (
        call.make(ScheduleConfig).num_warmup_steps
        == RECIPES["crammed"].settings("classify").get("num_warmup_steps", (None,))[0]
    )


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    epochs=strategies.tuples(*[strategies.integers(1, 12)] * 3),
    begin=strategies.sampled_from(["0", "0.05", "0.1", "0.2", "0.5"]),
    end=strategies.sampled_from(["0", "0.01", "0.05", "0.1", "0.4"]),
)
@hypothesis.example(epochs=(3, 1, 1), begin="0.05", end="0.01")
def test_marks_follow_the_numbers(epochs, begin, end):
    """In each part of the run they are as far apart as its flag says. The length of an epoch is
    that which makes the paper's marks those of the recipe.
    """
    names = ("epochs", "epochs_begin", "epochs_end")
    schedule = dict(zip(names, epochs, strict=True))
    texts = schedule | dict(begin_proportion=begin, end_proportion=end)
    arguments = [f"--validation_{name}={value}" for name, value in texts.items()]
    marks = given("pretrain", *arguments)["validation_marks"]
    assert marks == sorted(set(marks), key=float) and all(0 < float(mark) < 1 for mark in marks)
    first, last = fractions.Fraction(begin), 1 - fractions.Fraction(end)
    expected = set()
    lengths = {"epochs": (1, 60), "epochs_begin": (1, 100), "epochs_end": (1, 200)}
    lengths = {name: fractions.Fraction(*length) for name, length in lengths.items()}
    for name, start, low, high in (
        ("epochs_begin", 0, 0, first), ("epochs", 0, first, last), ("epochs_end", last, last, 1)
    ):  # fmt: skip
        for count in range(201):
            mark = start + count * schedule[name] * lengths[name]
            is_inside = low < mark < high or (name == "epochs_end" and mark == low)
            if (is_inside or (name == "epochs_begin" and mark == high)) and 0 < mark < 1:
                expected.add(f"{float(mark):.6g}")
    assert set(marks) == expected
    if (epochs, begin, end) == ((3, 1, 1), "0.05", "0.01"):
        assert tuple(marks) == SETTINGS["validation_marks"][0]


def test_the_early_stop_sees_a_loss_soon_after_its_time():
    call = parsed("pretrain", *words(LINE))
    cadence = Cadence(call.make(CadenceConfig), None, 1e9)
    monitor = DivergenceMonitor(call.make(EndingConfig))
    moments = [minute / 1440 for minute in range(1441)]  # the run's minutes
    seen = [
        minute
        for minute, (before, after) in enumerate(itertools.pairwise(moments), 1)
        if cadence.validates((0, before), (1, after), saves=False)
    ]
    stops = [minute for minute in seen if monitor.early_stop(1, 60 * minute, 6.01)]
    assert 180 <= stops[0] <= 180 + 0.05 * 1440 and stops == [m for m in seen if m >= 180]
    assert not [minute for minute in seen if monitor.early_stop(1, 60 * minute, 5.99)]


def test_overwriting_is_refused_where_a_run_is(tmp_path, capsys):
    for script in ("pretrain", "classify"):
        folder = tmp_path / script
        arguments = [f"--output_dir={folder}", "--overwrite_output_dir"]
        assert given(script, *arguments) == dict(output_dir=str(folder))
        folder.mkdir()
        assert given(script, *arguments) == dict(output_dir=str(folder))
        (folder / "run.json").write_text("{}")
        assert given(script, arguments[0], "--overwrite_output_dir=false")
        assert given(script, *arguments, "--overwrite")["overwrite"] is True
        for more in ([], ["--nooverwrite"]):
            with pytest.raises(UserError, match="--overwrite removes the run in --output_dir"):
                parsed(script, *arguments, *more)


@pytest.mark.parametrize("script", ["data", "pretrain", "classify"])
@pytest.mark.parametrize(
    "line",
    [
        "name=amp arch=crammed-bert train=bert-o4 data=pile-readymade",
        "eval=GLUE_sane name=amp eval.checkpoint=latest impl.microbatch_size=16",
        "seed=233 budget=24 name=bert data=bookcorpus-wikipedia train.batch_size=4096",
        "dryrun=True eval=rte name=x eval.checkpoint=hf://bert-base-uncased",
        "--seed=1 name=amp arch=crammed-bert",
        "+impl.x=1",
    ],
)
def test_crammings_words_are_answered_by_the_recipe_and_three_commands(script, line, capsys):
    line = line if script != "data" else line.removeprefix("--seed=1 ")
    assert command(["bert-gpu", script, *line.split()]) == 2
    (answer,) = capsys.readouterr().err.splitlines()
    assert all(part in answer for part in ("--recipe=crammed", *aliases.SCRIPTS.values()))
    assert len(answer) <= 300


def test_our_own_flags_without_dashes_are_not_crammings(capsys):
    assert command(["bert-gpu", "pretrain", "seed=1", "learning_rate=1e-3"]) == 2
    assert "'seed=1': not a flag; flags are written --name=value" in capsys.readouterr().err


def test_the_page_of_all_flags_has_the_table_of_24_hour_bert():
    text = imported(ROOT / "docs" / "make_reference.py").reference()
    table = text.split(f"### {aliases.ACADEMIC}\n")[1]
    named = set(re.findall(r"^\| pretrain \| `--(\w+)", table, re.M))
    owned = {n for n, a in aliases.ALIASES["pretrain"].items() if aliases.ACADEMIC in a.owners}
    assert named == owned | aliases.BESIDE["pretrain"].keys()
    fields = fields_of(*pretrain.CLASSES)
    for name in named:
        for flag in (
            aliases.BESIDE["pretrain"].get(name, aliases.ALIASES["pretrain"].get(name)).flags
        ):
            assert flag in fields


@pytest.mark.long
def test_both_lines_train(tmp_path, monkeypatch, sample_text):
    monkeypatch.chdir(tmp_path)
    text = ["--input_file", sample_text, "--output_file=DATA/x.tfrecord", "--vocab_size=500"]
    small = ["--dupe_factor=1", "--max_seq_length=32", "--quiet"]
    assert command(["bert-gpu", "data", *text, *small]) == 0
    sizes = ["--train_batch_size=32", "--train_micro_batch_size_per_gpu=16"]
    short = [*TINY, *sizes, "--total_training_time=0.0002"]
    assert command(["bert-gpu", "pretrain", *words(LINE), *short]) == 0
    (tmp_path / "glue").mkdir()
    head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    rows = [f"{i % 2}\t{i}\t{i}\tone text {i}\tanother text {i % 3}" for i in range(12)]
    for name in ("train", "dev"):
        (tmp_path / "glue" / f"{name}.tsv").write_text("\n".join([head, *rows]) + "\n")
    line = words(GLUE_LINE, MODEL="OUT/model", OUT="MRPC")
    assert command(["bert-gpu", "classify", *line, "--data_dir=glue"]) == 0
    assert "accuracy" in json.loads((tmp_path / "MRPC" / "eval_results.json").read_text())
