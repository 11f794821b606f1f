"""Tasks as settings open and configure them, and the parts of a fine-tuning of which a test knows
only some.
"""

from bert_gpu.finetune.config import FILES, FinetuneSettings
from bert_gpu.finetune.files.splits import find_sources
from bert_gpu.finetune.tasks.interface import Evaluated, RowFormat, open_task_type
from bert_gpu.finetune.tasks.opening import resolve_spec
from bert_gpu.finetune.tasks.table import TaskSpec


def task_of(named, labels=(), **fields):
    """The task of a FinetuneConfig or of a TaskSpec, with these fields of its class."""
    spec = named if isinstance(named, TaskSpec) else resolve_spec(named)
    return open_task_type(spec.kind)(spec=spec, labels=labels, **fields)


def configured(task, examples, settings=None, *, trains=True, **kinds):
    """A task as a training on the examples, or an evaluation of them, configures it. kinds: fields
    of FinetuneSettings.
    """
    settings = settings or FinetuneSettings(**kinds)
    holders = settings.run, settings.tokens, settings.start
    return task.configured(settings, holders, examples, trains)


def read(config, phase, labels=(), spec=None):
    """The examples of each file of a phase; those of a training may have one label only. labels:
    the classes of a model. spec: the task, where it is not that of the config.
    """
    task = task_of(spec or config, labels)
    sources = find_sources(task.spec, config, FILES[phase])
    return [task.read(source, phase != "predict") for source in sources]


def form_of(tokenizer, max_seq_length, padding="dynamic", folder=".", seed=1):
    """A RowFormat."""
    return RowFormat(tokenizer, max_seq_length, padding, folder, seed)


def evaluated(**known):
    """An Evaluated; what is not known is None."""
    return Evaluated(**dict.fromkeys(Evaluated._fields) | known)


def column(examples, name):
    """The entries of the list `name` (lines, ids, texts_a, texts_b, labels, cells) of all chunks of
    Examples; None where the chunks have none.
    """
    parts = [getattr(chunk, name) for chunk in examples.chunks()]
    return None if parts[0] is None else [value for part in parts for value in part]
