"""Laws of the contrastive step: its loss and gradient are those of all texts of the global batch
together, however it is divided, whatever is copied, missing or padding in it.

The encoder is a mean of word vectors and a layer with dropout. Legend: N examples, V texts each.
"""

import functools
import subprocess
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.devices.config import DeviceConfig
from bert_gpu.devices.devices import set_up
from bert_gpu.finetune.contrastive import NO_TEXT, losses_of_pairs
from bert_gpu.finetune.files.encoded import LENGTH_AXES
from bert_gpu.finetune.objective import task_objective
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import column_blocks, initialize
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.train.state import TrainState, copies
from bert_gpu.train.step import TrainStep, divide_batch, fold_seed
from tests.interop.test_huggingface import needs_oracle, oracle_environment, oracle_python
from tests.train.tiny import distance, tiny_model

TEXTS, WORDS, WIDTH, LENGTH, SEED = 40, 30, 16, 8, 7
KERNEL = "layer_0/output/kernel"


def mean_vectors(weights, batch, encoder, dtype, seed=None, rate=0.0):
    """(B, V, H), not of length 1."""
    words = tf.gather(weights["word"], batch["input_ids"])
    mask = tf.cast(batch["input_mask"], dtype)[..., None]
    mean = tf.reduce_sum(words * mask, -2) / tf.maximum(tf.reduce_sum(mask, -2), 1)
    vectors = tf.tanh(tf.einsum("bvi,io->bvo", mean, weights[KERNEL]))
    return tf.nn.experimental.stateless_dropout(vectors, rate, seed) if rate else vectors


def pairs_task(vectors):
    """What an objective takes of a task of pairs."""
    return types.SimpleNamespace(temperature=0.05, logits=vectors)


def batch_of(num_examples=64, seed=0, length=LENGTH):
    """A batch in which texts have copies, negatives are missing, pairs are labelled as none, and
    examples are padding.
    """
    rng = np.random.default_rng(seed)
    texts = rng.integers(0, TEXTS, (num_examples, 3)).astype(np.int32)
    texts[rng.random(num_examples) < 0.3, 2] = NO_TEXT
    words = np.random.default_rng(1).integers(1, WORDS, (TEXTS + 1, LENGTH)).astype(np.int32)
    lengths = np.random.default_rng(2).integers(2, LENGTH + 1, TEXTS + 1)
    mask = (np.arange(length) < lengths[texts][..., None]).astype(np.int32)
    ids = np.pad(words, [(0, 0), (0, length - LENGTH)])[texts] * mask
    return dict(
        input_ids=ids,
        input_mask=mask,
        segment_ids=np.zeros_like(ids),
        row_weights=(rng.random(num_examples) < 0.9).astype(np.float32),
        labels=(rng.random(num_examples) < 0.8).astype(np.float32),
        text_ids=texts,
    )


