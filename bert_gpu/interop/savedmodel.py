"""A SavedModel that takes raw strings: tokenizer, encoder and heads in one graph.

It needs TensorFlow and tensorflow_text, whose ops the tokenizer is made of, and nothing of this
project. Signatures follow from the heads: `embed` always; `fill_mask` with the masked-word head;
`classify` and `classify_pairs` with a classifier. Batches may have any size and texts any length;
what is longer than in the model's training, or than its positions, is cut, the longer text of a
pair first.

Legend: N texts, S sequence, H hidden, M masked positions of all texts, K words for each, C classes.
"""

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.base.fused import inlined
from bert_gpu.interop import card
from bert_gpu.interop.folders import replace_folder, saved_files
from bert_gpu.interop.usage import check_scores, class_names
from bert_gpu.model import heads
from bert_gpu.model.encoders import open_encoder
from bert_gpu.text.tokenizers.ops import CharacterMap, open_ops
from bert_gpu.text.vocabulary.file import has_piece

MASK = "[MASK]"
TOP_K = 5  # words for each mask
WITHOUT_SIGNATURE = ("BertForTokenClassification", "BertForQuestionAnswering")
TEXT = tf.TensorSpec([None], tf.string, name="text")
PAIRS = [tf.TensorSpec([None], tf.string, name=name) for name in ("text_a", "text_b")]


class Served(tf.Module):
    """A formats.Model as functions of strings; those of `signatures` are what is saved.

    dtype: of the weights' matrices and of what is computed; results are float32.
    """

    def __init__(self, model, dtype=tf.float32):
        super().__init__()
        self.problem_type, self.embedding = model.notes.problem_type, model.notes.embedding
        self.encoder, self.dtype, self.config = open_encoder(model.config), dtype, model.config
        self.tokenizer, self.ops = model.tokenizer, open_ops(model.tokenizer)
        weights = model.weights
        # one list of variables: a name with slashes cannot be an attribute
        self.names = sorted(weights)
        self.variables_ = [
            tf.Variable(weights[name], dtype=dtype if np.ndim(weights[name]) >= 2 else tf.float32)
            for name in self.names
        ]
        self.words = tf.Variable(self.tokenizer.vocab, trainable=False)
        self.lower = CharacterMap(str.lower, True) if self.embedding.lowers else tf.identity
        self.labels = tf.constant(class_names(model), tf.string)
        positions = self.config.max_position_embeddings
        self.max_seq_length = min(model.notes.max_seq_length or positions, positions)

    def weights(self):
        return dict(zip(self.names, map(tf.convert_to_tensor, self.variables_), strict=True))

    def signatures(self):
        """{name: concrete function}; serving_default is the model's purpose."""
        functions = {"embed": (self.embed, [TEXT])}
        if heads.mlm_weights(self.config).keys() <= set(self.names):
            functions["fill_mask"] = (self.fill_mask, [TEXT])
        if "classifier/kernel" in self.names:
            functions["classify"] = (self.classify, [TEXT])
            functions["classify_pairs"] = (self.classify_pairs, PAIRS)
        with inlined():
            found = {
                name: tf.function(function, autograph=False).get_concrete_function(*specs)
                for name, (function, specs) in functions.items()
            }
        purpose = next(name for name in ("classify", "fill_mask", "embed") if name in found)
        return found | dict(serving_default=found[purpose])

    def embed(self, text):
        """(N,) -> {"cls": (N, H), the hidden state of [CLS], "mean": (N, H), of all tokens}, and
        for a folder of sentence-transformers "embedding" (N, H), what it makes of these.
        """
        own = self.embedding
        batch = self.frame(self.ops.tokenize(self.lower(tf.strings.join([own.prefix, text]))))
        hidden = tf.cast(self.hidden(batch), tf.float32)
        share = tf.cast(batch["input_mask"], tf.float32)
        share /= tf.reduce_sum(share, -1, keepdims=True)
        vectors = dict(cls=hidden[:, 0], mean=tf.reduce_sum(hidden * share[:, :, None], 1))
        if own.pooling and not own.lacking:
            own_vectors = vectors[own.pooling]
            scaled = tf.nn.l2_normalize(own_vectors, -1, 1e-24)
            vectors["embedding"] = scaled if own.is_normalized else own_vectors
        return vectors

    def fill_mask(self, text):
        """(N,) -> for each [MASK] in them, in order: "text" (M,), the index of its text, "words"
        and "probabilities" (M, K), the likeliest first.
        """
        batch = self.frame(self.tokenize_masked(text))
        places = tf.where(batch["input_ids"] == self.tokenizer.mask_id)  # (M, 2)
        hidden = tf.gather_nd(self.hidden(batch), places)  # (M, H)
        size = tf.shape(hidden)[0]
        logits = heads.mlm_logits(
            self.weights(), hidden[None], tf.range(size)[None], self.config, self.dtype
        )[0]
        are_words = has_piece(self.tokenizer.vocab, self.config.vocab_size)
        best, pieces = heads.best_words(logits, are_words, TOP_K)
        return dict(
            text=tf.cast(places[:, 0], tf.int32),
            words=tf.gather(self.words, pieces),
            probabilities=best,
        )

    def classify(self, text):
        """(N,) -> "probabilities" (N, C) and the names of the classes: "label" (N,), the likeliest,
        or of a model of any number of labels "labels" (C,). A regression gives "score" (N,).
        """
        return self.classified(self.frame(self.ops.tokenize(text)))

    def classify_pairs(self, text_a, text_b):
        """(N,), (N,) -> as `classify`. A pair whose second text is empty is a single text."""
        return self.classified(self.frame(self.ops.tokenize(text_a), self.ops.tokenize(text_b)))

    def classified(self, batch):
        weights, config = self.weights(), self.config
        vectors = heads.sentence_vector(weights, self.hidden(batch), batch["input_mask"], config)
        logits = tf.cast(heads.classifier_logits(weights, vectors), tf.float32)
        if self.problem_type == "regression":
            return dict(score=logits[:, 0])
        if self.problem_type == "multi_label_classification":
            return dict(probabilities=tf.sigmoid(logits), labels=tf.identity(self.labels))
        shares = tf.nn.softmax(logits)
        return dict(probabilities=shares, label=tf.gather(self.labels, tf.argmax(shares, -1)))

    def hidden(self, batch):
        """(N, S, H) in the compute type."""
        return self.encoder.encode(self.weights(), batch, dtype=self.dtype)

    def tokenize_masked(self, text):
        """Ids of texts in which the literal [MASK], which a tokenizer would split, is the special
        piece: (N,) -> RaggedTensor (N, ids of each).
        """
        parts = tf.strings.split(text, MASK)  # (N, parts of each)
        ids = self.ops.tokenize(parts.values)
        num_parts = tf.size(parts.values)
        masks = tf.RaggedTensor.from_row_lengths(
            tf.fill([num_parts], self.tokenizer.mask_id), tf.ones([num_parts], tf.int64)
        )
        ids = tf.concat([ids, masks], 1)  # a mask behind each part
        whole = tf.RaggedTensor.from_row_splits(
            ids.values, tf.gather(ids.row_splits, parts.row_splits)
        )
        return kept(whole, whole.row_lengths() - 1)  # but not behind the last

    def frame(self, ids_a, ids_b=None):
        """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], cut to max_seq_length, as
        text.framing.frame does: ids of RaggedTensors (N, ids of each) -> the encoder's batch.
        """
        lengths_a, limit = ids_a.row_lengths(), self.max_seq_length
        num_rows = tf.shape(lengths_a, tf.int64)[0]
        lengths_b = tf.zeros_like(lengths_a) if ids_b is None else ids_b.row_lengths()
        room = tf.cast(tf.where(lengths_b > 0, limit - 3, limit - 2), tf.int64)
        kept_b = tf.minimum(lengths_b, tf.maximum(room // 2, room - lengths_a))
        kept_a = tf.minimum(lengths_a, room - kept_b)
        once = tf.ones([num_rows], tf.int64)
        rows = [
            repeated(self.tokenizer.cls_id, once),
            kept(ids_a, kept_a),
            repeated(self.tokenizer.sep_id, once),
        ]
        if ids_b is not None:
            has_b = tf.cast(lengths_b > 0, tf.int64)
            rows += [kept(ids_b, kept_b), repeated(self.tokenizer.sep_id, has_b)]
        rows = tf.concat(rows, 1)
        input_ids = rows.to_tensor(0, shape=[None, self.encoder.fixed_length])
        # without a text there is no row, but its [CLS] and [SEP] have positions all the same
        missing = tf.maximum(0, 2 - tf.shape(input_ids)[1])
        input_ids = tf.pad(input_ids, [[0, 0], [0, missing]])
        positions = tf.range(tf.shape(input_ids, tf.int64)[1])
        is_token = positions < rows.row_lengths()[:, None]
        is_second = is_token & (positions >= (kept_a + 2)[:, None])
        return dict(
            input_ids=input_ids,
            input_mask=tf.cast(is_token, tf.int32),
            segment_ids=tf.cast(is_second, tf.int32),
        )


def repeated(value, lengths):
    """RaggedTensor of `lengths` (N,) times the value."""
    return tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(lengths)], value), lengths)


