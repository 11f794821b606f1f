"""Recipes: the table is sound, what the user gives wins without a contradiction, and each recipe
runs from text to a classifier.
"""

import dataclasses
import functools
import itertools
import json
import math
import random

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_gpu.__main__ import main as command
from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import complaint, value_type
from bert_gpu.cli import classify, data, flags, pretrain
from bert_gpu.cli.training import read_settings
from bert_gpu.data.config import DataConfig
from bert_gpu.data.manifest import read_manifest
from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.model.config import ShapeConfig, preset
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.optim.config import OptimizerConfig, ScheduleConfig
from bert_gpu.optim.schedules import learning_rate_factor, num_micro_batches_at
from bert_gpu.pretrain.config import PretrainConfig, PretrainSettings, resolve_model
from bert_gpu.recipes.rules import MODEL_FIELDS, OVERRIDE_RULES, RECIPES, differences, resolve
from bert_gpu.train.config import BatchConfig, CadenceConfig, fit_sizes
from bert_gpu.train.plan import plan_batch
from tests import pretraining

CLASSES = dict(
    data=data.CLASSES,
    pretrain=pretrain.CLASSES,
    classify=classify.CLASSES,
)
FIELDS = {
    script: {field.name: field for kind in kinds for field in dataclasses.fields(kind)}
    for script, kinds in CLASSES.items()
}
# None: without --phase
PHASES = [(name, phase) for name, recipe in RECIPES.items() for phase in (None, *recipe.phases)]
EACH = [(name, phase, script) for name, phase in PHASES for script in CLASSES]


def parse(script, *argv):
    return flags.parse(["script.py", *argv], "Does things.", [], CLASSES[script], script=script)


def settings(script, kind, *argv):
    return parse(script, *argv).make(kind)


def called(name, phase):
    """The flags that choose a recipe and one of its phases."""
    return [f"--recipe={name}"] + ([] if phase is None else [f"--phase={phase}"])


@pytest.mark.parametrize("name, phase, script", EACH)
def test_every_entry_is_a_sound_flag_with_one_source(name, phase, script):
    recipe = RECIPES[name]
    parts = [getattr(recipe, script)]
    parts += [recipe.phases[phase].get(script, ())] if phase else []
    for part in parts:
        flat = [flag for _, group in part for flag in group]
        assert len(set(flat)) == len(flat), "a flag is set more than once"
    settings = recipe.settings(script, phase)
    entries = [(flag, value, source) for flag, (value, source) in settings.items()]
    for flag, value, source in entries:
        assert source.strip()
        assert complaint(FIELDS[script][flag], value) is None
    assert is_accepted(script, {flag: value for flag, value, _ in entries})
    assert RECIPES[name].summary and set(RECIPES[name].differs) <= set(CLASSES)


def test_what_yields_exists():
    for rule in OVERRIDE_RULES:
        scripts = [rule.script] if rule.script else list(CLASSES)
        assert all(
            any(flag in FIELDS[script] for script in scripts) for flag in rule.flags + rule.to_drop
        )


def candidates(field):
    """Some values of a setting."""
    kind, _ = value_type(field)
    if kind is bool:
        return [True, False]
    numbers = [0, 1, 100] if kind is int else [0.0, 0.5, 24.0] if kind is float else []
    return [*numbers, *field.metadata["words"], *(field.metadata["choices"] or [])] or [
        field.default
    ]


def is_accepted(script, values):
    """Whether the settings classes of a script take {flag: value}."""
    return all(takes(kind, values) for kind in CLASSES[script])


def takes(kind, values, known={}):  # noqa: B006
    """Whether a settings class takes what it knows of {flag: value}; tried once for each."""
    own = {name: values[name] for name in names_of(kind) if name in values}
    key = kind, repr(own)
    if key not in known:
        try:
            kind(**own)
            known[key] = True
        except UserError:
            known[key] = False
    return known[key]