def first_weights():
    rng = np.random.default_rng(3)
    shapes = {"word": (WORDS, WIDTH), KERNEL: (WIDTH, WIDTH)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@functools.cache
def traced(replicas, micro_batches, xla, precision, rate, is_ramped, frozen, optimizer, clip_norm):
    devices = set_up(DeviceConfig(virtual_replicas=replicas, xla=xla, precision=precision))
    config = OptimizerConfig(optimizer=optimizer, clip_norm=clip_norm, adam_epsilon=1e-3)
    blocks = dict.fromkeys(("word", KERNEL), 1)
    state = TrainState(devices.strategy, first_weights(), config, frozen, blocks)
    return TrainStep(
        devices,
        state,
        task_objective(None, pairs_task(functools.partial(mean_vectors, rate=rate))),
        config,
        num_micro_batches=micro_batches,
        seed=SEED,
        is_ramped=is_ramped,
        length_axes=LENGTH_AXES,
    ), state.read()


def fresh(
    replicas=1,
    micro_batches=1,
    xla="off",
    precision="float32",
    rate=0.0,
    is_ramped=False,
    frozen=(),
    optimizer="adamw",
    clip_norm=1.0,
):
    """A TrainStep at its first state; those of equal arguments share their programs."""
    step, first = traced(
        replicas, micro_batches, xla, precision, rate, is_ramped, frozen, optimizer, clip_norm
    )
    step.state.assign(first)
    return step


def train(step, batches, learning_rate=1e-2, steps_per_call=1):
    """(the losses, the last weights)."""
    losses = []
    for first in range(0, len(batches), steps_per_call):
        part = batches[first : first + steps_per_call]
        losses += step(part, [learning_rate] * len(part), first).read()["loss"].tolist()
    return np.array(losses), step.state.read_weights()


def loss_by_definition(vectors, batch, temperature=0.05):
    """The mean loss of the pairs, from vectors (N, V, H): each pair's candidates are listed one by
    one.
    """
    units = vectors / tf.norm(vectors, axis=-1, keepdims=True)
    texts, real = batch["text_ids"].tolist(), batch["row_weights"] > 0
    pairs = [index for index in np.flatnonzero(real) if batch["labels"][index] > 0]
    number, losses = len(texts), []
    for mine in pairs:
        for side in (0, 1):
            wanted = (mine, 1 - side)
            places = [wanted]
            for other in range(number):
                for place in range(1, len(texts[other])) if side == 0 else [0]:
                    text = texts[other][place]
                    right = other in pairs and place < 2 and texts[other][side] == texts[mine][side]
                    if real[other] and text not in (NO_TEXT, *texts[mine][:2]) and not right:
                        places.append((other, place))
            scores = tf.linalg.matvec(tf.gather_nd(units, places), units[mine, side]) / temperature
            losses.append(tf.reduce_logsumexp(scores) - scores[0])
    return tf.add_n(losses) / (2 * len(pairs))


def gradient_of(function, values):
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = function(values)
    return loss.numpy(), tape.gradient(loss, values)


@pytest.mark.parametrize("num_texts, block_rows", [(2, 5), (3, 12), (3, 1024)])
def test_loss_and_gradient_are_those_of_the_definition(num_texts, block_rows):
    """For any size of the blocks, and the share of each of two replicas."""
    batch = batch_of(24, seed=4)
    batch["text_ids"] = batch["text_ids"][:, :num_texts]
    vectors = np.random.default_rng(5).normal(size=(24, num_texts, WIDTH))
    expected = gradient_of(lambda x: loss_by_definition(x, batch), tf.constant(vectors))
    count = np.sum(batch["labels"] * batch["row_weights"])
    loss, gradient = 0.0, 0.0
    for own in (np.arange(12), np.arange(12, 24)):
        sums, part = losses_of_pairs(
            tf.constant(vectors, tf.float32),
            {name: tf.constant(batch[name]) for name in ("text_ids", "row_weights", "labels")},
            tf.constant(own, tf.int32),
            dict(contrastive=tf.constant(count)),
            temperature=0.05,
            block_rows=block_rows,
        )
        loss, gradient = loss + sums["contrastive"].numpy() / count, gradient + part.numpy()
    assert loss == pytest.approx(expected[0], rel=1e-6)
    assert np.abs(gradient - expected[1]).max() < 1e-6 * np.abs(expected[1]).max()


def test_the_batch_has_all_that_the_definition_names():
    batch = batch_of()
    texts, real = batch["text_ids"], batch["row_weights"] > 0
    assert NO_TEXT in texts[real] and 0 < np.sum(~real) and 0 < np.sum(batch["labels"][real] == 0)
    for side in (0, 1):
        assert len(set(texts[real, side])) < np.sum(real)


long = pytest.mark.long
XLA = pytest.mark.parametrize("xla", ["off", pytest.param("on", marks=long)])


@XLA
@pytest.mark.parametrize(
    "replicas, micro_batches",
    [(1, 4), pytest.param(2, 2, marks=long)],
)
def test_the_gradient_is_that_of_one_tape_over_the_same_dropout(replicas, micro_batches, xla):
    """The second pass repeats the draws of the first: the first moment of Adam after a step is a
    tenth of the gradient of the whole batch's loss.
    """
    step = fresh(replicas, micro_batches, xla, rate=0.3, clip_norm=0.0)
    batch, number = batch_of(), 5
    loss = step([batch], [1e-3], number).read()["loss"][0]
    parts = divide_batch(batch, replicas, micro_batches)

    # XLA has draws of its own
    function = functools.partial(mean_vectors, encoder=None, dtype=tf.float32, rate=0.3)
    function = tf.function(function, jit_compile=xla == "on", autograph=False)

    def whole(weights):
        vectors = []
        for replica, micro_batch in np.ndindex(replicas, micro_batches):
            seed = fold_seed(tf.constant([SEED, 0]), number, replica, micro_batch)
            rows = {name: value[micro_batch] for name, value in parts[replica].items()}
            vectors.append(function(weights, rows, seed=seed))
        return loss_by_definition(tf.concat(vectors, 0), batch)

    weights = {name: tf.constant(value) for name, value in first_weights().items()}
    expected, gradients = gradient_of(whole, weights)
    assert loss == pytest.approx(expected, rel=1e-6)
    moments = step.state.read()
    found = {name: moments[f"slots/mean/{name}"] / 0.1 for name in weights}
    assert (
        distance({name: tf.convert_to_tensor(g).numpy() for name, g in gradients.items()}, found)
        < 2e-6
    )


@functools.cache
def undivided():
    return train(fresh(), [batch_of(seed=seed) for seed in range(6)])


def check_equal(trained, expected):
    np.testing.assert_allclose(trained[0], expected[0], rtol=1e-5)
    assert distance(expected[1], trained[1]) < 1e-5


@pytest.mark.parametrize("replicas, micro_batches", [(1, 4), (2, 2)])
def test_division_of_the_batch_changes_nothing(replicas, micro_batches):
    """1 x 64 = 4 x 16 = 2 replicas x 2 x 16: the losses of six steps, two in a call, and the last
    weights.
    """
    batches = [batch_of(seed=seed) for seed in range(6)]
    step = fresh(replicas, micro_batches)
    check_equal(train(step, batches, steps_per_call=2), undivided())


@pytest.mark.parametrize("replicas, micro_batches", [(1, 1), pytest.param(2, 2, marks=long)])
def test_padding_changes_nothing_and_one_program_serves_all_lengths(replicas, micro_batches):
    """Rows longer by padding, and batches whose lengths differ from call to call."""
    step = fresh(replicas, micro_batches)
    batches = [batch_of(seed=seed, length=LENGTH + 4 * (seed % 3)) for seed in range(6)]
    check_equal(train(step, batches), undivided())
    again = step.programs[1].experimental_get_tracing_count()
    train(step, [batch_of(length=LENGTH + 32)])
    assert step.programs[1].experimental_get_tracing_count() == again


def test_training_lowers_the_loss():
    losses, _ = train(fresh(1, 4), [batch_of()] * 30)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    "replicas, xla",
    [
        (1, "off"),
        pytest.param(2, "off", marks=long),
        pytest.param(1, "on", marks=long),
    ],
)
def test_a_ramp_computes_the_micro_batches_that_there_are(replicas, xla):
    """Steps of 1, 3 and 2 micro-batches in one program equal undivided steps with padding behind
    the examples: what fills a step is no candidate.
    """
    numbers = (1, 3, 2)
    batches = [batch_of(8 * replicas * number, seed=number) for number in numbers]
    ramped = fresh(replicas, 3, xla, is_ramped=True)
    losses = ramped(batches, [1e-2] * 3, 0, num_micro_batches=numbers).read()["loss"]
    for batch in batches:
        for name, value in batch.items():
            missing = 64 - len(value)
            batch[name] = np.pad(value, [(0, missing), *[(0, 0)] * (value.ndim - 1)])
    check_equal((losses, ramped.state.read_weights()), train(fresh(), batches))


