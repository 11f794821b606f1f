"""Downstream tasks on a pretrained encoder. `finetune` does what run_classifier.py does."""

from bert_gpu.finetune.config import FinetuneConfig, FinetuneSettings, StartConfig

__all__ = ["FinetuneConfig", "FinetuneSettings", "StartConfig", "finetune"]


def finetune(settings, console=None):
    """Fine-tunes a BERT, evaluates it and predicts, or goes on with a run that was stopped. May be
    called several times in a process.

    Args:
      settings: FinetuneSettings. console: console.Console; by default what is said goes to Python's
        logger "bert_gpu".

    Returns:
      finetune.run.Result: the model's folder, the metrics of each file, and how the training ended.

    Raises:
      settings.UserError: a setting, or a file, that is wrong; one line says what to do.
      settings.GaveUp: the run diverged, stopped early or could not save.
    """
    from bert_gpu.finetune import run  # brings TensorFlow

    return run.finetune(settings, console)
