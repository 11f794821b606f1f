"""When a run logs, saves, validates and exports: functions of the step and of progress alone.

Progress is the share of the run that is done: of its steps, or of its seconds when the schedule
follows time. An action is due when a call of steps crosses its step or its share, so a resumed run
need not remember what was done.
"""

import math

from bert_gpu.train.config import shares

DEFAULT_PASSES = 40  # over the text, as BERT's pretraining made (Devlin et al. 2018, appendix A.2)


def num_steps_of(config, num_records, records_of_step, runs_by_time=False, dupe_factor=1):
    """Steps of a run: as set, or those of its epochs, rounded up; None when only time ends it.
    dupe_factor: copies of the text in the records.
    """
    if config.num_train_steps is not None:
        return config.num_train_steps
    if config.num_train_epochs is None and runs_by_time:
        return None
    num_epochs = config.num_train_epochs or DEFAULT_PASSES / dupe_factor
    return max(1, math.ceil(num_epochs * num_records / records_of_step))


class Cadence:
    """Says what is due after a call of steps.

    Args of the constructor: config: CadenceConfig. num_steps: of the run, None when only time ends
    it. steps_of_epoch: float.
    """

    def __init__(self, config, num_steps, steps_of_epoch):
        self.config, self.num_steps = config, num_steps
        self.validation_marks = shares("validation_marks", config.validation_marks)
        self.export_marks = shares("finetune_time_markers", config.finetune_time_markers)
        # steps between two validations; None: at every checkpoint
        self.validation_interval = config.eval_steps
        if config.validation_epochs is not None:
            self.validation_interval = max(1, round(config.validation_epochs * steps_of_epoch))

    def call_ends(self, step):
        """The step at which the call that begins after `step` steps ends: the next multiple of
        steps_per_loop, or an earlier step where something is due.
        """
        config = self.config
        periods = [
            config.steps_per_loop,
            config.log_steps,
            config.save_checkpoints_steps,
            self.validation_interval,
        ]
        ends = [(step // period + 1) * period for period in periods if period is not None]
        return min(ends + ([self.num_steps] if self.num_steps is not None else []))

    def logs(self, step):
        return step % self.config.log_steps == 0

    def saves(self, step, seconds_since_save):
        minutes = self.config.save_checkpoints_minutes
        return step % self.config.save_checkpoints_steps == 0 or (
            minutes is not None and seconds_since_save >= 60 * minutes
        )

    def validates(self, before, after, saves):
        """Whether validation is due after a call. before, after: (step, progress). saves: whether a
        checkpoint is due.
        """
        if crossed(self.validation_marks, before[1], after[1]):
            return True
        if self.validation_interval is None:
            return saves
        return after[0] // self.validation_interval > before[0] // self.validation_interval

    def exports(self, before, after):
        """The export marks that a call crosses; before, after: progress."""
        return crossed(self.export_marks, before, after)


def crossed(marks, before, after):
    return [mark for mark in marks if before < mark <= after]