@pytest.mark.parametrize("precision, micro_batches", [("bfloat16", 1), ("float16", 4)])
def test_other_precisions_are_close(precision, micro_batches):
    batches = [batch_of(seed=seed) for seed in range(6)]
    losses, weights = train(fresh(1, micro_batches, precision=precision), batches)
    np.testing.assert_allclose(losses, undivided()[0], rtol=0.01)
    assert distance(undivided()[1], weights) < 0.02


def test_float16_overflow_skips_and_halves():
    step = fresh(1, 4, precision="float16")
    for copy in copies(step.state.loss_scale):
        copy.assign(2.0**24)
    metrics = step([batch_of()], [1e-2], 0).read()
    assert metrics["skipped"][0] == 1.0 and np.isfinite(metrics["loss"][0])
    assert distance(first_weights(), step.state.read_weights()) == 0.0
    assert step.state.read()["loss_scale"] == 2.0**23


def test_frozen_weights_stay():
    step = fresh(1, 4, frozen=("word",))
    _, weights = train(step, [batch_of()])
    assert np.array_equal(weights["word"], first_weights()["word"])
    assert not np.array_equal(weights[KERNEL], first_weights()[KERNEL])
    assert not any("word" in name for name in step.state.slots)


@long
@pytest.mark.parametrize("optimizer", ["muon", "adamw8bit"])
def test_replicas_share_the_update_of_other_optimizers(optimizer):
    batches = [batch_of(seed=seed) for seed in range(4)]
    step = fresh(2, 2, optimizer=optimizer)
    assert step.is_shared == (optimizer == "muon")
    losses, weights = train(step, batches)
    expected = train(fresh(optimizer=optimizer), batches)
    np.testing.assert_allclose(losses, expected[0], rtol=2e-4)
    assert distance(expected[1], weights) < 1e-3


