"""A data job between the reading of its input and the writing of its data set."""

import dataclasses

from bert_gpu.base.console import Console
from bert_gpu.data.config import DataConfig
from bert_gpu.data.output_folder import OutputFolder
from bert_gpu.data.plan import CorpusPlan
from bert_gpu.text import parallel, quality
from bert_gpu.text.formats import inputs


@dataclasses.dataclass(frozen=True)
class Job:
    """A data job that has read its input and has not yet written the data set.

    Attributes:
      overwrite: whether the job replaces an earlier data set.
      workers: the threads, processes or cluster that do the work.
      warn: function of a list of warnings and their topic, which prints them; with --strict it
        raises UserError.
      status: "new", "resumed" (the folder holds an unfinished job) or "finished" (nothing is left
        to write).
      plan: the windows, shards and validation documents of the text; None for a finished data set,
        and before compressed files and tables are unpacked.
    """

    config: DataConfig
    overwrite: bool
    workers: parallel.Workers
    console: Console
    warn: quality.Warner
    inputs: inputs.Inputs
    folder: OutputFolder
    status: str
    plan: CorpusPlan | None
