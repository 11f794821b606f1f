"""Laws of the training step: a global batch gives the same update however it is divided; what is
not finite is skipped.
"""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from bert_gpu.base.errors import UserError
from bert_gpu.devices import devices
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.train.state import LOSS_SCALE_GROWTH_STEPS, copies, frozen_names
from bert_gpu.train.step import TrainStep, divide_batch
from tests.train.tiny import Trainer, batches, distance, fresh


def losses(metrics):
    return np.array([[step["loss"], step["mlm"], step["nsp"]] for step in metrics])


@pytest.fixture(scope="module")
def one():
    trainer = fresh()
    metrics = trainer.run(batches(20))
    shares = [step["mlm_accuracy"] for step in metrics]
    return losses(metrics), trainer.state.read_weights(), shares


@pytest.mark.parametrize(
    "num_replicas, accumulation",
    [(1, 2), (2, 2), pytest.param(4, 1, marks=pytest.mark.long)],
)
def test_division_of_the_batch_changes_nothing(one, num_replicas, accumulation):
    """1 x 16 = accumulation 2 x 8 = 2 replicas x 2 x 4: the losses of 20 steps, and the final
    weights.

    Rows have unequal numbers of masked tokens, and so have replicas and micro-batches.
    """
    trainer = fresh(num_replicas, accumulation)
    metrics = trainer.run(batches(20))
    np.testing.assert_allclose(losses(metrics), one[0], rtol=1e-5)
    np.testing.assert_allclose([step["mlm_accuracy"] for step in metrics], one[2], rtol=1e-5)
    assert distance(one[1], trainer.state.read_weights()) < 1e-5


DISTANCES = dict(positions="disentangled", num_layers=2)


@pytest.mark.parametrize(
    "num_replicas, accumulation, xla",
    [(2, 2, "off"), pytest.param(1, 2, "on", marks=pytest.mark.long)],
)
def test_division_changes_nothing_with_disentangled_attention(num_replicas, accumulation, xla):
    """Whose table of distances belongs to all layers."""
    expected = fresh(**DISTANCES)
    metrics = expected.run(batches(8))
    weights = expected.state.read_weights()
    trainer = Trainer(num_replicas, accumulation, xla=xla, **DISTANCES)
    found = trainer.run(batches(8))
    np.testing.assert_allclose(losses(found), losses(metrics), rtol=1e-5 if xla == "off" else 1e-4)
    moved = distance({**weights}, trainer.state.read_weights())
    assert moved < (1e-5 if xla == "off" else 1e-3)


def test_disentangled_attention_resumes_with_the_same_bits():
    """Dropout of the table included, which each layer draws by itself."""
    trainer = fresh(dropout=0.3, **DISTANCES)
    trainer.run(batches(2))
    middle = trainer.state.read()
    whole = trainer.run(batches(2, seed=1), start=2)
    after = trainer.state.read()
    trainer.run(batches(1, seed=5))
    trainer.state.assign(middle)
    assert trainer.run(batches(2, seed=1), start=2) == whole
    assert all(np.array_equal(after[name], value) for name, value in trainer.state.read().items())


