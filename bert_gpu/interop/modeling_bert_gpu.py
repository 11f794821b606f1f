"""BERT with bert-gpu's switches, for Hugging Face's transformers: pre-LN, RMSNorm, gates, rotary or
sinusoidal positions, no biases, factorised embeddings, layers that share weights.

This one file is copied beside a model's weights, which config.json names it for; it needs torch
and transformers 5 alone. AutoModel and its relatives open the folder with trust_remote_code=True.

Weights are one flat table of parameters under the names of the file, with kernels as (in, out).
Legend: B batch, S sequence, H hidden, N heads, D per head, E embedding width, V vocabulary.
"""

import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput

if int(transformers.__version__.partition(".")[0]) < 5:
    raise ImportError(f"needs transformers 5, not {transformers.__version__}: upgrade it with pip")

GATES = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu"}
ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


class BertGpuConfig(PretrainedConfig):
    """The fields of bert-gpu's model; those that BERT lacks have BERT's meaning by default."""

    model_type = "bert_gpu"

    def __init__(
        self,
        vocab_size=30522,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_act="gelu",
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        max_position_embeddings=512,
        type_vocab_size=2,
        initializer_range=0.02,
        layer_norm_eps=1e-12,
        norm_type="layer_norm",
        norm_first=False,
        embedding_norm=True,
        position_embedding_type="absolute",
        use_bias=True,
        embedding_size=None,
        num_hidden_groups=None,
        mlm_transform=True,
        decoder_bias=True,
        pooling="first",
        pooler_size=None,
        encoder=None,
        pad_token_id=0,
        **more,
    ):
        if encoder is not None:
            raise ValueError(f"encoder={encoder}: is not one that this file computes")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.norm_type = norm_type
        self.norm_first = norm_first
        self.embedding_norm = embedding_norm
        self.position_embedding_type = position_embedding_type
        self.use_bias = use_bias
        self.embedding_size = embedding_size
        self.num_hidden_groups = num_hidden_groups
        self.mlm_transform = mlm_transform
        self.decoder_bias = decoder_bias
        self.pooling = pooling
        self.pooler_size = pooler_size
        self.encoder = encoder
        super().__init__(pad_token_id=pad_token_id, **more)


def dense_shapes(name, num_inputs, num_outputs, use_bias=True):
    bias = {f"{name}/bias": (num_outputs,)} if use_bias else {}
    return {f"{name}/kernel": (num_inputs, num_outputs)} | bias


def norm_shapes(config, name, size):
    bias = {} if config.norm_type == "rms_norm" else {f"{name}/bias": (size,)}
    return {f"{name}/scale": (size,)} | bias


def encoder_shapes(config):
    """{name: shape} of embeddings and layers."""
    hidden, width = config.hidden_size, config.embedding_size or config.hidden_size
    shapes = {"embeddings/word": (config.vocab_size, width)}
    if config.position_embedding_type == "absolute":
        shapes["embeddings/position"] = (config.max_position_embeddings, width)
    if config.position_embedding_type == "scaled_sinusoidal":
        shapes["embeddings/position_scale"] = (1,)
    if config.type_vocab_size:
        shapes["embeddings/segment"] = (config.type_vocab_size, width)
    if config.embedding_norm:
        shapes |= norm_shapes(config, "embeddings/norm", width)
    if width != hidden:
        shapes |= dense_shapes("embeddings/projection", width, hidden, config.use_bias)
    inner, gated = config.intermediate_size, config.hidden_act in GATES
    for group in range(config.num_hidden_groups or config.num_hidden_layers):
        attention, feed_forward = f"layer_{group}/attention", f"layer_{group}/feed_forward"
        shapes |= dense_shapes(f"{attention}/qkv", hidden, 3 * hidden, config.use_bias)
        shapes |= dense_shapes(f"{attention}/output", hidden, hidden, config.use_bias)
        shapes |= norm_shapes(config, f"{attention}/norm", hidden)
        shapes |= dense_shapes(f"{feed_forward}/in", hidden, inner, config.use_bias)
        outer = inner // 2 if gated else inner
        shapes |= dense_shapes(f"{feed_forward}/output", outer, hidden, config.use_bias)
        shapes |= norm_shapes(config, f"{feed_forward}/norm", hidden)
    return shapes | (norm_shapes(config, "final_norm", hidden) if config.norm_first else {})


