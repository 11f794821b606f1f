"""What a model has made of a file, of which a test knows only a part."""

import dataclasses

from bert_gpu.finetune.tasks.interface import Evaluated


def evaluated(**known):
    """An Evaluated; what is not known is None."""
    fields = (field.name for field in dataclasses.fields(Evaluated))
    return Evaluated(**dict.fromkeys(fields) | known)