@pytest.mark.parametrize("num_replicas", [1, pytest.param(2, marks=pytest.mark.long)])
def test_xla_changes_nothing(one, num_replicas):
    trainer = Trainer(num_replicas, 2, xla="on")
    np.testing.assert_allclose(losses(trainer.run(batches(10))), one[0][:10], rtol=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit", "lamb", "muon"])
def test_a_gpu_can_hold_all_variables(optimizer):
    """TensorFlow keeps variables of other types, int32 for one, in the host's memory, where the
    compiled step of a GPU cannot use them.
    """
    listed = kernels.get_registered_kernels_for_op("VarHandleOp").kernel
    constraints = [
        rule for kernel in listed if kernel.device_type == "DEFAULT" for rule in kernel.constraint
    ]
    held = {tf.as_dtype(kind) for rule in constraints for kind in rule.allowed_values.list.type}
    assert tf.float32 in held and tf.int32 not in held
    state = Trainer(optimizer=optimizer).state
    assert {variable.dtype for variable in state.variables().values()} <= held


def draws_of(graph):
    return [op for op in graph.get_operations() if op.type.startswith("StatelessRandom")]


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.long)])
def test_a_step_waits_for_nothing_from_the_host(monkeypatch, optimizer):
    """Alone or in a call with others. On a GPU, an int32 is copied to the device or the host for
    each use, and each copy waits for the steps before it. So seeds are drawn on the host, before
    the call begins, and the compiled functions take none.
    """
    graphs = []
    replica_step = TrainStep._replica_step

    def traced(*arguments):
        graphs.append(tf.compat.v1.get_default_graph())
        return replica_step(*arguments)

    monkeypatch.setattr(TrainStep, "_replica_step", traced)
    trainer = Trainer(num_replicas=2, optimizer=optimizer)
    trainer.run(batches(3), steps_per_call=2)
    assert len(trainer.step.programs) == 2
    for program in trainer.step.programs.values():
        (graph,) = (function.graph for function in program._list_all_concrete_functions())
        assert not draws_of(graph)
    for function in trainer.step.seeds._list_all_concrete_functions():
        draws = draws_of(function.graph)
        assert draws and {tf.DeviceSpec.from_string(op.device).device_type for op in draws} == {
            "CPU"
        }
    for graph in graphs:
        calls = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
        assert len(calls) >= 4
        assert tf.int32 not in {value.dtype for call in calls for value in call.inputs}


def test_training_lowers_the_loss(one):
    batch = list(batches(1)) * 30
    metrics = fresh().run(batch)
    assert metrics[-1]["loss"] < 0.7 * metrics[0]["loss"]
    first, last = (metrics[index]["mlm_accuracy"] for index in (0, -1))
    assert first < 0.2 and first + 0.3 < last <= 1.0
    for step in metrics:  # what is measured is no part of the loss
        assert step["loss"] == pytest.approx(step["mlm"] + step["nsp"], rel=1e-6)


def test_replicas_stay_equal():
    trainer = fresh(2, 1)
    trainer.run(batches(3))
    for variable in trainer.state.variables().values():
        first, *others = (copy.numpy() for copy in copies(variable))
        assert len(others) == 1 and all(np.array_equal(first, other) for other in others)


def test_same_seed_same_bits():
    """The other seed is that of dropout alone."""
    first, second, other = fresh(1, 2, dropout=0.3), *(Trainer(1, 2, dropout=0.3) for _ in "12")
    other.step.seed += 1
    expected, again, differing = (
        losses(trainer.run(batches(3))) for trainer in (first, second, other)
    )
    assert np.array_equal(expected, again) and not np.array_equal(expected, differing)


@pytest.mark.parametrize("num_replicas, accumulation", [(2, 1), (1, 2)])
def test_replicas_and_micro_batches_draw_their_own_dropout(num_replicas, accumulation):
    """A batch of 8 rows alone, and twice on both replicas: with equal draws the two losses would be
    one, as they are without dropout (test_division_of_the_batch_changes_nothing).
    """
    batch = next(batches(1, rows=8))
    doubled = {name: np.concatenate([value, value]) for name, value in batch.items()}
    alone = fresh(dropout=0.3).run([batch])[0]["mlm"]
    divided = fresh(num_replicas, accumulation, dropout=0.3).run([doubled])[0]["mlm"]
    assert divided != pytest.approx(alone, rel=1e-4)


def test_bfloat16_is_close(one):
    metrics = losses(fresh(precision="bfloat16").run(batches(10)))
    np.testing.assert_allclose(metrics, one[0][:10], rtol=0.03)


def test_float16_overflow_skips_halves_and_recovers(one):
    trainer = fresh(1, 2, precision="float16")
    for copy in copies(trainer.state.loss_scale):
        copy.assign(2.0**24)
    before = trainer.state.read_weights()
    metrics = trainer.run(batches(1))
    assert metrics[0]["skipped"] == 1.0
    assert distance(before, trainer.state.read_weights()) == 0.0
    assert trainer.state.read()["loss_scale"] == 2.0**23
    metrics = trainer.run(batches(25))
    state = trainer.state.read()
    skipped = sum(step["skipped"] for step in metrics)
    assert metrics[-1]["skipped"] == 0.0 and state["num_skipped"] == 1 + skipped
    assert state["num_updates"] == 25 - skipped
    assert state["loss_scale"] == 2.0 ** (23 - skipped)


