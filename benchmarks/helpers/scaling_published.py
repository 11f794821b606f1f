"""Published throughputs of BERT-large's pretraining on several GPUs and machines: sequences/s, from
the tables "Training performance" of NVIDIA's DeepLearningExamples,
TensorFlow2/LanguageModeling/BERT/README.md (Horovod, LAMB; 21.02 container).

Their loop all-reduces once a step; gradients are float16 in mixed precision, float32 otherwise
(official/modeling/model_training_utils.py there). Without accumulation Horovod's tape sends what is
ready, beside the backward pass.
"""

import typing

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
        """Of a step."""
        return self.size * self.rows * self.accumulation


# {(system, S, precision): rows; the first is what the others are predicted from}
FIGURES = {
    ("DGX-2", 128, "float16"): [
        Row(1, 1, 60, 1024, 206.5),
        Row(1, 4, 60, 256, 789.75),
        Row(1, 8, 60, 128, 1561.77),
        Row(1, 16, 60, 64, 3077.99),
    ],
    ("DGX-2", 128, "float32"): [
        Row(1, 1, 32, 2048, 49.97),
        Row(1, 8, 32, 256, 367.9),
        Row(1, 16, 32, 128, 762.22),
    ],
    ("DGX-2", 512, "float16"): [
        Row(1, 1, 10, 3072, 40.95),
        Row(1, 8, 10, 384, 312.03),
        Row(1, 16, 10, 192, 614.94),
    ],
    ("DGX-2H", 128, "float16"): [
        Row(1, 16, 60, 64, 3528.51),
        Row(4, 16, 60, 16, 13370.21),
        Row(16, 16, 60, 4, 42697.42),
        Row(32, 16, 60, 2, 84223.16),
    ],
    ("DGX-2H", 128, "float32"): [
        Row(1, 16, 32, 128, 841.72),
        Row(4, 16, 32, 32, 3060.49),
        Row(16, 16, 32, 8, 10383.57),
        Row(32, 16, 32, 4, 20094.14),
    ],
    ("DGX A100 80GB", 128, "float16"): [
        Row(1, 1, 312, 256, 485.59),
        Row(1, 8, 312, 32, 3799.24),
    ],
    ("DGX A100 80GB", 128, "tf32"): [
        Row(1, 1, 176, 512, 282.98),
        Row(1, 8, 176, 64, 1944.77),
    ],
    ("DGX A100 80GB", 512, "float16"): [
        Row(1, 1, 40, 768, 96.52),
        Row(1, 8, 40, 96, 649.69),
    ],
    ("DGX A100 80GB", 512, "tf32"): [
        Row(1, 1, 22, 1536, 54.92),
        Row(1, 8, 22, 192, 427.39),
    ],
    ("DGX A100 40GB", 128, "float16"): [
        Row(1, 8, 312, 32, 3803.82),
        Row(2, 8, 312, 16, 7551.37),
        Row(8, 8, 312, 4, 29711.11),
        Row(32, 8, 312, 1, 110280.73),
    ],
    ("DGX A100 40GB", 128, "tf32"): [
        Row(1, 8, 176, 64, 2062.98),
        Row(2, 8, 176, 32, 4084.76),
        Row(8, 8, 176, 8, 16134.02),
        Row(32, 8, 176, 2, 59569.77),
    ],
    ("DGX A100 40GB", 512, "float16"): [
        Row(1, 8, 40, 96, 749.73),
        Row(2, 8, 40, 48, 1491.87),
        Row(8, 8, 40, 12, 5870.83),
        Row(32, 8, 40, 3, 22506.23),
    ],
}


def predicted(name, precision, base, row):
    """The throughput of a Row, from that of the base of its group."""
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
