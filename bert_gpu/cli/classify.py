"""run_classifier.py: BERT -> a classifier of texts or pairs of texts."""

from bert_gpu import console
from bert_gpu.cli import flags, training
from bert_gpu.cli.quick import implied_recipe
from bert_gpu.environment import quick_imports
from bert_gpu.finetune.config import (
    STANDARD_OUTPUT,
    FinetuneSettings,
    resolve_defaults,
    resolve_phases,
)

SUMMARY = (
    "Fine-tunes a BERT to classify texts or pairs of texts, or to score them, evaluates it "
    "(accuracy, F1, ROC-AUC and more) and predicts: GLUE's tasks or your own. Files are "
    "DATA_DIR/{train,dev,test}.tsv, .csv, .jsonl or .parquet. To resume a run "
    "that was stopped, repeat the same command."
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
    "python run_classifier.py --do_predict --output_dir=runs/classify --predict_file=new.csv",
)

CLASSES = training.classes_of(FinetuneSettings)
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
    "Many settings at once": ("recipe", "show_config", "save_config"),
}


def main(argv):
    defaults = training.defaults_of(FinetuneSettings) | dict(
        data_dir=flags.bundled("examples/pairs")
    )
    parsed = flags.parse(
        argv,
        SUMMARY,
        EXAMPLE,
        CLASSES,
        defaults=defaults,
        script="classify",
        main=MAIN,
        implied=implied_recipe,
    )
    with parsed.blaming_source():
        return run(parsed)


def run(parsed):
    common, settings = (
        parsed.make(flags.CommonConfig),
        training.read_settings(parsed, FinetuneSettings),
    )
    phases = resolve_phases(settings.run)
    if common.save_config is not None:
        parsed.save_config(common.save_config, [parsed.make(kind) for kind in CLASSES])
    if common.show_config:
        resolved = {type(config): config for config in resolve_defaults(settings, phases).configs()}
        console.answer(
            flags.describe(
                parsed,
                [resolved[kind] if kind in resolved else parsed.make(kind) for kind in CLASSES],
            )
        )
        return 0
    with quick_imports():
        from bert_gpu.finetune.run import finetune
    answers = settings.run.predictions_file == STANDARD_OUTPUT
    return training.exit_code(finetune(settings, parsed.console(common.quiet or answers)))