def test_float16_state_goes_through_a_checkpoint_and_grows_after_its_good_steps():
    """The loss scale and num_good are part of the state; one more good step after 1,999 doubles the
    scale.
    """
    first, second = Trainer(2, precision="float16"), fresh(precision="float16")
    state = first.state.read() | dict(
        loss_scale=np.float32(2.0**10), num_good=np.int32(LOSS_SCALE_GROWTH_STEPS - 1)
    )
    second.state.assign(state)
    assert second.run(batches(2))[1]["loss_scale"] == 2.0**11
    after = second.state.read()
    assert after["loss_scale"] == 2.0**11 and after["num_good"] == 1


def test_float16_is_close(one):
    metrics = fresh(precision="float16").run(batches(10))
    assert not any(step["skipped"] for step in metrics)
    np.testing.assert_allclose(losses(metrics), one[0][:10], rtol=0.03)


def test_a_step_that_is_not_finite_is_skipped():
    trainer = fresh(2, 1)
    before = trainer.state.read()
    assert trainer.run(batches(1), learning_rate=1e-3)[0]["skipped"] == 0.0
    kernel = trainer.state.weights["layer_0/attention/output/kernel"]
    middle = trainer.state.read()
    for copy in copies(kernel):
        copy.assign(tf.fill(copy.shape, np.inf))
    assert trainer.run(batches(1))[0]["skipped"] == 1.0
    after = trainer.state.read()
    assert after["num_updates"] == middle["num_updates"] == before["num_updates"] + 1
    assert all(
        np.array_equal(middle[name], after[name]) for name in after if name.startswith("slots/")
    )


@pytest.mark.parametrize(
    "optimizer", ["adamw", "adamw8bit", "muon", pytest.param("lamb", marks=pytest.mark.long)]
)
def test_a_compiled_step_that_is_not_finite_changes_no_bit_and_needs_no_conditional(optimizer):
    """A conditional is for XLA a second copy of all weights and slots, and on a GPU a wait for the
    host.
    """
    trainer = fresh(xla="on", optimizer=optimizer)
    assert trainer.run(batches(1), learning_rate=1e-3)[0]["skipped"] == 0.0
    [bias] = copies(trainer.state.weights["layer_0/attention/output/bias"])
    bias.assign(tf.fill(bias.shape, np.nan))
    before = trainer.state.read()
    assert trainer.run(batches(1))[0]["skipped"] == 1.0
    after = trainer.state.read()
    assert before["num_updates"] == after["num_updates"] == after["num_skipped"] == 1
    others = before.keys() - {"num_skipped"}
    assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in others)
    gradients = {name: tf.zeros_like(trainer.state.weights[name]) for name in trainer.state.trained}
    program = trainer.step.update.get_concrete_function(
        gradients, tf.constant(1.0), tf.constant(1e-3), None, None
    )
    graph = program.graph.as_graph_def()
    inner = [function.node_def for function in graph.library.function]
    kinds = {node.op for nodes in (graph.node, *inner) for node in nodes}
    assert "SelectV2" in kinds and not kinds & {"If", "StatelessIf"}


def test_frozen_layers_do_not_change_the_rates_of_those_below():
    """With --layer_lr_decay a layer's rate follows from its depth below the heads, whether the
    layers above are trained or not: the first step of AdamW moves a weight by its rate.
    """
    settings = dict(num_layers=2, layer_lr_decay=0.5, weight_decay_rate=0.0)
    moved = []
    for freeze in ((), ("layer_1/",)):
        trainer = Trainer(freeze=freeze, **settings)
        name = "layer_0/feed_forward/in/kernel"
        before = trainer.state.read_weights()[name]
        trainer.run(batches(1), learning_rate=1e-3)
        moved.append(np.abs(trainer.state.read_weights()[name] - before).max())
    assert moved == pytest.approx([0.25e-3] * 2, rel=0.05)