@functools.cache
def names_of(kind):
    return [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize("num_pairs", [200, pytest.param(10**9, marks=pytest.mark.long)])
@pytest.mark.parametrize("name, phase, script", EACH)
def test_what_is_accepted_alone_is_accepted_beside_a_recipe(name, phase, script, num_pairs):
    """Also two flags at a time, of those that the rules know: a sample of these pairs, or all."""
    known = {flag for rule in OVERRIDE_RULES for flag in rule.flags + rule.to_drop} | {
        "total_training_time"
    }
    each = [
        {field.name: value}
        for field in FIELDS[script].values()
        for value in candidates(field)
        if value is not None
    ]
    pairs = [
        first | second
        for first, second in itertools.combinations(
            [given for given in each if known >= set(given)], 2
        )
    ]
    pairs = random.Random(f"{name} {phase} {script}").sample(pairs, min(num_pairs, len(pairs)))
    num_accepted = 0
    for given in each + pairs:
        if is_accepted(script, given):
            num_accepted += 1
            resolved = resolve(name, script, given, phase)
            resolved = {flag: value for flag, (value, _) in resolved.items()}
            assert not set(resolved) & set(given)
            assert is_accepted(script, resolved | given), given
    assert num_accepted > len(FIELDS[script])


def test_unknown_recipes_are_refused(capsys):
    for script in CLASSES:
        assert flags.exit_code(command, ["bert-gpu", script, "--recipe=cramed"]) == 2
        assert f"--recipe=cramed: must be one of {', '.join(RECIPES)}" in capsys.readouterr().err


def test_the_command_line_wins_over_the_recipe_and_the_recipe_over_defaults():
    assert settings("pretrain", OptimizerConfig).learning_rate == 1e-4
    assert settings("pretrain", OptimizerConfig, "--recipe=crammed").learning_rate == 1e-3
    assert (
        settings(
            "pretrain", OptimizerConfig, "--recipe=crammed", "--learning_rate=1e-4"
        ).learning_rate
        == 1e-4
    )
    defaults = dict(learning_rate=5e-5)
    parsed = flags.parse(
        ["x", "--recipe=crammed"], "", [], CLASSES["classify"], defaults=defaults, script="classify"
    )
    assert parsed.make(OptimizerConfig).learning_rate == 4e-5


@pytest.mark.parametrize(
    "recipe, script, given, kind, expected",
    [
        (
            "crammed",
            "pretrain",
            ["--gradient_accumulation_steps=4"],
            BatchConfig,
            dict(global_batch_size=None, train_batch_size=128),
        ),
        ("crammed", "pretrain", ["--bert_config_file=x.json"], PretrainConfig, dict(model=None)),
        ("crammed", "pretrain", ["--encoder=garden:bert"], PretrainConfig, dict(model=None)),
        (
            "crammed",
            "pretrain",
            ["--max_seq_length=64"],
            PretrainConfig,
            dict(max_predictions_per_seq=None),
        ),
        (
            "crammed",
            "data",
            ["--max_seq_length=64"],
            DataConfig,
            dict(max_predictions_per_seq=None, num_predictions=16),
        ),
        (
            "crammed",
            "pretrain",
            ["--num_train_steps=5"],
            ScheduleConfig,
            dict(total_training_time=24.0, lr_schedule="time"),
        ),
        (
            "crammed",
            "pretrain",
            ["--lr_schedule=step"],
            ScheduleConfig,
            dict(total_training_time=None, curve="triangle"),
        ),
        (
            "crammed",
            "pretrain",
            ["--num_warmup_steps=9"],
            ScheduleConfig,
            dict(num_warmup_steps=9, curve="linear"),
        ),
        (
            "budget24h",
            "pretrain",
            ["--num_warmup_steps=9"],
            ScheduleConfig,
            dict(num_warmup_steps=9, curve="linear"),
        ),
        (
            "budget24h",
            "classify",
            ["--num_warmup_steps=9"],
            ScheduleConfig,
            dict(num_warmup_steps=9, curve="one_cycle"),
        ),
        (
            "budget24h",
            "classify",
            ["--warmup_proportion=0.2"],
            ScheduleConfig,
            dict(num_warmup_steps=None),
        ),
        (
            "budget24h",
            "classify",
            ["--curve=constant"],
            ScheduleConfig,
            dict(min_lr_ratio=0.0, num_warmup_steps=50),
        ),
        (
            "bert",
            "pretrain",
            ["--num_train_epochs=2"],
            CadenceConfig,
            dict(num_train_steps=None, num_train_epochs=2.0),
        ),
        ("gpu8gb", "pretrain", ["--num_train_steps=9"], CadenceConfig, dict(num_train_steps=9)),
    ],
)
def test_what_contradicts_a_flag_yields(recipe, script, given, kind, expected):
    made = settings(script, kind, f"--recipe={recipe}", *given)
    assert {name: getattr(made, name) for name in expected} == expected


def test_a_model_of_the_users_replaces_the_recipes_as_a_whole():
    parsed = parse("pretrain", "--recipe=gpu8gb")
    assert parsed.overrides(ShapeConfig) == dict(
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    parsed = parse("pretrain", "--recipe=gpu8gb", "--model=tiny", "--hidden_size=64")
    assert parsed.make(PretrainConfig).model == "tiny" and parsed.overrides(ShapeConfig) == dict(
        hidden_size=64
    )
    assert (
        settings("classify", FinetuneConfig, "--recipe=crammed", "--model=tiny").hidden_dropout_prob
        == 0.1
    )


@pytest.mark.parametrize(
    "argv, num_replicas, stored, micro, wanted",
    [
        (["--recipe=crammed"], 1, None, 128, 8192),
        (["--recipe=crammed"], 4, None, 128, 8192),
        (["--recipe=bert"], 3, None, 32, 288),  # 256 is not a multiple of 3
        (["--recipe=quick"], 3, None, 24, 72),  # within an eighth of 64
        (["--recipe=bert", "--train_batch_size=24"], 1, None, 24, 264),
        (["--recipe=crammed", "--global_batch_size=16"], 1, None, 16, 16),
        (["--recipe=crammed", "--global_batch_size=24"], 2, None, 12, 24),
        (["--recipe=crammed", "--global_batch_size=200"], 1, None, 100, 200),
        (["--recipe=gpu8gb"], 5, None, "auto", 2015),
        (["--recipe=crammed"], 1, dict(global_batch_size=16), 16, None),
        # complained about later
        (["--recipe=crammed", "--global_batch_size=32"], 1, dict(global_batch_size=16), 16, 32),
        (["--global_batch_size=24"], 1, None, 32, 24),  # no recipe, nothing to fit
        (["--recipe=bert", "--gradient_accumulation_steps=2"], 1, None, 32, None),
    ],
)
def test_sizes_of_a_recipe_fit_those_of_the_user(argv, num_replicas, stored, micro, wanted):
    parsed = parse("pretrain", *argv)
    batch = fit_sizes(parsed.make(BatchConfig), tuple(parsed.recipe), num_replicas, stored)
    assert (batch.train_batch_size, batch.global_batch_size) == (micro, wanted)
    if parsed.recipe_name and "auto" not in (micro,) and not (stored and wanted):
        plan_batch(batch, 1.0, num_replicas, stored and stored | dict(learning_rate=1.0))


def test_the_crammed_model_has_the_weights_of_its_description():
    parsed = parse("pretrain", "--recipe=crammed", "--vocab_size=32768")
    settings = read_settings(parsed, PretrainSettings, architecture=parsed.overrides(ShapeConfig))
    model = resolve_model(settings, 128, None, "CPU")
    specs = pretraining.weights(BertEncoder(model), False)
    hidden, layers, vocabulary, inner = 768, 16, 32768, 3072 // 2
    norm = 2 * hidden
    # queries, keys, values, output; gated; two norms
    layer = 4 * hidden * hidden + hidden * 2 * inner + inner * hidden + 2 * norm
    # tied decoder; one scale of the positions; final norm
    expected = vocabulary * hidden + 1 + norm + layers * layer + norm
    assert sum(math.prod(spec.shape) for spec in specs.values()) == expected
    assert model.hidden_dropout_prob == model.attention_probs_dropout_prob == 0


def test_the_modern_model_has_the_weights_of_its_description():
    """As many as ModernBERT base is said to have, with its vocabulary: 149 million."""
    parsed = parse("pretrain", "--recipe=modern", "--vocab_size=50368")
    settings = read_settings(parsed, PretrainSettings, architecture=parsed.overrides(ShapeConfig))
    model = resolve_model(settings, 128, None, "CPU")
    specs = pretraining.weights(BertEncoder(model), False)
    hidden, layers, inner = 768, 22, 2304 // 2
    # one scale for each of two norms
    layer = 4 * hidden * hidden + hidden * 2 * inner + inner * hidden + 2 * hidden
    # tied decoder; norm of the embeddings, final norm
    expected = 50368 * hidden + layers * layer + 2 * hidden
    assert sum(math.prod(spec.shape) for spec in specs.values()) == expected
    assert round(expected / 1e6) == 149
    assert not [name for name in specs if name.endswith("/bias")]


def test_the_crammed_clock():
    parsed = parse("pretrain", "--recipe=crammed")
    schedule, batch = parsed.make(ScheduleConfig), parsed.make(BatchConfig)
    plan = plan_batch(batch, parsed.make(OptimizerConfig).learning_rate, 1, schedule=schedule)
    learning_rates = [
        plan.learning_rate * learning_rate_factor(0, None, schedule, progress)
        for progress in (0.0, 0.375, 0.75, 0.875, 1.0)
    ]
    np.testing.assert_allclose(learning_rates, [0.25e-3, 0.625e-3, 1e-3, 0.5e-3, 0.0], rtol=1e-12)
    sizes = [
        plan.unit_size * num_micro_batches_at(p, plan.num_micro_batches, schedule)
        for p in (0.0, 0.3, 0.5999, 0.6, 1.0)
    ]
    assert sizes == [128, 4096 + 128, 8192, 8192, 8192]


def test_data_and_training_of_a_recipe_agree():
    for name, phase in PHASES:
        made = settings("data", DataConfig, *called(name, phase))
        wanted = parse("pretrain", *called(name, phase)).recipe
        assert wanted["max_seq_length"][0] == made.max_seq_length
        assert (
            wanted["max_predictions_per_seq"][0]
            == made.num_predictions
            == math.ceil(made.max_seq_length * made.masked_lm_prob)
        )
        assert differences(name, made.fixed()) == []
        model = {name: value for name, (value, _) in wanted.items() if name in MODEL_FIELDS}
        longest = preset(wanted["model"][0], **model).max_position_embeddings
        assert longest >= made.max_seq_length
    made = settings("data", DataConfig).fixed()
    assert differences("crammed", made)[:2] == [
        "objective is nsp, not packed",
        "pack_separator is cls_sep, not sep",
    ]


def test_the_schedule_of_roberta():
    """Liu et al. 2019, table 9: 6e-4 after 24,000 steps, then a line to 0 after 500,000."""
    parsed = parse("pretrain", "--recipe=roberta")
    schedule, batch = parsed.make(ScheduleConfig), parsed.make(BatchConfig)
    plan = plan_batch(batch, parsed.make(OptimizerConfig).learning_rate, 1)
    num_steps = parsed.make(CadenceConfig).num_train_steps
    learning_rates = [
        plan.learning_rate * learning_rate_factor(step, num_steps, schedule)
        for step in (0, 12_000, 24_000, 262_000, 500_000)
    ]
    np.testing.assert_allclose(learning_rates, [0.0, 3e-4, 6e-4, 3e-4, 0.0], atol=1e-12)
    assert plan.global_batch_size == 8192 and num_steps == 500_000


def test_the_modern_clock():
    """The peak from 6 % to 90 % of the run, all of the batch from 3 % on."""
    parsed = parse("pretrain", "--recipe=modern")
    schedule, batch = parsed.make(ScheduleConfig), parsed.make(BatchConfig)
    plan = plan_batch(batch, parsed.make(OptimizerConfig).learning_rate, 1, schedule=schedule)
    steps = [0, 2_100, 4_200, 35_000, 63_000, 64_750, 70_000]
    learning_rates = [
        plan.learning_rate * learning_rate_factor(step, 70_000, schedule) for step in steps
    ]
    np.testing.assert_allclose(
        learning_rates, [0.0, 1.25e-3, 2.5e-3, 2.5e-3, 2.5e-3, 1.25e-3, 0.0], atol=1e-12
    )
    sizes = [
        plan.unit_size * num_micro_batches_at(p, plan.num_micro_batches, schedule)
        for p in (0.0, 0.015, 0.03, 1.0)
    ]
    assert sizes == [128, 2048 + 128, 4096, 4096]


def test_the_learning_rate_of_muon_is_not_given_to_another_optimizer():
    """Where a recipe has Muon; the rate of a recipe with AdamW stays with --optimizer=muon."""
    muon = parse("pretrain", "--recipe=modern").make(OptimizerConfig)
    assert (muon.optimizer, muon.learning_rate) == ("muon", 2.5e-3)
    default = OptimizerConfig()
    for recipe in ("modern", "quick", "cpu2h"):
        adamw = parse("pretrain", f"--recipe={recipe}", "--optimizer=adamw").make(OptimizerConfig)
        assert adamw.learning_rate == default.learning_rate
        given = parse("pretrain", f"--recipe={recipe}", "--optimizer=lamb", "--learning_rate=3e-4")
        assert given.make(OptimizerConfig).learning_rate == 3e-4
    for argv in (["--recipe=modern", "--optimizer=muon"], ["--recipe=modern"]):
        assert parse("pretrain", *argv).make(OptimizerConfig) == muon
    crammed = parse("pretrain", "--recipe=crammed", "--optimizer=muon").make(OptimizerConfig)
    assert (crammed.optimizer, crammed.learning_rate) == ("muon", 1e-3)


def test_the_two_phases_of_bert_are_one_line():
    """Devlin et al. 2018, appendix A.2: up to 1e-4 over 10,000 steps, then the line that reaches 0
    after a million steps; the last tenth of them on long rows.
    """
    whole = ScheduleConfig(curve="linear", num_warmup_steps=10_000)
    num_steps, offset = [], 0
    for phase, length in ((1, 128), (2, 512)):
        parsed = parse("pretrain", *called("bert", phase))
        schedule, optimizer = parsed.make(ScheduleConfig), parsed.make(OptimizerConfig)
        num_steps.append(parsed.make(CadenceConfig).num_train_steps)
        assert parsed.recipe["max_seq_length"][0] == length
        assert parsed.make(BatchConfig).global_batch_size == 256
        for step in (0, 1, 9_999, 10_000, 10_001, 50_000, 99_999, num_steps[-1] - 1):
            ours = optimizer.learning_rate * learning_rate_factor(step, num_steps[-1], schedule)
            googles = 1e-4 * learning_rate_factor(offset + step, 1_000_000, whole)
            assert ours == pytest.approx(googles, rel=1e-9), (phase, step)
        offset += num_steps[-1]
    assert num_steps == [900_000, 100_000]


def test_phases_belong_to_recipes_that_have_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for argv in (["--recipe=crammed"], []):
        parsed = parse("pretrain", *argv, "--phase=2")
        assert parsed.recipe == (parse("pretrain", *argv).recipe)
        assert "warning: --phase has no effect without --recipe=bert" in capsys.readouterr().err
    assert flags.exit_code(command, ["bert-gpu", "data", "--recipe=bert", "--phase=3"]) == 2
    assert "--phase=3: must be at most 2" in capsys.readouterr().err
    assert flags.exit_code(command, ["bert-gpu", "pretrain", *called("bert", 2)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "--phase=2: continues from the model of --phase=1; add --init_checkpoint"
    )
    asked = ["bert-gpu", "pretrain", *called("bert", 2)]
    assert not flags.exit_code(command, [*asked, "--show_config"])
    assert f"warning: {error}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_where_each_setting_came_from(capsys):
    assert (
        command(["bert-gpu", "data", "--recipe=crammed", "--vocab_size=500", "--show_config"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# recipe crammed: ") and lines[1].startswith(
        "# differs from its source: "
    )
    assert "--vocab_size=500  # command line" in lines
    assert any(
        line.startswith("--objective=packed  # recipe crammed: JonasGeiping/cramming")
        for line in lines
    )
    assert "--drop_duplicates=False  # default" in lines


def test_a_recipe_is_shown_before_there_is_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(["bert-gpu", "pretrain", "--recipe=crammed", "--show_config"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# data/*.tfrecord: no data yet")
    assert (
        "--hidden_act=geglu" in out and "--lr_scaling=none  # recipe crammed: chosen by us" in out
    )
    assert list(tmp_path.iterdir()) == []


# Each recipe from text to a classifier, made small by flags beside it.

LENGTH = 32
SMALL = [
    "--num_hidden_layers=1",
    "--hidden_size=32",
    "--num_attention_heads=2",
    "--intermediate_size=64",
]


@pytest.fixture(scope="module")
def tiny_pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    words = "the man went down to river and looked at boats".split()
    draws = np.random.default_rng(1)
    for split, count in dict(train=32, dev=8).items():
        rows = [
            f"{' '.join(draws.choice(words, 5))}\t{' '.join(draws.choice(words, 5))}\t{number % 2}"
            for number in range(count)
        ]
        (folder / f"{split}.tsv").write_text("\n".join(["text_a\ttext_b\tlabel", *rows]) + "\n")
    return folder


@pytest.fixture(scope="module", params=list(RECIPES))
def run(request, tmp_path_factory, sample_text):
    """(name of the recipe, folder with data/ and run/) of a recipe trained for a few steps."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    make = [
        f"--input_file={sample_text}",
        f"--output_file={folder}/data/x.tfrecord",
        f"--max_seq_length={LENGTH}",
        "--quiet",
    ]
    # few pieces make many tokens
    make += ["--vocab_size=500", "--dupe_factor=1", "--max_tokens_per_character=1"]
    assert command(["bert-gpu", "data", f"--recipe={name}", *make]) == 0
    assert command(["bert-gpu", "pretrain", *training(name, folder)]) == 0
    return name, folder


def training(name, folder):
    by_time = "total_training_time" in RECIPES[name].settings("pretrain")
    length = (
        ["--total_training_time=0.0003", "--num_train_steps=500"]
        if by_time
        else ["--num_train_steps=3"]
    )
    small = [
        *SMALL,
        f"--max_seq_length={LENGTH}",
        "--global_batch_size=16",
        "--max_eval_steps=1",
        "--log_steps=1",
        "--quiet",
    ]
    return [
        f"--recipe={name}",
        f"--input_file={folder}/data/*.tfrecord",
        f"--output_dir={folder}/run",
        *small,
        *length,
    ]


def test_a_recipe_makes_its_data_and_trains_on_it(run, capsys):
    name, folder = run
    manifest = read_manifest(str(folder / "data"))
    recipe = {flag: value for flag, (value, _) in RECIPES[name].settings("data").items()}
    assert (manifest.objective, manifest.masking, manifest.max_seq_length) == (
        recipe["objective"],
        recipe["masking"],
        LENGTH,
    )
    assert manifest.max_predictions_per_seq == math.ceil(LENGTH * recipe["masked_lm_prob"])
    stored = json.loads((folder / "run" / "run.json").read_text())
    assert stored["free"]["recipe"] == name and stored["global_batch_size"] == 16
    weights = load_file(folder / "run" / "model" / "model.safetensors")
    assert all(np.isfinite(value).all() for value in weights.values())
    assert (folder / "run" / "model" / "vocab.txt").exists()
    # a resume with the same command
    assert command(["bert-gpu", "pretrain", *training(name, folder), "--noquiet"]) == 0
    assert "this run is finished" in capsys.readouterr().out


def test_a_recipes_model_is_fine_tuned_by_it(run, tiny_pairs, capsys):
    name, folder = run
    output = folder / "classify"
    given = [
        f"--data_dir={tiny_pairs}",
        f"--init_checkpoint={folder}/run/model",
        f"--output_dir={output}",
        "--quiet",
    ]
    small = [f"--max_seq_length={LENGTH}", "--num_train_steps=2"]
    assert command(["bert-gpu", "classify", f"--recipe={name}", *given, *small]) == 0
    assert json.loads((output / "eval_results.json").read_text())["num_examples"] == 8
    stored = json.loads((output / "run.json").read_text())
    wanted = {flag: value for flag, (value, _) in RECIPES[name].settings("classify").items()}
    assert stored["settings"]["learning_rate"] == wanted.get("learning_rate", 1e-3)
    assert ("learning_rate" in wanted) == (name not in ("quick", "cpu2h"))
    assert stored["global_batch_size"] == wanted["global_batch_size"]
    assert stored["settings"]["hidden_dropout_prob"] == (
        0.0 if name in ("gpu8gb", "quick", "cpu2h") else 0.1
    )
    assert stored["settings"]["pooler_size"] == wanted.get("pooler_size")


def test_data_that_is_not_the_recipes_is_complained_about(run, capsys):
    name, folder = run
    data, output = f"--input_file={folder}/data/*.tfrecord", f"--output_dir={folder}/other"
    assert flags.exit_code(command, ["bert-gpu", "pretrain", f"--recipe={name}", data, output]) == 2
    error, length = capsys.readouterr().err, RECIPES[name].settings("pretrain")["max_seq_length"][0]
    assert (
        f"--max_seq_length={length}: the records of" in error
        and f"(--recipe={name} sets --max_seq_length={length}; your own value wins)" in error
    )
    if name == "bert":
        command(
            [
                "bert-gpu",
                "pretrain",
                "--recipe=crammed",
                data,
                output,
                f"--max_seq_length={LENGTH}",
                "--show_config",
            ]
        )
        assert "objective is nsp, not packed" in capsys.readouterr().err
    assert not (folder / "other").exists()


@pytest.mark.parametrize("run", ["bert"], indirect=True)
def test_the_second_phase_goes_on_from_the_first_on_longer_rows(run, sample_text, capsys):
    """Also: what a phase sets is compared on a resume like anything else, so the second phase does
    not go on in the folder of the first.
    """
    name, folder = run
    data = f"--output_file={folder}/longer/x.tfrecord"
    make = [f"--input_file={sample_text}", data, f"--vocab_file={folder}/data/vocab.txt", "--quiet"]
    make += ["--dupe_factor=1", f"--max_seq_length={2 * LENGTH}"]
    assert command(["bert-gpu", "data", *called(name, 2), *make]) == 0
    given = [*training(name, folder), "--phase=2", f"--init_checkpoint={folder}/run/model"]
    given += [f"--max_seq_length={2 * LENGTH}", f"--input_file={folder}/longer/*.tfrecord"]
    assert flags.exit_code(command, ["bert-gpu", "pretrain", *given]) == 2
    error = capsys.readouterr().err
    assert f"{folder}/run/model: training writes to that folder" in error
    given += [f"--output_dir={folder}/second", "--noquiet"]
    assert command(["bert-gpu", "pretrain", *given]) == 0
    assert f"starting from {folder}/run/model" in capsys.readouterr().out
    lines = (folder / "second" / "metrics.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if "learning_rate" in line]
    assert steps[0]["learning_rate"] == 1e-5
    first, second = (
        load_file(folder / run / "model" / "model.safetensors") for run in ("run", "second")
    )
    assert first.keys() == second.keys()
    # three steps of at most 1e-5, without correction of the bias at most sqrt(10) times that
    assert max(np.abs(first[key] - second[key]).max() for key in first) < 4 * 3.2e-5
