"""Self-attention by cuDNN's fused kernels, forward and backward, which never write the (S, S)
scores to memory.

XLA runs them as custom calls (__cudnn$fmhaSoftmax and relatives), for which TensorFlow has no op.
XlaCallModule takes a StableHLO program as text, so this module writes each call with the target,
operands, layouts and configuration of jax/_src/cudnn/fused_attention_stablehlo.py in JAX 0.7.0
(Apache-2.0), whose XLA is that of TensorFlow 2.20; a test compares the lowered programs with JAX's.
The kernels mask padded rows by their lengths, and packed rows by a bias, which works on every GPU
from compute capability 8.0 (cuDNN's own packed layout needs 9.0, and statistics for the largest
possible number of sequences in a row). There is no dropout: cuDNN draws from a seed in the
program's text and a counter in the process, so neither a resumed run nor one on another number of
GPUs would repeat the masks.

Legend: B batch, S sequence, N heads, D dimensions per head.
"""

import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

# The compute capability from which --attention=auto chooses these kernels: that of the GPU on which
# they were compared with plain attention (dev/gpu.md).
MEASURED = (9, 0)
ELEMENT_TYPES = {
    tf.bfloat16: "bf16",
    tf.float16: "f16",
    tf.float32: "f32",
    tf.int32: "i32",
    tf.uint8: "ui8",
}
# Values that JAX adds to masked scores. With lower values cuDNN computes wrong results, because it
# subtracts two values near the end of the dtype's range.
BLOCKED = {tf.bfloat16: float(-2 << 40), tf.float16: float(-2 << 14)}
STATUS_RETURNING = 2  # the api_version of custom calls that XLA itself defines


class Mask(typing.NamedTuple):
    """The attention mask of a batch. For padded rows `lengths` and `is_token` are set, for packed
    rows `bias`; the other fields are None.

    lengths: int32 (B,), tokens of each row, at least 1. is_token: bool (B, S), False for padding.
    bias: (B, 1, S, S) of the compute dtype, added to the scores.
    """

    lengths: tf.Tensor | None = None
    is_token: tf.Tensor | None = None
    bias: tf.Tensor | None = None


def make_mask(batch: Mapping[str, tf.Tensor], dtype: tf.DType) -> Mask:
    """Return the Mask of a batch, from "sequence_ids" (packed.py) if the batch has them, else from
    "input_mask" (B, S), in which padding follows the tokens, as in all of BERT's data. dtype:
    compute dtype.
    """
    # In packed rows padding (id 0) counts as one more sequence, so that no row of scores is fully
    # masked.
    if "sequence_ids" in batch:
        ids = batch["sequence_ids"]
        is_other = ids[:, None, :, None] != ids[:, None, None, :]
        return Mask(
            bias=tf.where(is_other, tf.constant(BLOCKED[dtype], dtype), tf.constant(0, dtype))
        )
    is_token = batch["input_mask"] > 0
    return Mask(
        lengths=tf.maximum(tf.reduce_sum(tf.cast(is_token, tf.int32), -1), 1), is_token=is_token
    )


def attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, mask: Mask) -> tf.Tensor:
    """Return scaled dot-product attention (Vaswani et al. 2017, 3.2.1), with softmax in float32
    inside the kernel.

    Args:
      q, k, v: (B, S, N, D) of bfloat16 or float16, all sizes known. The call must be inside a
        function that XLA compiles for a GPU; `obstacle` names all conditions.
      mask: from `make_mask`; it gets no gradient.

    Returns:
      (B, S, N, D). At padding the result is 0, whatever cuDNN computes there, and no gradient flows
        through it: cuDNN does not read the upstream gradient there (dev/gpu.md).
    """
    if not q.shape.is_fully_defined():
        raise ValueError(
            "cuDNN attention: the program's text contains all sizes, "
            f"and those of {q.shape} are not all known"
        )
    batch_size, length, num_heads, size = q.shape
    heads = tf.TensorSpec(q.shape, q.dtype)
    statistics = tf.TensorSpec([batch_size, num_heads, length], tf.float32)
    bias = [] if mask.bias is None else [mask.bias]
    # cuDNN takes the lengths of the queries and of the keys, which are equal here
    lengths = [] if mask.lengths is None else [mask.lengths, mask.lengths]
    target = "__cudnn$fmhaScaleBiasSoftmax" if bias else "__cudnn$fmhaSoftmax"
    mask_type = "PADDING" if lengths else "NO_MASK"

    def tokens_only(x: tf.Tensor) -> tf.Tensor:
        if mask.is_token is None:
            return x
        return tf.where(mask.is_token[:, :, None, None], x, tf.zeros([], x.dtype))

    @tf.custom_gradient
    def attend(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        config = backend_config(q, mask_type, is_backward=False)
        mixed, log_sums = fused_call(
            target, [q, k, v, *bias, *lengths], [heads, statistics], config
        )
        mixed = tokens_only(mixed)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            operands = [q, k, v, log_sums, upstream, *bias, mixed, *lengths]
            config = backend_config(q, mask_type, is_backward=True)
            return [
                tokens_only(x)
                for x in fused_call(f"{target}Backward", operands, [heads] * 3, config)
            ]

        return mixed, gradient

    return attend(q, k, v)


def backend_config(q: tf.Tensor, mask_type: str, is_backward: bool) -> str:
    """Return the configuration of one custom call, as JSON, which XLA's GPU compiler passes to
    cuDNN.

    q: queries, (B, S, N, D). mask_type: NO_MASK or PADDING.
    """
    batch_size, length, num_heads, size = q.shape
    layout = {
        "dim_level_types": [],
        "dim_unique": [],
        "dim_ordered": [],
        "minor_to_major": ["3", "2", "1", "0"],
        "tiles": [],
        "element_size_in_bits": "0",
        "memory_space": "0",
        "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
        "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID",
        "dynamic_shape_metadata_prefix_bytes": "0",
    }
    scores = {
        "element_type": ELEMENT_TYPES[q.dtype].upper(),
        "dimensions": [str(batch_size), str(num_heads), str(length), str(length)],
        "tuple_shapes": [],
        "layout": layout,
        "is_dynamic_dimension": [False] * 4,
    }
    # {matrix product: (contracted axis of the left operand, of the right one, batch axes of the
    # left operand, of the right one)}, with q, k, v and the output o (B, S, N, D), scores S and
    # probabilities p (B, N, S, S), and their gradients dq, dk, ...
    if is_backward:
        products = {
            "bmm1_grad_gemm1": (2, 1, [0, 1], [0, 2]),  # dS, q -> dk
            "bmm1_grad_gemm2": (3, 1, [0, 1], [0, 2]),  # dS, k -> dq
            "bmm2_grad_gemm1": (2, 1, [0, 1], [0, 2]),  # p, do -> dv
            "bmm2_grad_gemm2": (3, 3, [0, 2], [0, 2]),  # do, v -> dp
        }
    else:
        # q, k -> S and p, v -> o
        products = {"bmm1": (3, 3, [0, 2], [0, 2]), "bmm2": (3, 1, [0, 1], [0, 2])}
    dimensions = {
        f"{name}_dot_dimension_numbers": {
            "lhs_contracting_dimensions": [str(left)],
            "rhs_contracting_dimensions": [str(right)],
            "lhs_batch_dimensions": [str(axis) for axis in left_batch],
            "rhs_batch_dimensions": [str(axis) for axis in right_batch],
        }
        for name, (left, right, left_batch, right_batch) in products.items()
    }
    algorithm = {
        "algo_id": "0",
        "math_type": "TENSOR_OP_MATH",
        "tuning_knobs": {"17": "1", "24": "0"},
        "is_cudnn_frontend": True,
        "workspace_size": "0",
    }
    fused = {
        "algorithm": algorithm,
        "fmha_scale": size**-0.5,
        "intermediate_tensor_shape": scores,
        "is_flash_attention": True,
        "mask_type": mask_type,
        **dimensions,
        "dropout_rate": 0.0,
        "seed": 42,  # not used without dropout; JAX's value
        "sliding_window_length": 0,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }
    return json.dumps(
        {
            "operation_queue_id": "0",
            "wait_on_operation_queues": [],
            "cudnn_fmha_backend_config": fused,
        }
    )


def fused_call(
    target: str, operands: Sequence[tf.Tensor], results: Sequence[tf.TensorSpec], config: str
) -> list[tf.Tensor]:
    """Run XLA's custom call `target` and return its results, of the shapes and dtypes in `results`,
    without gradients. config: from `backend_config`.
    """
    return gen_xla_ops.xla_call_module(
        operands,
        version=9,
        module=program(target, operands, results, config),
        Sout=[spec.shape for spec in results],
        Tout=[spec.dtype for spec in results],
        platforms=["CUDA"],
        disabled_checks=["platform"],  # so that the program can be inspected without a GPU
    )


def program(
    target: str, operands: Sequence[tf.Tensor], results: Sequence[tf.TensorSpec], config: str
) -> str:
    """Return a StableHLO program, as text, that runs one custom call; arguments as for
    `fused_call`.

    cuDNN's results of rank 4 have the shape (B, N, S, D) but lie in memory as (B, S, N, D), so that
    the transposition to (B, S, N, D) costs nothing. The call's last result is cuDNN's workspace,
    whose size XLA fills in.
    """
    arguments = [f"%arg{index}" for index in range(len(operands))]
    operand_types = [_type(x.shape, x.dtype) for x in operands]
    shapes = [
        [spec.shape[axis] for axis in (0, 2, 1, 3)] if spec.shape.rank == 4 else spec.shape
        for spec in results
    ]
    call_types = [_type(shape, spec.dtype) for shape, spec in zip(shapes, results, strict=True)] + [
        _type([0], tf.uint8)
    ]
    call_layouts = [
        _layout([3, 1, 2, 0] if len(shape) == 4 else range(len(shape))[::-1]) for shape in shapes
    ] + [_layout([0])]
    operand_layouts = [_layout(range(x.shape.rank)[::-1]) for x in operands]
    result_types = [_type(spec.shape, spec.dtype) for spec in results]
    lines = []
    values = []
    for index, (spec, call_type, result_type) in enumerate(
        zip(results, call_types, result_types, strict=False)
    ):
        values.append(f"%call#{index}" if spec.shape.rank != 4 else f"%result{index}")
        if spec.shape.rank == 4:
            lines.append(
                f"{values[-1]} = stablehlo.transpose %call#{index}, "
                f"dims = [0, 2, 1, 3] : ({call_type}) -> {result_type}"
            )
    signature = ", ".join(
        f"{name}: {kind}" for name, kind in zip(arguments, operand_types, strict=True)
    )
    escaped = config.replace("\\", "\\\\").replace('"', '\\"')
    body = "\n    ".join(lines)
    return f"""module @attention {{
  func.func public @main({signature}) -> ({", ".join(result_types)}) {{
    %call:{len(call_types)} = stablehlo.custom_call @{target}({", ".join(arguments)}) {{
      api_version = {STATUS_RETURNING} : i32,
      backend_config = "{escaped}",
      operand_layouts = [{", ".join(operand_layouts)}],
      result_layouts = [{", ".join(call_layouts)}]
    }} : ({", ".join(operand_types)}) -> ({", ".join(call_types)})
    {body}
    return {", ".join(values)} : {", ".join(result_types)}
  }}
}}
"""


def _type(shape: Iterable[int], dtype: tf.DType) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{ELEMENT_TYPES[dtype]}>"


def _layout(minor_to_major: Iterable[int]) -> str:
    order = list(minor_to_major)
    return f"dense<{order if len(order) > 1 else order[0]}> : tensor<{len(order)}xindex>"


def obstacle(
    *,
    kind: str,
    xla: bool,
    precision: str,
    capability: tuple[int, int],
    size: int,
    dropout: float,
    is_packed: bool = False,
    length: int | None = None,
) -> str | None:
    """Return the reason why a model cannot train with cuDNN's attention, worded as the end of a
    sentence for the user; None when it can.

    Args:
      kind: "GPU" or "CPU". xla: whether XLA compiles the step. precision: name of the compute type.
      capability: compute capability of the oldest GPU, such as (8, 6). size: D, the dimensions per
        head.
      dropout: dropout rate of attention probabilities.
      is_packed: whether rows hold several sequences. length: tokens of a row; None = any number.
    """
    if kind != "GPU":
        return "needs a GPU"
    if capability < (8, 0):
        return (
            "needs GPUs of compute capability 8.0 or more, "
            f"but one has {capability[0]}.{capability[1]}"
        )
    if not xla:
        return "needs XLA; drop --xla=off"
    if precision not in ("bfloat16", "float16"):
        return f"computes in bfloat16 or float16, not in {precision}; drop --precision={precision}"
    if size % 8 or size > 128:
        return f"needs heads of 8, 16, ... or 128 dimensions, but this model's have {size}"
    if dropout:
        return (
            "has no dropout of attention probabilities, and attention_probs_dropout_prob "
            f"is {dropout:g}; give --attention_probs_dropout_prob=0"
        )
    if is_packed and length is not None and length % 2:
        return f"needs packed rows of an even number of tokens, but these have {length}"
    return None
