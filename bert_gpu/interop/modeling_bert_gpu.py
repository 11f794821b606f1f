"""BERT with bert-gpu's options, for Hugging Face's transformers: pre-LN, RMSNorm, gates, rotary or
sinusoidal positions, disentangled attention, local attention, no biases, factorised embeddings,
layers that share weights.

This file is copied beside a model's weights, where config.json names it; it needs only torch and
transformers 5. The Auto classes, such as AutoModel, open the folder with trust_remote_code=True.

All weights are parameters of one module, under their names in the weights file; kernels are (in,
out). Legend: B batch, S sequence, H hidden, N heads, D per head, E embedding width, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any

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
from transformers.utils import ModelOutput

if int(transformers.__version__.partition(".")[0]) < 5:
    raise ImportError(f"needs transformers 5, not {transformers.__version__}: upgrade it with pip")

GATES = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu"}
ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


# the fields of a config.json whose defaults give BERT
DEFAULTS = dict(
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
    rotary_base=10000.0,
    local_attention=None,
    global_attention_every=3,
    local_rotary_base=None,
    use_bias=True,
    embedding_size=None,
    num_hidden_groups=None,
    mlm_transform=True,
    decoder_bias=True,
    pooling="first",
    pooler_size=None,
    encoder=None,
    first_position=0,
    pooler_act="tanh",
    position_buckets=256,
    max_relative_positions=512,
    pos_att_type="c2p|p2c",
    pad_token_id=0,
)


class BertGpuConfig(PretrainedConfig):
    """Configuration of a bert-gpu model; the defaults give BERT."""

    model_type = "bert_gpu"

    def __init__(self, **values: Any) -> None:
        values = DEFAULTS | values
        if values["encoder"] is not None:
            raise ValueError(f"encoder={values['encoder']}: is not one that this file computes")
        super().__init__(**values)


def dense_shapes(
    name: str, num_inputs: int, num_outputs: int, use_bias: bool = True
) -> dict[str, tuple[int, ...]]:
    bias = {f"{name}/bias": (num_outputs,)} if use_bias else {}
    return {f"{name}/kernel": (num_inputs, num_outputs), **bias}


def norm_shapes(config: BertGpuConfig, name: str, size: int) -> dict[str, tuple[int, ...]]:
    bias = {} if config.norm_type == "rms_norm" else {f"{name}/bias": (size,)}
    return {f"{name}/scale": (size,), **bias}


def encoder_shapes(config: BertGpuConfig) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of the encoder's weights: embeddings, layers and final norm."""
    hidden = config.hidden_size
    width = config.embedding_size or config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embeddings/word": (config.vocab_size, width)}
    if config.position_embedding_type == "absolute":
        shapes["embeddings/position"] = (config.max_position_embeddings, width)
    if config.position_embedding_type == "scaled_sinusoidal":
        shapes["embeddings/position_scale"] = (1,)
    if config.position_embedding_type == "disentangled":
        num_rows = 2 * (config.position_buckets or config.max_relative_positions)
        shapes["embeddings/relative"] = (num_rows, hidden)
        shapes |= norm_shapes(config, "embeddings/relative/norm", hidden)
    if config.type_vocab_size:
        shapes["embeddings/segment"] = (config.type_vocab_size, width)
    if config.embedding_norm:
        shapes |= norm_shapes(config, "embeddings/norm", width)
    if width != hidden:
        shapes |= dense_shapes("embeddings/projection", width, hidden, config.use_bias)
    inner = config.intermediate_size
    outer = inner // 2 if config.hidden_act in GATES else inner
    for group in range(config.num_hidden_groups or config.num_hidden_layers):
        attention = f"layer_{group}/attention"
        feed_forward = f"layer_{group}/feed_forward"
        shapes |= dense_shapes(f"{attention}/qkv", hidden, 3 * hidden, config.use_bias)
        shapes |= dense_shapes(f"{attention}/output", hidden, hidden, config.use_bias)
        shapes |= norm_shapes(config, f"{attention}/norm", hidden)
        shapes |= dense_shapes(f"{feed_forward}/in", hidden, inner, config.use_bias)
        shapes |= dense_shapes(f"{feed_forward}/output", outer, hidden, config.use_bias)
        shapes |= norm_shapes(config, f"{feed_forward}/norm", hidden)
    return shapes | (norm_shapes(config, "final_norm", hidden) if config.norm_first else {})


