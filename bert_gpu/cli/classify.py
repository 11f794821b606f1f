"""run_classifier.py: fine-tunes a BERT to classify texts, pairs of texts or words, to answer
questions, or to make vectors of texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bert_gpu.cli import flags, grid, training
from bert_gpu.cli.quick import implied_recipe
from bert_gpu.finetune.config import (
    FinetuneConfig,
    FinetuneSettings,
    SweepConfig,
    resolve_defaults,
    resolve_phases,
)

if TYPE_CHECKING:
    from bert_gpu.finetune.run import Result
    from bert_gpu.runs.trials import SweepResult

SUMMARY = (
    "Fine-tunes a BERT to classify texts or pairs of texts, to score them, to tag words (ner), to "
    "answer questions (squad) or to make vectors of texts (similarity), evaluates it (accuracy, "
    "F1, ROC-AUC and more) and predicts: GLUE's tasks, CoNLL's, SQuAD or your own. Files are "
    "DATA_DIR/{train,dev,test}.tsv, .csv, .jsonl, .json or .parquet, those of ner and similarity "
    "also .txt, those of squad .json. To resume a run that was stopped, repeat the same command."
)
EXAMPLE = (
    "python run_classifier.py",
    (
        "python run_classifier.py --data_dir=quora --text_a=question1 "
        "--text_b=question2 --label=is_duplicate --num_gpus=4"
    ),
    (
        "python run_classifier.py --init_checkpoint=bert-base-uncased "
        "--learning_rate=3e-5 --num_train_epochs=4"
    ),
    "python run_classifier.py --task_name=mnli --data_dir=glue --output_dir=runs/mnli",
    "python run_classifier.py --task_name=ner --data_dir=conll2003 --output_dir=runs/ner",
    "python run_classifier.py --task_name=similarity --train_file=raw.txt --output_dir=runs/search",
    "python run_classifier.py --do_predict --output_dir=runs/classify --test_file=new.csv",
)

CLASSES = training.classes_of(FinetuneSettings, SweepConfig)
DEFAULTS = training.defaults_of(FinetuneSettings)
NOT_IN_A_GRID = grid.ONCE | dict(  # {flag that --grid cannot vary: what to do instead}
    seed="use --num_trials for several seeds",
    num_trials="give it once, beside --grid",
    task_name="use --task_name=all for all tasks of GLUE, else a call for each task",
)
MAIN = {
    "The task": ("data_dir", "task_name", "text_a", "text_b", "label"),
    "Model in, results out": ("init_checkpoint", "output_dir"),
    "What is done": ("do_train", "do_eval", "do_predict"),
    "Training": (
        "num_train_epochs",
        "learning_rate",
        "train_batch_size",
        "max_seq_length",
        "warmup_proportion",
        "num_gpus",
        "precision",
    ),
    "Many settings at once": ("recipe", "show_config"),
}


def main(argv: list[str], in_program: bool = False) -> Result | SweepResult | str:
    """Run the command; return its result or, with --show_config, the settings as text. in_program:
    as in flags.parse.
    """
    parsed = parse(argv, in_program)
    with parsed.naming_origins():
        sweep = parsed.make(SweepConfig)
        cells = [] if sweep.grid is None else grid.read_grid(sweep.grid, NOT_IN_A_GRID)
        variants = {cell: parse([*argv, *grid.words_of(cell)], in_program) for cell in cells}
        return run(parsed, sweep, variants or {"": parsed})


def parse(argv: list[str], in_program: bool = False) -> flags.Parsed:
    """Parse a command line. The bundled example data is the default of --data_dir only if the call
    trains.
    """
    parsed = flags.parse(
        argv,
        SUMMARY,
        EXAMPLE,
        CLASSES,
        defaults=DEFAULTS | dict(data_dir=flags.bundled("examples/pairs")),
        script="classify",
        main=MAIN,
        implied=implied_recipe,
        in_program=in_program,
    )
    with parsed.naming_origins():
        if "train" not in resolve_phases(parsed.make(FinetuneConfig)):
            parsed.defaults = DEFAULTS
    return parsed


def run(
    parsed: flags.Parsed, sweep: SweepConfig, variants: Mapping[str, flags.Parsed]
) -> Result | SweepResult | str:
    common = parsed.make(flags.CommonConfig)
    settings = training.read_settings(parsed, FinetuneSettings)
    phases = resolve_phases(settings.run)
    if common.show_config:
        resolved = {type(config): config for config in resolve_defaults(settings, phases).configs()}
        configs = [resolved[kind] if kind in resolved else parsed.make(kind) for kind in CLASSES]
        return flags.describe(parsed, configs)
    with parsed.imports():
        from bert_gpu.finetune.run import finetune
        from bert_gpu.finetune.sweep import is_sweep, run_sweep
    if is_sweep(settings, sweep):
        cells = {
            cell: training.read_settings(one, FinetuneSettings) for cell, one in variants.items()
        }
        return run_sweep(cells, sweep, parsed.console(common.quiet))
    return finetune(settings, parsed.console(common.quiet))