def bert_vectors(weights, batch, encoder, dtype, seed=None):
    """(B, V, H): [CLS] of each text."""
    rows = {name: tf.reshape(batch[name], [-1, LENGTH]) for name in list(LENGTH_AXES)[:3]}
    hidden = encoder.encode(weights, rows, dtype=dtype, seed=seed)
    return tf.reshape(hidden[:, 0], [-1, 3, hidden.shape[-1]])


@long
def test_recomputation_repeats_the_dropout_of_the_first_pass():
    """BERT with dropout, 4 x 16: recomputed layers give the weights that layers in memory give."""
    results = []
    for recompute_every in (0, 1):
        devices = set_up(DeviceConfig())
        encoder = BertEncoder(tiny_model(dropout=0.2))
        specs = encoder.weights()
        state = TrainState(
            devices.strategy, initialize(specs, 1), OptimizerConfig(), (), column_blocks(specs)
        )
        encoder = encoder.for_training(
            recompute_every=recompute_every, attention="plain", xla=False
        )
        objective = task_objective(encoder, pairs_task(bert_vectors))
        step = TrainStep(
            devices, state, objective, OptimizerConfig(), num_micro_batches=4, seed=SEED
        )
        results.append(train(step, [batch_of()] * 2))
    check_equal(*results)


ORACLE = """
import sys
import numpy as np, torch
from sentence_transformers.sentence_transformer import losses
folder = sys.argv[1]
arguments = dict(
    scale=20.0, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
)
model = torch.nn.Sequential(torch.nn.Identity())
ranking = losses.MultipleNegativesRankingLoss(model, **arguments)
cached = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=5, **arguments)
functions = {
    "ranking": lambda parts: ranking.compute_loss_from_embeddings(parts, None),
    "cached": lambda parts: cached.calculate_loss([[part] for part in parts]),
}
results = {}
for key, values in np.load(f"{folder}/vectors.npz").items():
    for name, function in functions.items():
        vectors = torch.tensor(values, requires_grad=True)
        loss = function(list(vectors.unbind(1)))
        loss.backward()
        results |= {f"{name}_loss_{key}": loss.item(), f"{name}_{key}": vectors.grad.numpy()}
np.savez(f"{folder}/theirs.npz", **results)
"""


@needs_oracle
def test_loss_and_gradient_are_those_of_sentence_transformers(tmp_path):
    """On data without copies, from the same vectors: of its loss in both directions, and of the
    form of the loss that computes in parts; without negatives and with two.
    """
    rng = np.random.default_rng(6)
    inputs = {key: rng.normal(size=(48, int(key), 32)).astype(np.float32) for key in ("2", "4")}
    np.savez(tmp_path / "vectors.npz", **inputs)
    done = subprocess.run(
        [oracle_python(), "-c", ORACLE, str(tmp_path)],
        env=oracle_environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = np.load(tmp_path / "theirs.npz")
    for key, vectors in inputs.items():
        ones = tf.ones(48)
        texts = tf.reshape(tf.range(48 * int(key)), [48, int(key)])
        sums, gradient = losses_of_pairs(
            tf.constant(vectors),
            dict(text_ids=texts, row_weights=ones, labels=ones),
            tf.range(48),
            dict(contrastive=tf.constant(48.0)),
            temperature=0.05,
            block_rows=10,
        )
        loss = sums["contrastive"].numpy() / 48
        for name in ("ranking", "cached"):
            assert loss == pytest.approx(theirs[f"{name}_loss_{key}"].item(), rel=1e-5)
            expected = theirs[f"{name}_{key}"]
            assert np.abs(gradient - expected).max() < 1e-5 * np.abs(expected).max()