def test_global_batches_are_divided_in_order():
    parts = divide_batch(dict(x=np.arange(12)), 2, 3)
    assert [part["x"].tolist() for part in parts] == [
        [[0, 1], [2, 3], [4, 5]],
        [[6, 7], [8, 9], [10, 11]],
    ]


@pytest.mark.parametrize(
    "num_replicas, xla",
    [
        (1, "off"),
        pytest.param(2, "off", marks=pytest.mark.long),
        pytest.param(1, "on", marks=pytest.mark.long),
    ],
)
def test_steps_in_one_call_are_those_of_single_calls(num_replicas, xla):
    """With dropout: the same losses, skips and final weights, but for rounding (the two are not the
    same program).
    """
    results, weights = [], []
    for steps_per_call in (1, 3):
        trainer = fresh(num_replicas, 2, dropout=0.3, xla=xla)
        results.append(trainer.run(batches(6), start=3, steps_per_call=steps_per_call))
        weights.append(trainer.state.read_weights())
    np.testing.assert_allclose(*map(losses, results), rtol=1e-6)
    first, second = ([step["skipped"] for step in steps] for steps in results)
    assert first == second and distance(*weights) < 1e-6


def test_a_bad_step_inside_a_call_is_skipped_and_the_others_are_not():
    trainer = fresh(2, 1)
    # the second update makes weights infinite; the third is not finite, and is skipped
    learning_rates = [1e-3, np.inf, 1e-3]
    metrics = trainer.step(list(batches(3)), learning_rates, 0).read()
    assert metrics["skipped"].tolist() == [0.0, 0.0, 1.0]
    assert trainer.state.read()["num_updates"] == 2


@pytest.mark.parametrize(
    "num_replicas, xla",
    [
        (1, "off"),
        pytest.param(2, "off", marks=pytest.mark.long),
        pytest.param(1, "on", marks=pytest.mark.long),
    ],
)
def test_a_ramp_computes_the_micro_batches_that_there_are(num_replicas, xla):
    """Steps of 1, 3 and 2 micro-batches in one program equal steps of programs made for
    these numbers.
    """
    parts = [next(batches(1, rows=8 * num_replicas * number, seed=number)) for number in (1, 3, 2)]
    ramped = Trainer(num_replicas, 3, is_ramped=True, xla=xla)
    metrics = ramped.step(parts, [1e-2] * 3, 0, num_micro_batches=[1, 3, 2]).read()
    state, expected = None, []
    for number, batch in zip((1, 3, 2), parts, strict=True):
        trainer = fresh(num_replicas, number)
        if state is not None:
            trainer.state.assign(state)
        expected += trainer.run([batch])
        state = trainer.state.read()
    np.testing.assert_allclose(metrics["loss"], [step["loss"] for step in expected], rtol=1e-5)
    final = {
        name.removeprefix("weights/"): value
        for name, value in state.items()
        if name.startswith("weights/")
    }
    assert distance(ramped.state.read_weights(), final) < 1e-5


@pytest.mark.parametrize(
    "freeze, xla",
    [
        pytest.param(("layers:1",), "on", marks=pytest.mark.long),
        (("embeddings", "layers:1", r"feed_forward/.*bias"), "off"),
    ],
)
def test_frozen_weights_do_not_move_by_a_bit(freeze, xla):
    trainer = Trainer(2, 1, dropout=0.1, freeze=freeze, xla=xla, num_layers=2)
    before = trainer.state.read_weights()
    trainer.run(batches(3))
    after = trainer.state.read_weights()
    frozen = frozen_names(before, freeze)
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert frozen and not frozen & moved
    assert moved >= {name for name in set(before) - frozen if not name.endswith("bias")}
    assert not any(name in slot for slot in trainer.state.slots for name in frozen)


def test_other_weights_learn_as_if_the_frozen_ones_had_no_gradient(one):
    """The first step of a frozen run moves what is trained as the first step of a full run does,
    but for clipping.
    """
    full, part = fresh(clip_norm=0.0), fresh(clip_norm=0.0, freeze=("embeddings",))
    for trainer in (full, part):
        trainer.run(batches(1))
    first, second = full.state.read_weights(), part.state.read_weights()
    assert all(np.allclose(first[name], second[name], atol=1e-7) for name in part.state.trained)