def head_shapes(config: BertGpuConfig, heads: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of the weights of heads. The pooler has another size than the hidden
    states only in a classifier of texts.
    """
    hidden = config.hidden_size
    width = config.embedding_size or hidden
    pooled = (config.pooler_size or hidden) if "classifier" in heads else hidden
    shapes: dict[str, tuple[int, ...]] = {}
    if "mlm" in heads and config.mlm_transform:
        shapes |= dense_shapes("mlm/transform", hidden, width, config.use_bias)
        shapes |= norm_shapes(config, "mlm/norm", width)
    if "mlm" in heads and config.decoder_bias:
        shapes["mlm/bias"] = (config.vocab_size,)
    layers = dict(
        pooler=(hidden, pooled),
        nsp=(hidden, 2),
        classifier=(pooled, config.num_labels),
        token_classifier=(hidden, config.num_labels),
        span=(hidden, 2),
    )
    for name, sizes in layers.items():
        if name in heads:
            shapes |= dense_shapes(name, *sizes)
    return shapes


def activate(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return the activation called `name` of x. For a gate, such as geglu, return the first half of
    x's last axis times the activation of the second half.
    """
    if name in GATES:
        values, gates = x.chunk(2, -1)
        return values * ACTIVATIONS[GATES[name]](gates)
    return ACTIVATIONS[name](x)


def angles(
    num_positions: int, size: int, device: torch.device, base: float = 10000.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (sines, cosines) of position / base^(2 i / size), for the column i: float32
    (num_positions, size / 2) each.
    """
    positions = torch.arange(num_positions, dtype=torch.float64, device=device)
    steps = torch.arange(0, size, 2, dtype=torch.float64, device=device)
    turns = positions[:, None] / base ** (steps / size)
    return turns.sin().float(), turns.cos().float()


def rotate(x: torch.Tensor, sines: torch.Tensor, cosines: torch.Tensor) -> torch.Tensor:
    """Return x, (B, N, S, D), with each pair of dimensions i and i + D / 2 rotated by the angle
    that belongs to the position and to i.
    """
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


def rows_of_distances(length: int, config: BertGpuConfig, device: torch.device) -> torch.Tensor:
    """Return the row of the table of distances for each query and key: int64 (S, S). Distances
    beyond half of the buckets share rows on a logarithmic scale.
    """
    places = torch.arange(length, device=device)
    distances = places[:, None] - places
    middle = config.position_buckets // 2
    if middle:
        far = distances.abs().clamp(min=middle) / middle
        end = torch.tensor((config.max_relative_positions - 1) / middle, device=device)
        steps = torch.ceil(far.log() / end.log() * (middle - 1)) + middle
        is_near = distances.abs() <= middle
        distances = torch.where(is_near, distances, steps * distances.sign()).long()
    span = config.position_buckets or config.max_relative_positions
    return (distances + span).clamp(0, 2 * span - 1)


class BertGpuPreTrainedModel(PreTrainedModel):
    """Base class of all models: the encoder, and the parameters of the heads that a subclass
    names.
    """

    config_class = BertGpuConfig
    base_model_prefix = ""
    heads: tuple[str, ...] = ()
    _supports_sdpa = True
    # a weights file may contain heads that the class which opens it does not have
    _keys_to_ignore_on_load_unexpected = [r"^(mlm|nsp|pooler|classifier|token_classifier|span)/"]

    def __init__(self, config: BertGpuConfig) -> None:
        super().__init__(config)
        for name, shape in (encoder_shapes(config) | head_shapes(config, self.heads)).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Set the initial values of the parameters that no file gave."""
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

    def _dense(self, name: str, x: torch.Tensor) -> torch.Tensor:
        bias = getattr(self, f"{name}/bias", None)
        x = x @ getattr(self, f"{name}/kernel")
        return x if bias is None else x + bias

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        scale = getattr(self, f"{name}/scale")
        if self.config.norm_type == "layer_norm":
            bias = getattr(self, f"{name}/bias")
            return functional.layer_norm(x, x.shape[-1:], scale, bias, self.config.layer_norm_eps)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.layer_norm_eps)
        return (wide * scale.float()).to(x.dtype)

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, self.config.hidden_dropout_prob, self.training)

    def _embed(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> torch.Tensor:
        config = self.config
        if inputs_embeds is None:
            inputs_embeds = functional.embedding(input_ids, getattr(self, "embeddings/word"))
        x = inputs_embeds
        batch_size, length = x.shape[:2]
        if config.type_vocab_size:
            if token_type_ids is None or config.type_vocab_size == 1:
                token_type_ids = x.new_zeros((batch_size, length), dtype=torch.long)
            x = x + functional.embedding(token_type_ids, getattr(self, "embeddings/segment"))
        if config.position_embedding_type == "absolute":
            x = x + getattr(self, "embeddings/position")[config.first_position :][:length]
        if config.position_embedding_type == "scaled_sinusoidal":
            # sines in even columns, cosines in odd ones
            turns = torch.stack(angles(length, x.shape[-1], x.device), -1).flatten(1)
            x = x + (turns * getattr(self, "embeddings/position_scale").float()).to(x.dtype)
        if config.embedding_norm:
            x = self._norm("embeddings/norm", x)
        x = self._drop(x)
        has_projection = hasattr(self, "embeddings/projection/kernel")
        return self._dense("embeddings/projection", x) if has_projection else x

    def _attend(
        self,
        name: str,
        x: torch.Tensor,
        kind: tuple[torch.Tensor, list[torch.Tensor] | None],
        attentions: list[torch.Tensor] | None,
    ) -> torch.Tensor:
        """Return the output of self-attention for x, (B, S, H). kind: the mask, added to the
        scores, and [sines, cosines] of rotary positions, or None. attentions: list to which the
        attention weights (B, N, S, S) are appended, or None.
        """
        config = self.config
        mask, turns = kind
        batch_size, length, hidden = x.shape
        heads = (batch_size, length, 3, config.num_attention_heads, -1)
        q, k, v = self._dense(f"{name}/qkv", x).reshape(heads).permute(2, 0, 3, 1, 4)
        if turns is not None:
            q, k = (rotate(part, *turns) for part in (q, k))  # (B, N, S, D)
        scale = q.shape[-1] ** -0.5
        if config.position_embedding_type == "disentangled":
            terms = self._distance_terms(name, q, k)
            scale = (q.shape[-1] * (1 + len(terms))) ** -0.5
            mask = mask + sum(terms) * scale
        rate = config.attention_probs_dropout_prob if self.training else 0.0
        if attentions is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, mask, rate, scale=scale)
        else:
            scores = q @ k.transpose(-1, -2) * scale + mask
            attentions.append(torch.softmax(scores.float(), -1).to(q.dtype))
            mixed = functional.dropout(attentions[-1], rate) @ v
        mixed = mixed.transpose(1, 2).reshape(batch_size, length, hidden)
        return self._dense(f"{name}/output", mixed)

    def _distance_terms(self, name: str, q: torch.Tensor, k: torch.Tensor) -> list[torch.Tensor]:
        """Return the terms of disentangled attention's scores that depend on distances, (B, N, S,
        S) each: products of queries and keys, (B, N, S, D), with the rows of the table.
        """
        table = self._norm("embeddings/relative/norm", getattr(self, "embeddings/relative"))
        rows = self._dense(f"{name}/qkv", self._drop(table))
        shape = (len(table), 3, self.config.num_attention_heads, -1)
        queries, keys, _ = rows.reshape(shape).permute(1, 2, 3, 0)  # (N, D, rows)
        places = rows_of_distances(q.shape[2], self.config, q.device).expand(*q.shape[:2], -1, -1)
        return [
            (q @ keys).gather(-1, places)
            if term == "c2p"
            else (k @ queries).gather(-1, places.mT).mT
            for term in self.config.pos_att_type.split("|")
        ]

    def _feed_forward(self, name: str, x: torch.Tensor) -> torch.Tensor:
        inner = activate(self.config.hidden_act, self._dense(f"{name}/in", x))
        return self._dense(f"{name}/output", inner)

    def _add(self, name: str, x: torch.Tensor, block: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Return x plus the output of a block (attention or feed-forward). With norm_first, the
        block's input is normalised, otherwise the sum.
        """
        if self.config.norm_first:
            return x + self._drop(block(self._norm(f"{name}/norm", x)))
        return self._norm(f"{name}/norm", x + self._drop(block(x)))

    def encode(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        attends: bool = False,
        keeps: bool = False,
    ) -> tuple[
        torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...] | None, tuple[torch.Tensor, ...] | None
    ]:
        """Return (hidden states (B, S, H), mask (B, S), hidden states of all layers, attention
        weights of all layers). The last is None unless `attends`, the one before it None unless
        `keeps`.
        """
        config = self.config
        x = self._embed(input_ids, token_type_ids, inputs_embeds)
        length = x.shape[1]
        num_positions = config.max_position_embeddings - config.first_position
        if length > num_positions:
            raise ValueError(f"a row of {length} tokens; the model has {num_positions} positions")
        if attention_mask is None:
            attention_mask = x.new_ones(x.shape[:2])
        lowest = torch.finfo(x.dtype).min
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * lowest
        local_mask = mask
        if config.local_attention is not None:
            places = torch.arange(length, device=x.device)
            is_far = (places - places[:, None]).abs() > config.local_attention // 2
            local_mask = torch.where(is_far, lowest, mask)
        turns = local_turns = None
        if config.position_embedding_type == "rotary":
            size = config.hidden_size // config.num_attention_heads
            turns, local_turns = (
                [part.to(x.dtype) for part in angles(length, size, x.device, base)]
                for base in (config.rotary_base, config.local_rotary_base or config.rotary_base)
            )
        layers: list[torch.Tensor] | None = [x] if keeps else None
        attentions: list[torch.Tensor] | None = [] if attends else None
        num_groups = config.num_hidden_groups or config.num_hidden_layers
        for index in range(config.num_hidden_layers):
            group = f"layer_{index * num_groups // config.num_hidden_layers}"
            name = f"{group}/attention"
            is_local = (
                config.local_attention is not None and index % config.global_attention_every > 0
            )
            kind = (local_mask, local_turns) if is_local else (mask, turns)
            attend = functools.partial(self._attend, name, kind=kind, attentions=attentions)
            x = self._add(name, x, attend)
            name = f"{group}/feed_forward"
            x = self._add(name, x, lambda x, name=name: self._feed_forward(name, x))
            if layers is not None:
                layers.append(x)
        if config.norm_first:
            x = self._norm("final_norm", x)
        return (
            x,
            attention_mask,
            None if layers is None else tuple(layers),
            None if attentions is None else tuple(attentions),
        )

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **labels: torch.Tensor | None,
    ) -> ModelOutput | tuple[torch.Tensor, ...]:
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        hidden, mask, layers, attentions = self.encode(
            input_ids,
            attention_mask,
            token_type_ids,
            inputs_embeds,
            attends=bool(output_attentions),
            keeps=bool(output_hidden_states),
        )
        outputs = self.head(hidden, mask, **labels)
        outputs["hidden_states"] = layers
        outputs["attentions"] = attentions
        return outputs if return_dict in (None, True) else outputs.to_tuple()

    def _pool(self, vectors: torch.Tensor, activation: str = "tanh") -> torch.Tensor:
        return getattr(functional, activation)(self._dense("pooler", vectors))

    def _word_scores(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.config.mlm_transform:
            act = GATES.get(self.config.hidden_act, self.config.hidden_act)
            hidden = ACTIVATIONS[act](self._dense("mlm/transform", hidden))
            hidden = self._norm("mlm/norm", hidden)
        scores = hidden @ getattr(self, "embeddings/word").T
        return scores + getattr(self, "mlm/bias") if self.config.decoder_bias else scores


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor | None:
    """Return the mean cross-entropy over the labels that are not -100; None without labels."""
    if labels is None:
        return None
    return functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


class BertGpuModel(BertGpuPreTrainedModel):
    """The encoder without the head of a task; pooler_output is computed from the first token, as
    for next-sentence prediction.
    """

    heads = ("pooler",)

    def head(self, hidden: torch.Tensor, mask: torch.Tensor) -> ModelOutput:
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden, pooler_output=self._pool(hidden[:, 0])
        )


class BertGpuForPreTraining(BertGpuPreTrainedModel):
    heads = ("mlm", "pooler", "nsp")

    def head(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
    ) -> ModelOutput:
        words = self._word_scores(hidden)
        sentences = self._dense("nsp", self._pool(hidden[:, 0]))
        both = (cross_entropy(words, labels), cross_entropy(sentences, next_sentence_label))
        losses = [loss for loss in both if loss is not None]
        return BertForPreTrainingOutput(
            loss=sum(losses) if losses else None,
            prediction_logits=words,
            seq_relationship_logits=sentences,
        )


class BertGpuForMaskedLM(BertGpuPreTrainedModel):
    heads = ("mlm",)

    def head(
        self, hidden: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> ModelOutput:
        logits = self._word_scores(hidden)
        return MaskedLMOutput(loss=cross_entropy(logits, labels), logits=logits)


class BertGpuForSequenceClassification(BertGpuPreTrainedModel):
    """A classifier of texts. Its pooler takes the hidden state of the first token or, with
    pooling="mean", the mean over all tokens of the text.
    """

    heads = ("pooler", "classifier")

    def head(
        self, hidden: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> ModelOutput:
        vectors = hidden[:, 0]
        if self.config.pooling == "mean":
            share = mask.float() / mask.sum(-1, keepdim=True).clamp(min=1)
            vectors = (hidden.float() * share[:, :, None]).sum(1).to(hidden.dtype)
        vectors = self._pool(vectors, self.config.pooler_act)
        logits = self._dense("classifier", self._drop(vectors))
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
    heads = ("token_classifier",)

    def head(
        self, hidden: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> ModelOutput:
        logits = self._dense("token_classifier", self._drop(hidden))
        return TokenClassifierOutput(loss=cross_entropy(logits, labels), logits=logits)


class BertGpuForQuestionAnswering(BertGpuPreTrainedModel):
    heads = ("span",)

    def head(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
    ) -> ModelOutput:
        starts, ends = self._dense("span", hidden).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            losses = (cross_entropy(starts, start_positions), cross_entropy(ends, end_positions))
            loss = (losses[0] + losses[1]) / 2  # type: ignore[operator]
        return QuestionAnsweringModelOutput(loss=loss, start_logits=starts, end_logits=ends)
