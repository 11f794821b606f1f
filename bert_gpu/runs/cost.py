"""Says what a pretraining has cost beside that of BERT base (Devlin et al. 2018)."""

from collections.abc import Mapping

# 1,000,000 steps of 256 sequences, 90 % of them of 128 tokens and the rest of 512, as in appendix
# A.2. Tokens are positions, padding included; FLOPs are those of model/flops.py, with 20 and 77
# masked words a row and the pairs of next sentence prediction.
BERT_TOKENS = 256 * (900_000 * 128 + 100_000 * 512)
BERT_FLOPS = 2.24705029865472e19
COSTS = ("tokens", "padded_tokens", "model_flops")  # the entries of Progress and of metrics.jsonl


def describe_cost(values: Mapping[str, float]) -> str:
    """Return the cost of a run in words. values: {name in COSTS: number}; FLOPs of 0 are not
    counted. A run that began before costs were counted has none of the names.
    """
    if COSTS[0] not in values:
        return "unknown, because an earlier revision began the run"
    tokens, padded, flops = (values[name] for name in COSTS)
    counted = f"{flops:.3g} FLOPs" if flops else "FLOPs not counted"
    share = f" and {100 * flops / BERT_FLOPS:.3g} % of the FLOPs" if flops else ""
    return (
        f"{padded:,.0f} tokens with padding ({tokens:,.0f} without), {counted}: "
        f"{100 * padded / BERT_TOKENS:.3g} % of the tokens{share} of BERT base's pretraining as "
        "Google did it, 42.6 billion tokens (131 billion if all 256 million sequences had 512)"
    )