@pytest.mark.parametrize(
    "expression, complaint",
    [
        ("layres:2", "no weight"),
        ("[", "not a valid regular expression"),
        ("layers:0", "no weight"),
        (".", "nothing to train"),
        ("layers:2", "at most layers:1"),
    ],
)
def test_what_freezes_nothing_or_all_is_refused(expression, complaint):
    with pytest.raises(UserError, match=complaint):
        frozen_names(["embeddings/word", "layer_0/attention/qkv/kernel"], [expression])


def test_layers_are_counted_not_matched():
    names = [f"layer_{number}/kernel" for number in range(12)]
    assert frozen_names(names, ["layers:2"]) == {"layer_0/kernel", "layer_1/kernel"}


def collectives_of_floats(trainer):
    """How many collective all-reduces of floats a trainer's traced program of a step has, all
    replicas together.
    """
    (program,) = trainer.step.programs.values()
    (traced,) = program._list_all_concrete_functions()
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(node for part in graph.library.function for node in part.node_def)]
    return sum(
        node.op.startswith("CollectiveReduce")
        and node.attr["T"].type == tf.float32.as_datatype_enum
        for node in nodes
    )


@pytest.mark.parametrize(
    "kind, implementation", [("auto", "AUTO"), ("nccl", "NCCL"), ("ring", "RING")]
)
def test_tensorflow_is_asked_for_every_all_reduce(kind, implementation, monkeypatch):
    monkeypatch.setattr(devices, "check_all_reduce", lambda *_: None)  # which wants GPUs for nccl
    found = devices.set_up(DeviceConfig(num_gpus=0, virtual_replicas=2, all_reduce=kind))
    assert found.communication.implementation.name == implementation


def test_an_all_reduce_gives_the_same_sums(one, monkeypatch):
    """And TensorFlow is asked for it, by the options of the gradients' all-reduce; the program of a
    step shows it.

    What TensorFlow does on the CPU is a ring, whatever it is asked for.
    """
    asked, all_reduce = [], tf.distribute.ReplicaContext.all_reduce

    def watched(context, operation, value, options=None):
        asked.append(options)
        return all_reduce(context, operation, value, options)

    monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", watched)
    monkeypatch.setattr(devices, "check_all_reduce", lambda *_: None)  # which wants GPUs for nccl
    trainer = Trainer(2, 1, devices=dict(all_reduce="nccl"))
    np.testing.assert_allclose(
        losses(trainer.run(batches(6), steps_per_call=2)), one[0][:6], rtol=1e-5
    )

    # each replica all-reduces the counts without options, then the gradients with them
    of_gradients = [options for options in asked if options is not None]
    assert len(of_gradients) == 2 and len(asked) == 4
    for options in of_gradients:
        assert options.implementation.name == "NCCL"
    # the counts are one collective for each replica, the gradients four
    assert collectives_of_floats(trainer) == 4


def test_bfloat16_on_the_wire_rounds_gradients_and_nothing_else(one):
    exact, rounded = fresh(2, 1), Trainer(2, devices=dict(all_reduce_dtype="bfloat16"))
    first, second = (losses(trainer.run(batches(6))) for trainer in (exact, rounded))
    assert np.array_equal(first[0], second[0]) and not np.array_equal(first, second)
    np.testing.assert_allclose(first, second, rtol=0.01)


@pytest.mark.parametrize(  # test_shared_update.py has Muon's law
    "optimizer, xla",
    [("lamb", "off"), ("adamw8bit", "off"), pytest.param("muon", "on", marks=pytest.mark.long)],
)
def test_other_optimizers_are_exact_and_compile(optimizer, xla):
    """Two replicas with and without XLA equal one with it; the state has the optimizer's types."""
    compiled = fresh(xla="on", optimizer=optimizer)
    divided = Trainer(2, 1 if xla == "off" else 2, optimizer=optimizer, xla=xla)
    first, second = (losses(trainer.run(batches(4))) for trainer in (compiled, divided))
    np.testing.assert_allclose(first, second, rtol=2e-4)
    state = divided.state.read()
    divided.state.assign(state)
    assert all(np.array_equal(value, divided.state.read()[name]) for name, value in state.items())
