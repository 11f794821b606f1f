"""The variables of a run, one copy on each replica: weights, optimizer slots, the number of
updates, the loss scale.

They are ON_READ variables with the aggregation ONLY_FIRST_REPLICA: a replica reads and assigns its
own copy, also inside compiled functions, and the copies stay equal because all replicas apply the
same update. Frozen weights have no slots.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.base.weight_names import EMBEDDINGS, layers_of
from bert_gpu.optim import optimizers
from bert_gpu.optim.config import OptimizerConfig

# The loss scale is doubled after LOSS_SCALE_GROWTH_STEPS good steps and halved at overflow.
LOSS_SCALE_START, LOSS_SCALE_MAX, LOSS_SCALE_GROWTH_STEPS = 2.0**15, 2.0**24, 2000


class ModelState:
    """The weights of a model as variables. weights: {name: float32 array}, their first values."""

    def __init__(self, strategy: tf.distribute.Strategy, weights: Mapping[str, np.ndarray]) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.weights = {
                name: replicated(tf.constant(value, tf.float32), name)
                for name, value in weights.items()
            }

    def read_weights(self) -> dict[str, np.ndarray]:
        return {name: copies(variable)[0].numpy() for name, variable in self.weights.items()}

    def assign_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set the weights on all replicas; slots and counters keep their values."""
        assign_all(self.weights, weights)


class TrainState(ModelState):
    """The variables of a run: weights, slots and counters.

    Args of the constructor:
      weights: as of ModelState.
      optimizer: decides which slots the weights have; None for a state that is only evaluated.
      frozen: names of weights that are not trained. column_blocks: {weight: number of matrices that
        it holds side by side}, for weights that hold several (model.weights.column_blocks); needed
        with an optimizer.

    Attributes: trained: names of the weights that are not frozen. joint_parts: {weight: JointPart}
    of the trained weights in the optimizer's joint work (optimizers.joint_parts).
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        weights: Mapping[str, np.ndarray],
        optimizer: OptimizerConfig | None = None,
        frozen: Iterable[str] = (),
        column_blocks: Mapping[str, int] | None = None,
    ) -> None:
        assert optimizer is None or column_blocks is not None
        super().__init__(strategy, weights)
        frozen = set(frozen)
        self.trained = [name for name in weights if name not in frozen]
        trained = {name: weights[name] for name in self.trained}
        slots = {} if optimizer is None else optimizers.initial_slots(trained, optimizer)
        self.joint_parts = (
            {}
            if optimizer is None or column_blocks is None
            else optimizers.joint_parts(trained, optimizer, column_blocks)
        )
        with strategy.scope():
            self.slots = {name: replicated(value, name) for name, value in slots.items()}
            # int64: TensorFlow keeps int32 variables in the host's memory, where the compiled step
            # of a GPU cannot use them
            self.num_updates = replicated(tf.constant(0, tf.int64), "num_updates")
            self.num_skipped = replicated(tf.constant(0, tf.int64), "num_skipped")
            self.loss_scale = replicated(tf.constant(LOSS_SCALE_START), "loss_scale")
            self.num_good = replicated(tf.constant(0, tf.int64), "num_good")

    def variables(self) -> dict[str, tf.Variable]:
        """Return {name: variable} of all variables that a checkpoint holds."""
        return {
            **{f"weights/{name}": variable for name, variable in self.weights.items()},
            **{f"slots/{name}": variable for name, variable in self.slots.items()},
            "num_updates": self.num_updates,
            "num_skipped": self.num_skipped,
            "loss_scale": self.loss_scale,
            "num_good": self.num_good,
        }

    def read(self) -> dict[str, np.ndarray]:
        """Return {name: array} of all variables that a checkpoint holds, as copies of the current
        values.
        """
        return {name: copies(variable)[0].numpy() for name, variable in self.variables().items()}

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Set all variables on all replicas to `values`, {name: array}. Raises KeyError when the
        value of a variable is missing.
        """
        assign_all(self.variables(), values)


def replicated(value: tf.Tensor | np.ndarray, name: str) -> tf.Variable:
    """Return a variable with a copy on each replica, as the module says."""
    return tf.Variable(
        value,
        trainable=False,
        name=re.sub("[^A-Za-z0-9_.-]", "_", name),
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def assign_all(variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray]) -> None:
    for name, variable in variables.items():
        for copy in copies(variable):
            copy.assign(values[name])


def copies(variable: tf.Variable) -> Sequence[tf.Variable]:
    """Return the copies of a variable, one for each replica of this process."""
    return variable.values if hasattr(variable, "values") else [variable]


def frozen_names(weight_names: Collection[str], expressions: Iterable[str]) -> set[str]:
    """Return the names of the weights that --freeze selects.

    Args:
      weight_names: names of all weights. expressions: each "embeddings", "layers:K" (the first K
        layers) or a regular expression that is searched in the names.

    Raises UserError when an expression is invalid, matches nothing or names more layers than there
    are, or when nothing is left to train.
    """
    frozen: set[str] = set()
    layers = layers_of(weight_names)
    num_layers = 1 + max(layers.values(), default=-1)
    for expression in expressions:
        first_layers = re.fullmatch(r"layers:(\d+)", expression)
        if first_layers and int(first_layers[1]) > num_layers:
            raise UserError(
                "the model has fewer layers of its own weights",
                f"give at most layers:{num_layers}",
                setting="freeze",
                value=expression,
            )
        try:
            if first_layers:
                matches = {name for name, layer in layers.items() if layer < int(first_layers[1])}
            else:
                matches = {
                    name
                    for name in weight_names
                    if re.search(EMBEDDINGS if expression == "embeddings" else expression, name)
                }
        except re.error as error:
            raise UserError(
                f"is not a valid regular expression ({error})",
                "correct it, or use embeddings or layers:K",
                setting="freeze",
                value=expression,
            ) from error
        if not matches:
            raise UserError(
                "no weight has such a name",
                "use embeddings, layers:K or a regular expression",
                setting="freeze",
                value=expression,
            )
        frozen |= matches
    if frozen == set(weight_names):
        raise UserError(
            "leaves nothing to train", "freeze less", setting="freeze", value=",".join(expressions)
        )
    return frozen
