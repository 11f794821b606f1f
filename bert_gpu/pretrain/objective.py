"""What a BERT is pretrained for: masked words and, where the data has them, next sentences; and how good it is at them."""

from bert_gpu.data import pipeline
from bert_gpu.model import encoder as own_encoder
from bert_gpu.model import heads
from bert_gpu.train.evaluation import MeanMetrics
from bert_gpu.train.memory import training_encode
from bert_gpu.train.step import Objective


def pretraining_objective(model, memory=None, devices=None, garden=None, dataset=None):
    """The pretraining Objective of a ModelConfig.

    memory: MemoryConfig, devices: Devices, dataset: Dataset, for recomputation and attention. garden: its encoder.
    """
    rows = {} if dataset is None else dict(max_seq_length=dataset.max_seq_length, is_packed=dataset.schema.is_packed)
    encode = training_encode(memory, devices, model, **rows) if garden is None else garden.encode
    return Objective(
        counts=heads.pretraining_counts,
        losses=lambda weights, batch, dtype, seed: heads.pretraining_losses(weights, batch, model, dtype=dtype, seed=seed, encode=encode),
    )


def pretraining_validation(config, reader, devices, state, model, garden=None):
    """() -> {name: mean over the validation records}, with "loss" the sum of the objectives' losses. config: PretrainConfig."""
    encode = own_encoder.encode if garden is None else garden.encode
    means = MeanMetrics(
        devices, state, lambda weights, batch, dtype: heads.pretraining_metrics(weights, batch, model, dtype, encode=encode)
    )

    def validate():
        batch_size = config.eval_batch_size * devices.num_replicas
        values = means(pipeline.evaluation_batches(reader, batch_size=batch_size, max_batches=config.max_eval_steps))
        losses = [value for name, value in values.items() if name.endswith("_loss") and value is not None]
        return dict(loss=sum(losses) if losses else None) | values

    return validate
