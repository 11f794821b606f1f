"""Published throughputs of BERT-large's pretraining on several GPUs and machines, and their
prediction. scaling_published.tsv has sequences/s from the tables "Training performance" of NVIDIA's
DeepLearningExamples, TensorFlow2/LanguageModeling/BERT/README.md (Horovod, LAMB; 21.02 container).

That loop all-reduces once a step; gradients are float16 in mixed precision, float32 otherwise
(official/modeling/model_training_utils.py there). Without accumulation Horovod's tape sends what is
ready, beside the backward pass.
"""

import typing

from .process import HERE
from .scaling_model import INSIDE, Cluster, Link, Work, network, step_seconds

PARAMETERS = 336e6  # BERT-large with its heads
# LAMB reads gradients, weights and two moments, writes three of them, and reads and writes its
# update once more
UPDATE_BYTES = PARAMETERS * 4 * 9
FUSION_BYTES = 64 << 20  # that Horovod sends at once, by default


class System(typing.NamedTuple):
    """A machine. memory: bytes/s of a GPU's. network: Gbit/s of all its adapters."""

    inside: Link
    memory: float
    network: float


# Data sheets of DGX-2, DGX-2H and DGX A100; eight InfiniBand adapters each.
SYSTEMS = {
    "DGX-2": System(INSIDE["nvlink2"], 0.9e12, 800),
    "DGX-2H": System(INSIDE["nvlink2"], 0.98e12, 800),
    "DGX A100 80GB": System(INSIDE["nvlink3"], 2.04e12, 1600),
    "DGX A100 40GB": System(INSIDE["nvlink3"], 1.56e12, 1600),
}


class Row(typing.NamedTuple):
    num_machines: int
    num_gpus: int  # of a machine
    rows: int  # of a micro-batch
    accumulation: int
    throughput: float

    @property
    def size(self):
        return self.num_machines * self.num_gpus

    @property
    def sequences(self):
        """Number in a step."""
        return self.size * self.rows * self.accumulation


def read_figures():
    """Return {(system, S, precision): rows} of scaling_published.tsv; the others are predicted from
    the first row.
    """
    figures = {}
    for line in (HERE / "scaling_published.tsv").read_text().splitlines()[1:]:
        name, length, precision, *sizes, throughput = line.split("\t")
        rows = figures.setdefault((name, int(length), precision), [])
        rows.append(Row(*map(int, sizes), float(throughput)))
    return figures


def predicted(name, precision, base, row):
    """Return the throughput of a Row, predicted from that of the first one of its group."""
    system = SYSTEMS[name]
    update_seconds = UPDATE_BYTES / system.memory
    gradient_bytes = PARAMETERS * (2 if precision == "float16" else 4)

    def step(row, micro_batch_seconds):
        work = Work(micro_batch_seconds, update_seconds, gradient_bytes, bucket_bytes=FUSION_BYTES)
        cluster = Cluster(row.num_machines, row.num_gpus, system.inside, network(system.network))
        return step_seconds(work, cluster, row.accumulation, overlap=row.accumulation == 1)

    seconds = base.sequences / base.throughput
    compute = (seconds - step(base, 0.0)) / base.accumulation
    return row.sequences / step(row, compute)
