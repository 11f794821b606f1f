"""Pretraining: records in, a BERT out. `pretrain` does what run_pretraining_gpu.py does."""

from bert_gpu.pretrain.config import PretrainConfig, PretrainSettings

__all__ = ["PretrainConfig", "PretrainSettings", "pretrain"]


def pretrain(settings, console=None):
    """Pretrains a BERT, or resumes a run that was stopped. May be called several times
    in a process.

    Args:
      settings: PretrainSettings. console: console.Console; by default messages go to Python's
        logger "bert_gpu".

    Returns:
      train.run.TrainingResult: the run's folder and its progress.

    Raises:
      errors.UserError: a setting or a file is wrong; the message says what to do.
      settings.TrainingStopped: the run diverged, stopped early or could not save.
      KeyboardInterrupt: Ctrl-C, after the current step is saved. SIGTERM ends the process then; a
        second signal ends it at once.
    """
    from bert_gpu.base.signals import reraise
    from bert_gpu.pretrain import run  # imports TensorFlow

    result = run.pretrain(settings, console)
    reraise(result.signal)
    return result