def kept(ids, lengths):
    """The first `lengths` (N,) ids of each row of a RaggedTensor."""
    places = tf.ragged.range(ids.row_lengths())
    is_kept = places.values < tf.repeat(lengths, ids.row_lengths())
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(ids.values, is_kept), lengths)


def write(model, folder, options):
    """Writes a Model as a SavedModel; see formats.FormatModule. options.precision: of its products
    and matrices.
    """
    if model.tokenizer is None:
        raise UserError(
            "the tokenizer is part of it, and the model has no vocabulary",
            "give --vocab_file",
            setting="format",
            value="savedmodel",
        )
    if model.notes.architecture in WITHOUT_SIGNATURE:
        raise UserError(
            f"has no signature for a {model.notes.architecture}, whose scores are of tokens",
            "give --format=onnx or huggingface",
            setting="format",
            value="savedmodel",
        )
    if "classifier/bias" in model.weights:
        check_scores("--format=savedmodel: the model", model)
    dtype = tf.as_dtype(options.precision)
    encoder = open_encoder(model.config)
    encoder.check(encoder.fixed_length, options.precision)
    served = Served(model, dtype)
    signatures = served.signatures()
    contents = saved_files(lambda temporary: tf.saved_model.save(served, temporary, signatures))
    contents |= {**(model.task or {}), "README.md": card.readme(model, usage(signatures))}
    replace_folder(folder.rstrip("/"), contents, is_whole_model=True)
    names = ", ".join(name for name in signatures if name != "serving_default")
    return (
        f"{folder}: a SavedModel of raw strings, {options.precision}, with {names}; "
        "load it with tensorflow and tensorflow_text"
    )


def usage(signatures):
    """{world: lines of Python} that open the folder, for the model card."""
    name = "classify_pairs" if "classify_pairs" in signatures else "serving_default"
    arguments = "text_a=texts, text_b=texts" if name == "classify_pairs" else "text=texts"
    lines = (
        "import tensorflow as tf",
        "import tensorflow_text  # the tokenizer's ops",
        'signatures = tf.saved_model.load("FOLDER").signatures',
        'texts = tf.constant(["a text"])',
        f'signatures["{name}"]({arguments})',
    )
    return {"In TensorFlow": lines}
