"""TensorFlow Model Garden as a process for benchmarks: BertPretrainerV2 over BertEncoderV2 with
AdamWeightDecay, one tf.function per step.

Model and losses are those of official/nlp/tasks/masked_lm.py, without its metrics, which only cost
time; the optimizer has the settings of official/nlp/optimization.py, clipping included.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

from serve import VOCAB_SIZE, Trainer, make_batch, serve


class Garden(Trainer):
    """shape: fields of ModelConfig. length: S. precision: float32, bfloat16 or float16. xla:
    whether the step is compiled.
    """

    def __init__(self, shape, length, precision="float32", xla=False, gpu=False):
        if not gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        import tensorflow as tf
        import tf_keras
        from official.nlp import optimization
        from official.nlp.modeling import layers, models, networks

        if precision != "float32":
            tf_keras.mixed_precision.set_global_policy(f"mixed_{precision}")
        self.OUT_OF_MEMORY = (MemoryError, tf.errors.ResourceExhaustedError)
        self.tf, self.length, self.xla = tf, length, xla
        dropout = shape["hidden_dropout_prob"]
        activation = lambda x: tf_keras.activations.gelu(x, approximate=False)  # noqa: E731
        encoder = networks.BertEncoderV2(
            vocab_size=VOCAB_SIZE,
            hidden_size=shape["hidden_size"],
            num_layers=shape["num_hidden_layers"],
            num_attention_heads=shape["num_attention_heads"],
            inner_dim=shape["intermediate_size"],
            inner_activation=activation,
            output_dropout=dropout,
            attention_dropout=shape["attention_probs_dropout_prob"],
            max_sequence_length=512,
            type_vocab_size=2,
        )
        head = layers.ClassificationHead(
            inner_dim=shape["hidden_size"], num_classes=2, name="next_sentence"
        )
        normal = tf_keras.initializers.TruncatedNormal(stddev=0.02)
        self.model = models.BertPretrainerV2(
            encoder, activation, normal, classification_heads=[head]
        )
        self.optimizer = optimization.AdamWeightDecay(
            learning_rate=1e-4,
            weight_decay_rate=0.01,
            beta_1=0.9,
            beta_2=0.999,
            epsilon=1e-6,
            exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        )

    def build(self, rows):
        tf = self.tf
        batch = make_batch(rows, self.length)
        names = dict(input_ids="input_word_ids", segment_ids="input_type_ids")
        self.batch = {names.get(name, name): tf.constant(value) for name, value in batch.items()}
        self.step = tf.function(self.train_step, jit_compile=self.xla)
        self.model(self.batch, training=True)
        if self.xla:  # slots cannot be made inside of a compiled function
            self.optimizer._create_all_weights(self.model.trainable_variables)

    def train_step(self, batch):
        tf = self.tf
        with tf.GradientTape() as tape:
            outputs = self.model(batch, training=True)
            crossings = tf.nn.sparse_softmax_cross_entropy_with_logits
            words = crossings(batch["masked_lm_ids"], tf.cast(outputs["mlm_logits"], tf.float32))
            weights = batch["masked_lm_weights"]
            sentences = crossings(
                batch["next_sentence_labels"], tf.cast(outputs["next_sentence"], tf.float32)
            )
            loss = tf.reduce_sum(words * weights) / tf.reduce_sum(weights) + tf.reduce_mean(
                sentences
            )
        variables = self.model.trainable_variables
        gradients = zip(tape.gradient(loss, variables), variables, strict=True)
        # XLA takes no sparse gradients. The encoder's own pooler has none at all: the next-sentence
        # head brings its own.
        pairs = [
            (tf.convert_to_tensor(g) if self.xla else g, variable)
            for g, variable in gradients
            if g is not None
        ]
        self.optimizer.apply_gradients(pairs)
        return loss

    def run(self, num_steps):
        for _ in range(num_steps):
            loss = self.step(self.batch)
        return float(loss)


if __name__ == "__main__":
    serve(Garden)
