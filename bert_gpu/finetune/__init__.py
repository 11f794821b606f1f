"""Downstream tasks on a pretrained encoder. `finetune` does what run_classifier.py does."""

from bert_gpu.finetune.config import FinetuneConfig, FinetuneSettings, StartConfig

__all__ = ["FinetuneConfig", "FinetuneSettings", "StartConfig", "finetune"]


def finetune(settings, console=None):
    """Fine-tunes a BERT, evaluates it and predicts, or resumes a run that was stopped. May be
    called several times in a process.

    Args:
      settings: FinetuneSettings. console: console.Console; by default messages go to Python's
        logger "bert_gpu".

    Returns:
      finetune.run.Result: the model's folder, the metrics of each file, and how the training ended.

    Raises:
      errors.UserError: a setting or a file is wrong; the message says what to do.
      settings.TrainingStopped: the run diverged, stopped early or could not save.
      KeyboardInterrupt: Ctrl-C, after the current step is saved. SIGTERM ends the process then; a
        second signal ends it at once.
    """
    from bert_gpu.base.signals import reraise
    from bert_gpu.finetune import run  # imports TensorFlow

    result = run.finetune(settings, console)
    reraise(result.signal)
    return result