def mlm_shapes(config):
    hidden, width = config.hidden_size, config.embedding_size or config.hidden_size
    shapes = {}
    if config.mlm_transform:
        shapes |= dense_shapes("mlm/transform", hidden, width, config.use_bias)
        shapes |= norm_shapes(config, "mlm/norm", width)
    return shapes | ({"mlm/bias": (config.vocab_size,)} if config.decoder_bias else {})


def activate(name, x):
    """A gate multiplies the first half of x by the activation of the second."""
    if name in GATES:
        values, gates = x.chunk(2, -1)
        return values * ACTIVATIONS[GATES[name]](gates)
    return ACTIVATIONS[name](x)


def sinusoids(num_positions, width, device):
    """Sines (even columns) and cosines (odd columns) of position / 10000^(2 i / width)."""
    return torch.stack(angles(num_positions, width, device), -1).reshape(num_positions, width)


def angles(num_positions, size, device):
    """(sines, cosines) of position / 10000^(2 i / size): float32 (num_positions, size / 2) each."""
    positions = torch.arange(num_positions, dtype=torch.float64, device=device)
    steps = torch.arange(0, size, 2, dtype=torch.float64, device=device)
    turned = positions[:, None] / 10000.0 ** (steps / size)
    return turned.sin().float(), turned.cos().float()


