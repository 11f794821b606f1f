"""Needs JAX: writes the custom calls that JAX's cuDNN attention makes for some shapes, as XLA's
text.

    python cudnn_oracle.py > cudnn_calls.json
        made with jax 0.7.0, whose XLA is of the same weeks as TensorFlow 2.20's

Needs no GPU: programs are lowered for CUDA, not compiled. JAX's public function first asks for
cuDNN's version, so this script calls the functions behind it, which decide operands, layouts and
configuration.
"""

import functools
import json
import re
import sys

import jax
import jax.numpy as jnp
import jaxlib._jax
from jax._src.cudnn import fused_attention_stablehlo as cudnn

CASES = [  # mask, type, B batch, S sequence, N heads, D dimensions per head
    ("padding", "bfloat16", 2, 6, 3, 8),
    ("padding", "float16", 3, 5, 2, 64),
    ("bias", "bfloat16", 2, 6, 3, 8),
    ("bias", "float16", 5, 4, 1, 128),
]


def lower(function, *arguments):
    """The custom-call instruction of the lowered function: no names, no metadata."""
    options = jaxlib._jax.HloPrintOptions()
    options.print_metadata, options.print_operand_shape, options.print_operand_names = (
        False,
        True,
        False,
    )
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    lines = lowered.compiler_ir("hlo").get_hlo_module().to_string(options).splitlines()
    (line,) = [line for line in lines if " custom-call(" in line]
    return re.sub(r" ?/\*index=\d+\*/", "", line.split(" = ", 1)[1])


def calls(mask, dtype, batch_size, length, num_heads, size):
    """{"forward": text, "backward": text}."""
    array = jax.ShapeDtypeStruct
    heads, nothing = array((batch_size, length, num_heads, size), dtype), array((0,), dtype)
    bias = array((batch_size, 1, length, length), dtype) if mask == "bias" else nothing
    lengths = array((batch_size,), jnp.int32) if mask == "padding" else nothing
    masks = (bias, lengths, lengths, *[nothing] * 4)  # neither offsets of packed rows nor pages
    settings = dict(
        scale=size**-0.5,
        seed=42,
        dropout_rate=0.0,
        variadic_args=(mask == "bias", False),
        mask_type=cudnn.MaskType.PADDING if mask == "padding" else cudnn.MaskType.NO_MASK,
        layout=cudnn.AttentionLayout.BTNH.value,
        sliding_window_length=None,
    )
    forward = functools.partial(cudnn._dot_product_attention_fwd_impl, **settings, is_training=True)
    backward = functools.partial(cudnn._dot_product_attention_bwd_impl, **settings)
    statistics = array((batch_size, num_heads, length), jnp.float32)
    return {
        "forward": lower(forward, heads, heads, heads, *masks),
        "backward": lower(backward, heads, heads, heads, *masks, statistics, heads, heads),
    }


if __name__ == "__main__":
    json.dump([dict(case=case, **calls(*case)) for case in CASES], sys.stdout, indent=1)
    print()
