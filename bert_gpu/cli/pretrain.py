"""run_pretraining_gpu.py: pretrains a BERT on TFRecords."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.base.run_names import folder_name
from bert_gpu.base.settings import fields_of
from bert_gpu.cli import flags, grid, training
from bert_gpu.cli.quick import implied_recipe
from bert_gpu.data.inputs import (
    check_equal,
    check_length,
    expand_globs,
    matching_files,
    read_manifests,
    split_patterns,
)
from bert_gpu.model.config import ShapeConfig
from bert_gpu.pretrain.config import (
    RUN_FIELDS,
    GridConfig,
    PretrainSettings,
    check_data,
    resolve_model,
)
from bert_gpu.runs.folder import RunFolder
from bert_gpu.train.config import BatchConfig, fit_sizes

if TYPE_CHECKING:
    from bert_gpu.runs.trials import SweepResult
    from bert_gpu.train.run import TrainingResult

SUMMARY = (
    "Pretrains a BERT on TFRecords, on all GPUs of this machine, or on the CPU if it has none. "
    "The batch size is that of one GPU; gradients of all GPUs are averaged. "
    "To resume a run that was stopped, repeat the same command."
)
EXAMPLE = (
    "python run_pretraining_gpu.py --num_gpus=4",
    (
        "python run_pretraining_gpu.py --input_file='data/*.tfrecord' "
        "--model=base --train_batch_size=64 --global_batch_size=1024"
    ),
    "python run_pretraining_gpu.py --recipe=crammed --total_training_time=12h",
    (
        "python run_pretraining_gpu.py --init_checkpoint=bert-base-uncased   "
        "# continues its pretraining"
    ),
    (
        "python run_pretraining_gpu.py --virtual_replicas=2 --train_batch_size=8 "
        "--num_train_steps=100   # simulate two GPUs on the CPU"
    ),
)


CLASSES = training.classes_of(PretrainSettings, ShapeConfig, GridConfig)
NOT_IN_A_GRID = grid.ONCE | dict(  # {flag that --grid cannot vary: what to do instead}
    do_train="each trial trains",
    do_eval="each trial trains and validates",
    eval_input_file="all trials are compared on the same records",
    best_metric="all trials are compared by the same metric",
)
MAIN = {
    "Data in, model out": ("input_file", "output_dir", "init_checkpoint", "overwrite"),
    "The model": ("model", "recipe"),
    "GPUs and batches": (
        "num_gpus",
        "train_batch_size",
        "gradient_accumulation_steps",
        "global_batch_size",
        "precision",
    ),
    "The learning rate": ("optimizer", "learning_rate", "curve", "num_warmup_steps"),
    "How long, and what is kept": (
        "num_train_steps",
        "num_train_epochs",
        "total_training_time",
        "save_checkpoints_steps",
    ),
    "See the settings": ("show_config",),
}


def main(argv: list[str], in_program: bool = False) -> TrainingResult | SweepResult | str:
    """Run the command; return its result or, with --show_config, the settings as text. in_program:
    as in flags.parse.
    """
    parsed = parse(argv, in_program)
    with parsed.naming_origins():
        common = parsed.make(flags.CommonConfig)
        settings = read(parsed, common)
        text = parsed.make(GridConfig).grid
        parse_cell = functools.partial(parse_trial, argv, in_program, settings.run.output_dir)
        trials = {} if text is None else read_grid(text, parse_cell)
        if common.show_config:
            return show_config(parsed, settings)
        with parsed.imports():
            from bert_gpu.pretrain.run import pretrain
            from bert_gpu.pretrain.sweep import run_sweep
        if trials:
            return run_sweep(settings, trials, parsed.console(common.quiet))
        return pretrain(settings, parsed.console(common.quiet))


def parse(argv: list[str], in_program: bool) -> flags.Parsed:
    return flags.parse(
        argv,
        SUMMARY,
        EXAMPLE,
        CLASSES,
        script="pretrain",
        main=MAIN,
        implied=implied_recipe,
        in_program=in_program,
    )


def read(parsed: flags.Parsed, common: flags.CommonConfig) -> PretrainSettings:
    """Return the settings of a call. Raises UserError for those that are wrong whatever the
    data.
    """
    settings = training.read_settings(
        parsed, PretrainSettings, architecture=parsed.overrides(ShapeConfig)
    )
    check_model(settings)
    check_phase(parsed, settings, common)
    return settings


def parse_trial(
    argv: list[str], in_program: bool, output_dir: str, cell: str, name: str
) -> flags.Parsed:
    """Parse the command line of one cell of the grid, whose run is in the folder `name` below
    output_dir. argv: the command line with the grid.
    """
    folder = os.path.join(output_dir, name)
    return parse([*argv, *grid.words_of(cell), f"--output_dir={folder}"], in_program)


def read_grid(
    text: str, parse_cell: Callable[[str, str], flags.Parsed]
) -> dict[str, PretrainSettings]:
    """Return {cell of the grid: settings of its trial}. text: of --grid. parse_cell: see
    `parse_trial`. Raises UserError for a wrong grid, and as `read` does.
    """
    trials = {}
    for cell in grid.read_grid(text, NOT_IN_A_GRID):
        parsed = parse_cell(cell, folder_name(cell))
        with parsed.naming_origins():
            trials[cell] = read(parsed, flags.CommonConfig())
        if not trials[cell].run.trains:
            raise UserError("compares trainings", "drop --do_eval", setting="grid")
    return trials


def check_model(settings: PretrainSettings) -> None:
    """Raise UserError, before TensorFlow is imported, for settings of the model that are wrong
    whatever the data. A resumed run with --init_checkpoint is not checked: it has its own model,
    and the one that it started from may be gone.
    """
    run = settings.run
    is_resumed = not settings.overwrite and RunFolder(run.output_dir).is_known()
    names_model = run.model or run.bert_config_file if run.start is None else not is_resumed
    if names_model:
        resolve_model(settings, 0, None, "CPU")


def check_phase(
    parsed: flags.Parsed, settings: PretrainSettings, common: flags.CommonConfig
) -> None:
    """Raise UserError when --phase is 2 or more and no --init_checkpoint names the model of the
    phase before; with --show_config, only warn.
    """
    if parsed.phase not in (None, 1) and settings.run.start is None:
        error = UserError(
            f"continues from the model of --phase={parsed.phase - 1}",
            "add --init_checkpoint=OUTPUT_DIR/model of that run",
            setting="phase",
            value=parsed.phase,
        )
        if not common.show_config:
            raise error
        console.warn(str(error))


def show_config(parsed: flags.Parsed, settings: PretrainSettings) -> str:
    """Return the text of --show_config: the settings, completed from the data, the GPUs and an
    earlier run in the output folder.
    """
    device_kind, num_replicas = training.find_devices(settings.devices)
    lines = []
    length = 0
    vocab_size = None
    earlier_settings = None
    patterns = split_patterns(settings.inputs.input_file)
    if all(matching_files(pattern, "input_file") for pattern in patterns):
        length, vocab_size = look_at_data(settings)
        earlier_settings = (
            None if settings.overwrite else RunFolder(settings.run.output_dir).read_run(RUN_FIELDS)
        )
    else:
        lines.append(f"# {settings.inputs.input_file}: no data yet; it determines vocab_size")
    model = resolve_model(settings, length, vocab_size, device_kind, earlier_settings)
    batch = fit_sizes(settings.batch, settings.flexible, num_replicas, earlier_settings)
    shape = ShapeConfig(**{name: getattr(model, name) for name in fields_of(ShapeConfig)})
    resolved = {BatchConfig: batch, ShapeConfig: shape}
    configs = [resolved[kind] if kind in resolved else parsed.make(kind) for kind in CLASSES]
    return "\n".join([*lines, flags.describe(parsed, configs)])


def look_at_data(settings: PretrainSettings) -> tuple[int, int | None]:
    """Return (tokens per row, vocabulary size or None), from the data's dataset.json or, without
    one, from the records.
    """
    paths = expand_globs(settings.inputs.input_file, "input_file")
    infos = read_manifests(paths)
    check_equal(infos)
    info = next(iter(infos.values()))
    if info is not None:
        check_length(settings.inputs, info.max_seq_length, paths[0])
        check_data(settings, info.max_predictions_per_seq, info, console.warn)
        return info.max_seq_length, info.vocab_size
    from bert_gpu.pretrain import start

    dataset = start.open_data(settings, console.Console(quiet=True))
    vocab = start.open_vocabulary(settings, dataset)
    return dataset.max_seq_length, None if vocab is None else vocab.vocab_size