def rotate(x, sines, cosines):
    """Turns dimensions i and i + D / 2 of (B, N, S, D) by the angle of their position."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


class BertGpuPreTrainedModel(PreTrainedModel):
    """The encoder, and the parameters of the heads that a class names."""

    config_class = BertGpuConfig
    base_model_prefix = ""
    _supports_sdpa = True
    # heads of other classes
    _keys_to_ignore_on_load_unexpected = [r"^(mlm|nsp|pooler|classifier|token_classifier|span)/"]

    def __init__(self, config):
        super().__init__(config)
        for name, shape in (encoder_shapes(config) | self.head_shapes(config)).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.post_init()

    def head_shapes(self, config):
        return {}

    @torch.no_grad()
    def _init_weights(self, module):
        """First values of the parameters that were not loaded."""
        for name, parameter in module.named_parameters(recurse=False):
            if getattr(parameter, "_is_hf_initialized", False):
                continue
            if name == "embeddings/position_scale":
                parameter.fill_((self.config.embedding_size or self.config.hidden_size) ** -0.5)
            elif name.endswith("/scale"):
                parameter.fill_(1.0)
            elif name.endswith("/bias"):
                parameter.zero_()
            else:
                parameter.normal_(std=self.config.initializer_range)

    def get_input_embeddings(self):
        raise NotImplementedError("the word embeddings are a parameter here, not a module")

    def _dense(self, name, x):
        bias = getattr(self, f"{name}/bias", None)
        x = x @ getattr(self, f"{name}/kernel")
        return x if bias is None else x + bias

    def _norm(self, name, x):
        scale = getattr(self, f"{name}/scale")
        if self.config.norm_type == "layer_norm":
            bias = getattr(self, f"{name}/bias")
            return functional.layer_norm(x, x.shape[-1:], scale, bias, self.config.layer_norm_eps)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.layer_norm_eps)
        return (wide * scale.float()).to(x.dtype)

    def _drop(self, x):
        return functional.dropout(x, self.config.hidden_dropout_prob, self.training)

    def _embed(self, input_ids, token_type_ids, inputs_embeds):
        config = self.config
        if inputs_embeds is None:
            inputs_embeds = functional.embedding(input_ids, getattr(self, "embeddings/word"))
        x, (batch_size, length) = inputs_embeds, inputs_embeds.shape[:2]
        if config.type_vocab_size:
            if token_type_ids is None:
                token_type_ids = x.new_zeros((batch_size, length), dtype=torch.long)
            x = x + functional.embedding(token_type_ids, getattr(self, "embeddings/segment"))
        if config.position_embedding_type == "absolute":
            x = x + getattr(self, "embeddings/position")[:length]
        if config.position_embedding_type == "scaled_sinusoidal":
            scale = getattr(self, "embeddings/position_scale").float()
            x = x + (sinusoids(length, x.shape[-1], x.device) * scale).to(x.dtype)
        if config.embedding_norm:
            x = self._norm("embeddings/norm", x)
        x = self._drop(x)
        has_projection = hasattr(self, "embeddings/projection/kernel")
        return self._dense("embeddings/projection", x) if has_projection else x

    def _attend(self, name, x, mask, turns, attentions):
        config, (batch_size, length, hidden) = self.config, x.shape
        heads = (batch_size, length, 3, config.num_attention_heads, -1)
        q, k, v = self._dense(f"{name}/qkv", x).reshape(heads).permute(2, 0, 3, 1, 4)
        if turns is not None:
            q, k = (rotate(part, *turns) for part in (q, k))  # (B, N, S, D)
        rate = config.attention_probs_dropout_prob if self.training else 0.0
        if attentions is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, mask, rate)
        else:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask
            attentions.append(torch.softmax(scores.float(), -1).to(q.dtype))
            mixed = functional.dropout(attentions[-1], rate) @ v
        mixed = mixed.transpose(1, 2).reshape(batch_size, length, hidden)
        return self._dense(f"{name}/output", mixed)

    def _feed_forward(self, name, x):
        inner = activate(self.config.hidden_act, self._dense(f"{name}/in", x))
        return self._dense(f"{name}/output", inner)

    def _add(self, name, x, block):
        """One block around its residual connection."""
        if self.config.norm_first:
            return x + self._drop(block(self._norm(f"{name}/norm", x)))
        return self._norm(f"{name}/norm", x + self._drop(block(x)))

    def encode(
        self, input_ids, attention_mask, token_type_ids, inputs_embeds, attends=False, keeps=False
    ):
        """(hidden states (B, S, H), mask (B, S), those of all layers, all attentions); the last two
        None unless kept.
        """
        config = self.config
        x = self._embed(input_ids, token_type_ids, inputs_embeds)
        length = x.shape[1]
        if length > config.max_position_embeddings:
            positions = config.max_position_embeddings
            raise ValueError(f"a row of {length} tokens; the model has {positions} positions")
        if attention_mask is None:
            attention_mask = x.new_ones(x.shape[:2])
        lowest = torch.finfo(x.dtype).min
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * lowest
        turns = None
        if config.position_embedding_type == "rotary":
            size = config.hidden_size // config.num_attention_heads
            turns = [part.to(x.dtype) for part in angles(length, size, x.device)]
        layers, attentions = [x] if keeps else None, [] if attends else None
        num_groups = config.num_hidden_groups or config.num_hidden_layers
        for index in range(config.num_hidden_layers):
            group = f"layer_{index * num_groups // config.num_hidden_layers}"
            name = f"{group}/attention"
            x = self._add(
                name, x, lambda x, name=name: self._attend(name, x, mask, turns, attentions)
            )
            name = f"{group}/feed_forward"
            x = self._add(name, x, lambda x, name=name: self._feed_forward(name, x))
            if keeps:
                layers.append(x)
        if config.norm_first:
            x = self._norm("final_norm", x)
        return (
            x,
            attention_mask,
            *(part if part is None else tuple(part) for part in (layers, attentions)),
        )

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        inputs_embeds=None,
        output_attentions=None,
        output_hidden_states=None,
        return_dict=None,
        **labels,
    ):
        keeps = self.config.output_hidden_states
        keeps = keeps if output_hidden_states is None else output_hidden_states
        hidden, mask, layers, attentions = self.encode(
            input_ids, attention_mask, token_type_ids, inputs_embeds, bool(output_attentions), keeps
        )
        outputs = self.head(hidden, mask, **labels)
        outputs["hidden_states"], outputs["attentions"] = layers, attentions
        return outputs if return_dict in (None, True) else outputs.to_tuple()

    def _pool(self, vectors):
        return torch.tanh(self._dense("pooler", vectors))

    def _word_scores(self, hidden):
        if self.config.mlm_transform:
            act = GATES.get(self.config.hidden_act, self.config.hidden_act)
            hidden = ACTIVATIONS[act](self._dense("mlm/transform", hidden))
            hidden = self._norm("mlm/norm", hidden)
        scores = hidden @ getattr(self, "embeddings/word").T
        return scores + getattr(self, "mlm/bias") if self.config.decoder_bias else scores


def cross_entropy(logits, labels):
    """Mean over labels that are not -100; None without labels."""
    if labels is None:
        return None
    return functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


class BertGpuModel(BertGpuPreTrainedModel):
    """The bare encoder; pooler_output is the sentence vector of next-sentence prediction, of the
    first token.
    """

    def head_shapes(self, config):
        return dense_shapes("pooler", config.hidden_size, config.hidden_size)

    def head(self, hidden, mask):
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden, pooler_output=self._pool(hidden[:, 0])
        )


class BertGpuForPreTraining(BertGpuPreTrainedModel):
    def head_shapes(self, config):
        pooler = dense_shapes("pooler", config.hidden_size, config.hidden_size)
        return mlm_shapes(config) | pooler | dense_shapes("nsp", config.hidden_size, 2)

    def head(self, hidden, mask, labels=None, next_sentence_label=None):
        words = self._word_scores(hidden)
        sentences = self._dense("nsp", self._pool(hidden[:, 0]))
        losses = [cross_entropy(words, labels), cross_entropy(sentences, next_sentence_label)]
        losses = [loss for loss in losses if loss is not None]
        return BertForPreTrainingOutput(
            loss=sum(losses) if losses else None,
            prediction_logits=words,
            seq_relationship_logits=sentences,
        )


class BertGpuForMaskedLM(BertGpuPreTrainedModel):
    def head_shapes(self, config):
        return mlm_shapes(config)

    def head(self, hidden, mask, labels=None):
        logits = self._word_scores(hidden)
        return MaskedLMOutput(loss=cross_entropy(logits, labels), logits=logits)


class BertGpuForSequenceClassification(BertGpuPreTrainedModel):
    """Classes of texts; of pooling="mean", the vector is that of all tokens."""

    def head_shapes(self, config):
        size = config.pooler_size or config.hidden_size
        pooler = dense_shapes("pooler", config.hidden_size, size)
        return pooler | dense_shapes("classifier", size, config.num_labels)

    def head(self, hidden, mask, labels=None):
        vectors = hidden[:, 0]
        if self.config.pooling == "mean":
            share = mask.float() / mask.sum(-1, keepdim=True).clamp(min=1)
            vectors = (hidden.float() * share[:, :, None]).sum(1).to(hidden.dtype)
        logits = self._dense("classifier", self._drop(self._pool(vectors)))
        kind = self.config.problem_type
        if labels is None:
            loss = None
        elif kind == "multi_label_classification":
            loss = functional.binary_cross_entropy_with_logits(logits.float(), labels.float())
        elif kind == "regression" or (kind is None and self.config.num_labels == 1):
            loss = functional.mse_loss(logits.squeeze(-1).float(), labels.float())
        else:
            loss = cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class BertGpuForTokenClassification(BertGpuPreTrainedModel):
    def head_shapes(self, config):
        return dense_shapes("token_classifier", config.hidden_size, config.num_labels)

    def head(self, hidden, mask, labels=None):
        logits = self._dense("token_classifier", self._drop(hidden))
        return TokenClassifierOutput(loss=cross_entropy(logits, labels), logits=logits)


class BertGpuForQuestionAnswering(BertGpuPreTrainedModel):
    def head_shapes(self, config):
        return dense_shapes("span", config.hidden_size, 2)

    def head(self, hidden, mask, start_positions=None, end_positions=None):
        starts, ends = self._dense("span", hidden).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (cross_entropy(starts, start_positions) + cross_entropy(ends, end_positions)) / 2
        return QuestionAnsweringModelOutput(loss=loss, start_logits=starts, end_logits=ends)
