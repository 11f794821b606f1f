"""The variables of a run, one copy on each replica: weights, optimizer slots, the number of
updates, the loss scale.

They are ON_READ variables with the aggregation ONLY_FIRST_REPLICA: a replica reads and assigns its
own copy, also inside compiled functions, and the copies stay equal because all replicas apply the
same update. Frozen weights have no slots.
"""

import re

import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.base.weight_names import EMBEDDINGS, layers_of
from bert_gpu.optim import optimizers

# doubled after LOSS_SCALE_GROWTH_STEPS good steps, halved at overflow
LOSS_SCALE_START, LOSS_SCALE_MAX, LOSS_SCALE_GROWTH_STEPS = 2.0**15, 2.0**24, 2000


class TrainState:
    """Weights and what belongs to them.

    Args of the constructor:
      strategy: tf.distribute.Strategy. weights: {name: float32 array}, their first values.
      optimizer: OptimizerConfig, which decides the slots; None for a state that is only evaluated.
      frozen: names of weights that are not trained. column_blocks: {name: number of matrices that
        the weight holds side by side}, where several (model.weights.column_blocks); needed with an
        optimizer.

    joint_parts: of the trained weights, as of `optimizers.joint_parts`.
    """

    def __init__(self, strategy, weights, optimizer=None, frozen=(), column_blocks=None):
        def variable(value, name):
            return tf.Variable(
                value,
                trainable=False,
                name=re.sub("[^A-Za-z0-9_.-]", "_", name),
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

        assert optimizer is None or column_blocks is not None
        self.strategy, frozen = strategy, set(frozen)
        self.trained = [name for name in weights if name not in frozen]
        trained = {name: weights[name] for name in self.trained}
        slots = {} if optimizer is None else optimizers.initial_slots(trained, optimizer)
        self.joint_parts = (
            {} if optimizer is None else optimizers.joint_parts(trained, optimizer, column_blocks)
        )
        with strategy.scope():
            self.weights = {
                name: variable(tf.constant(value, tf.float32), name)
                for name, value in weights.items()
            }
            self.slots = {name: variable(value, name) for name, value in slots.items()}
            self.num_updates = variable(tf.constant(0, tf.int32), "num_updates")
            self.num_skipped = variable(tf.constant(0, tf.int32), "num_skipped")
            self.loss_scale = variable(tf.constant(LOSS_SCALE_START), "loss_scale")
            self.num_good = variable(tf.constant(0, tf.int32), "num_good")

    def variables(self):
        """Everything that a checkpoint holds, as {name: variable}."""
        return {
            **{f"weights/{name}": variable for name, variable in self.weights.items()},
            **{f"slots/{name}": variable for name, variable in self.slots.items()},
            "num_updates": self.num_updates,
            "num_skipped": self.num_skipped,
            "loss_scale": self.loss_scale,
            "num_good": self.num_good,
        }

    def read(self):
        """All values as {name: NumPy array}, copies that later steps do not touch."""
        return {name: copies(variable)[0].numpy() for name, variable in self.variables().items()}

    def read_weights(self):
        return {name: copies(variable)[0].numpy() for name, variable in self.weights.items()}

    def assign(self, values):
        """Sets all values on all replicas; KeyError when one is missing."""
        assign_all(self.variables(), values)

    def assign_weights(self, weights):
        """Sets the weights {name: array} on all replicas; slots and counters stay."""
        assign_all(self.weights, weights)


def assign_all(variables, values):
    for name, variable in variables.items():
        for copy in copies(variable):
            copy.assign(values[name])


def copies(variable):
    return variable.values if hasattr(variable, "values") else [variable]


def frozen_names(weight_names, expressions):
    """The weights that --freeze names.

    Args:
      weight_names: names of all weights. expressions: strings, each "embeddings", "layers:K" (the
        first K layers) or a regular expression that is searched in the names.

    Raises UserError when an expression is invalid, matches nothing or names more layers than there
    are, or when nothing is left to train.
    """
    frozen, layers = set(), layers_of(weight_names)
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
                found = {name for name, layer in layers.items() if layer < int(first_layers[1])}
            else:
                found = {
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
        if not found:
            raise UserError(
                "no weight has such a name",
                "use embeddings, layers:K or a regular expression",
                setting="freeze",
                value=expression,
            )
        frozen |= found
    if frozen == set(weight_names):
        raise UserError(
            "leaves nothing to train", "freeze less", setting="freeze", value=",".join(expressions)
        )
    return frozen
