"""A second implementation of the encoder and its masked-word loss: float64 NumPy, one sequence at a
time, head by head, from the papers' formulas.

Legend: S tokens of the sequence, H hidden, E embedding width, V vocabulary.
"""

import math

import numpy as np

erf = np.vectorize(math.erf)
FUNCTIONS = {
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.where(x > 0, x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
GATES = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu"}


def normalise(weights, name, x, config):
    eps = config.layer_norm_eps
    if config.norm_type == "rms_norm":
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + eps) * weights[f"{name}/scale"]
    mean, deviation = x.mean(-1, keepdims=True), np.sqrt(x.var(-1, keepdims=True) + eps)
    return (x - mean) / deviation * weights[f"{name}/scale"] + weights[f"{name}/bias"]


def linear(weights, name, x, has_bias):
    return x @ weights[f"{name}/kernel"] + (weights[f"{name}/bias"] if has_bias else 0)


def turned(x, position, base):
    """x (D,) as D / 2 complex numbers, each turned by the position times its frequency."""
    half = len(x) // 2
    pairs = (x[:half] + 1j * x[half:]) * np.exp(1j * position * base ** (-np.arange(half) / half))
    return np.concatenate([pairs.real, pairs.imag])


def row_of(distance, config):
    """Row of the table for the distance of a key from its query (DeBERTa, 3.1; v2's buckets)."""
    span = config.position_buckets or config.max_relative_positions
    middle = config.position_buckets // 2
    if middle and abs(distance) > middle:
        share = math.log(abs(distance) / middle)
        share /= math.log((config.max_relative_positions - 1) / middle)
        distance = math.copysign(middle + math.ceil(share * (middle - 1)), distance)
    return int(min(max(distance + span, 0), 2 * span - 1))


def products_with_distances(weights, name, q, k, config):
    """The two terms of the scores of all heads that depend on distances, one pair at a time: a
    list of (S, S, H) without the sums over the dimensions of a head.
    """
    table = normalise(weights, "embeddings/relative/norm", weights["embeddings/relative"], config)
    queries, keys, _ = np.split(linear(weights, f"{name}/qkv", table, config.use_bias), 3, -1)
    pairs = [[(i, j, row_of(i - j, config)) for j in range(len(k))] for i in range(len(q))]
    terms = {
        "c2p": [[q[i] * keys[row] for i, _, row in line] for line in pairs],
        "p2c": [[k[j] * queries[row] for _, j, row in line] for line in pairs],
    }
    return [np.array(terms[term]) for term in config.pos_att_type.split("|")]


def attend(weights, name, x, config, is_local):
    base = (is_local and config.local_rotary_base) or config.rotary_base
    distances = np.abs(np.arange(len(x)) - np.arange(len(x))[:, None])
    width = config.hidden_size // config.num_attention_heads
    q, k, v = np.split(linear(weights, f"{name}/qkv", x, config.use_bias), 3, -1)
    terms, outputs = [], []
    if config.position_embedding_type == "disentangled":
        terms = products_with_distances(weights, name, q, k, config)
    for head in range(config.num_attention_heads):
        columns = slice(head * width, (head + 1) * width)
        query, key = q[:, columns], k[:, columns]
        if config.position_embedding_type == "rotary":
            query, key = (
                np.stack([turned(row, position, base) for position, row in enumerate(rows)])
                for rows in (query, key)
            )
        scores = query @ key.T + sum(term[:, :, columns].sum(-1) for term in terms)
        scores = np.exp(scores / math.sqrt(width * (1 + len(terms))))
        if is_local:
            scores[distances > config.local_attention // 2] = 0
        outputs.append(scores / scores.sum(-1, keepdims=True) @ v[:, columns])
    return linear(weights, f"{name}/output", np.concatenate(outputs, -1), config.use_bias)


def feed_forward(weights, name, x, config, is_local):
    x = linear(weights, f"{name}/in", x, config.use_bias)
    if config.hidden_act in GATES:
        half = config.intermediate_size // 2
        x = x[:, :half] * FUNCTIONS[GATES[config.hidden_act]](x[:, half:])
    else:
        x = FUNCTIONS[config.hidden_act](x)
    return linear(weights, f"{name}/output", x, config.use_bias)


def encode(weights, ids, segments, config):
    """Hidden states of one sequence: (S,), (S,) -> (S, H)."""
    x = weights["embeddings/word"][ids]
    if config.type_vocab_size:
        x = x + weights["embeddings/segment"][segments]
    if config.position_embedding_type == "absolute":
        x = x + weights["embeddings/position"][: len(ids)]
    if config.position_embedding_type == "scaled_sinusoidal":
        for position in range(len(ids)):
            angles = position / 10000.0 ** (2 * (np.arange(x.shape[1]) // 2) / x.shape[1])
            waves = np.where(np.arange(x.shape[1]) % 2, np.cos(angles), np.sin(angles))
            x[position] = x[position] + weights["embeddings/position_scale"] * waves
    if config.embedding_norm:
        x = normalise(weights, "embeddings/norm", x, config)
    if config.embedding_size not in (None, config.hidden_size):
        x = linear(weights, "embeddings/projection", x, config.use_bias)
    for index in range(config.num_hidden_layers):
        group = index // (
            config.num_hidden_layers // (config.num_hidden_groups or config.num_hidden_layers)
        )
        is_local = config.local_attention is not None and index % config.global_attention_every > 0
        for part, block in (("attention", attend), ("feed_forward", feed_forward)):
            name = f"layer_{group}/{part}"
            if config.norm_first:
                x = x + block(
                    weights, name, normalise(weights, f"{name}/norm", x, config), config, is_local
                )
            else:
                change = block(weights, name, x, config, is_local)
                x = normalise(weights, f"{name}/norm", x + change, config)
    return normalise(weights, "final_norm", x, config) if config.norm_first else x


def mlm_scores(weights, hidden, config):
    """(S, H) -> (S, V)."""
    if config.mlm_transform:
        act = FUNCTIONS[GATES.get(config.hidden_act, config.hidden_act)]
        hidden = normalise(
            weights,
            "mlm/norm",
            act(linear(weights, "mlm/transform", hidden, config.use_bias)),
            config,
        )
    return hidden @ weights["embeddings/word"].T + (
        weights["mlm/bias"] if config.decoder_bias else 0
    )


def mlm_loss(weights, batch, config):
    """Summed cross-entropy of a batch without padded predictions: a float."""
    total = 0.0
    for row, length in enumerate(np.sum(batch["input_mask"], -1)):
        hidden = encode(
            weights, batch["input_ids"][row, :length], batch["segment_ids"][row, :length], config
        )
        scores = mlm_scores(weights, hidden[batch["masked_lm_positions"][row]], config)
        right = scores[np.arange(len(scores)), batch["masked_lm_ids"][row]]
        total += np.sum(np.log(np.exp(scores).sum(-1)) - right)
    return total
