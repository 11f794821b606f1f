"""Documents in, batches out. `create_pretraining_data` does what
create_pretraining_data.py does.
"""

from bert_gpu.data.config import DataConfig, InputConfig
from bert_gpu.text.config import AUTO, TextFormat

__all__ = ["DataConfig", "InputConfig", "TextFormat", "create_pretraining_data"]


def create_pretraining_data(config, text_format=AUTO, overwrite=False, console=None):
    """Turns text into TFRecords, or resumes a job that was stopped.

    Args:
      config: DataConfig. text_format: TextFormat. overwrite: replace an existing data set.
      console: console.Console; by default messages go to Python's logger "bert_gpu".

    Returns:
      data.manifest.Manifest, the content of dataset.json.

    Raises:
      errors.UserError: a setting or the text is wrong; one line says what to do.
    """
    from bert_gpu.data.build import build  # brings TensorFlow

    return build(config, text_format, overwrite, console)
