"""How much arithmetic a training step takes, and which share of the hardware's rate that is.

FLOPs are counted as PaLM does it (Chowdhery et al. 2022, appendix B; Kaplan et al. 2020, 2.1, with the attention products added): products
of matrices alone, two for each multiply-add, and a backward pass of twice the forward one. Lookups (also those that are done as
products), normalisation, softmax, dropout and the optimizer count nothing, and the masked-word head counts at the P places where it is
computed, not at all S.

Per row of S tokens, forward, in multiply-adds, with H hidden, E embedding width, I and I' the widths of the feed-forward block before and
behind its activation (I' = I / 2 for gated ones), V vocabulary, L layers, T tokens that a token attends to, K sentence vectors:

    S E H                                    embeddings made wider, where E < H
    L S (4 H^2 + 2 T H + H I + I' H)         attention: q, k, v and output; scores and mixing; feed-forward
    P (H E + E V)                            masked words: transform (where there is one) and scores
    K (H^2 + 2 H)                            pooler and next-sentence head (where there is one)

Model FLOPs are what the mathematics asks for; hardware FLOPs are what is computed: layers run forward once more where activations are
recomputed (all of it, though a compiler may find a product of theirs that nobody reads), and packed rows are multiplied over all their S^2
pairs, of which T S are within a sequence. Padding is computed, so it counts in both; what real tokens get of it is said apart.
"""

import dataclasses
import re
import time

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Flops:
    """Floating-point operations of forward and backward passes: `model` needed, `hardware` computed."""

    model: float
    hardware: float


@dataclasses.dataclass(frozen=True)
class FlopsCounter:
    """Counts the FLOPs of pretraining.

    config: ModelConfig. next_sentence: whether there is a pooler with a head of two classes. recompute_every: as in `encoder.encode`.
    """

    config: object
    next_sentence: bool
    recompute_every: int = 0

    def per_row(self, length, num_predictions, *, attended=None, num_sequences=1):
        """Flops of one row.

        Args:
          length: S. num_predictions: P.
          attended: T, the mean over the places of a row of how many tokens they attend to; None = S, rows of one sequence.
          num_sequences: K, sentence vectors of a row.
        """
        config = self.config
        hidden, width = config.hidden_size, config.embedding_width
        layers, computed_layers = (
            config.num_hidden_layers
            * length
            * (4 * hidden**2 + 2 * tokens * hidden + hidden * config.intermediate_size + config.inner_size * hidden)
            for tokens in (length if attended is None else attended, length)
        )
        others = num_predictions * (width * config.vocab_size + (hidden * width if config.mlm_transform else 0))
        if width != hidden:
            others += length * width * hidden
        if self.next_sentence:
            others += num_sequences * (hidden**2 + 2 * hidden)
        again = computed_layers if self.recompute_every else 0
        return Flops(model=6.0 * (layers + others), hardware=6.0 * (computed_layers + others) + 2.0 * again)

    def per_batch(self, batch):
        """Flops of a batch of arrays (or tensors) in Google's features, with or without "sequence_ids" for packed rows."""
        num_rows, length = np.shape(batch["input_mask"])
        attended, num_sequences = None, 1
        if "sequence_ids" in batch:
            attended, num_sequences = packed_means(np.asarray(batch["sequence_ids"]))
        row = self.per_row(length, np.shape(batch["masked_lm_positions"])[1], attended=attended, num_sequences=num_sequences)
        return Flops(model=num_rows * row.model, hardware=num_rows * row.hardware)


def packed_means(sequence_ids):
    """(mean over all places of how many places their sequence has, mean number of sequences in a row) of packed rows: int (B, S).

    Padding (0) counts as one sequence for the first: attention computes it too.
    """
    starts = np.ones_like(sequence_ids, bool)
    starts[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
    sizes = np.diff(np.append(np.flatnonzero(starts), sequence_ids.size)).astype(np.float64)
    return float(np.sum(sizes**2) / sequence_ids.size), float(np.sum(starts & (sequence_ids > 0)) / len(sequence_ids))


# Highest rates of matrix products in TFLOP/s, without sparsity: (16 bits in, summed in float32; TensorFloat-32; float32 without matrix
# units). 16 bits are float16 and bfloat16 alike, but float16 alone where there is no TensorFloat-32 (Volta, Turing). GeForce cards
# sum in float32 at half the rate of the professional cards with the same chip. Numbers are NVIDIA's at boost clock; data sheets
# print most of them with sparsity, that is, doubled. Two tables of others agree where they have a card: Lightning's
# (lightning/fabric/utilities/throughput.py, which gives a pair of H100 NVL, and GeForce cards without matrix units) and
# huggingface.js's hardware.ts (float32).
PEAK_TFLOPS = {
    # Volta: "Tesla V100 GPU architecture" and V100 data sheet.
    "v100 sxm2": (125, None, 15.7),
    "v100 pcie": (112, None, 14),
    "v100s pcie": (130, None, 16.4),
    # Turing: "NVIDIA Turing GPU architecture", appendices A to C (Founders Editions where clocks differ); T4 data sheet.
    "t4": (65, None, 8.1),
    "titan rtx": (130.5, None, 16.3),
    "quadro rtx 6000": (130.5, None, 16.3),
    "quadro rtx 8000": (130.5, None, 16.3),
    "rtx 2080 ti": (56.9, None, 14.2),
    "rtx 2080": (42.4, None, 10.6),
    "rtx 2070": (31.5, None, 7.9),
    # Ampere, data centre and professional: data sheets of A100, A30, A10, A40, RTX A4000, A5000, A6000.
    "a100": (312, 156, 19.5),
    "a800 sxm4": (312, 156, 19.5),
    "a30": (165, 82, 10.3),
    "a10": (125, 62.5, 31.2),
    "a40": (149.7, 74.8, 37.4),
    "rtx a4000": (76.7, 38.3, 19.2),
    "rtx a5000": (111.1, 55.6, 27.8),
    "rtx a6000": (154.8, 77.4, 38.7),
    # Ampere, GeForce: "NVIDIA Ampere GA102 GPU architecture", tables 2 to 9: 3090, 3080, 3070. The others by its arithmetic, from their
    # published cores and boost clocks: float32 = 2 x cores x clock, 16 bits twice that, TensorFloat-32 the same.
    "rtx 3060": (25.5, 12.7, 12.7),
    "rtx 3060 ti": (32.4, 16.2, 16.2),
    "rtx 3070": (40.6, 20.3, 20.3),
    "rtx 3070 ti": (43.5, 21.7, 21.7),
    "rtx 3080": (59.5, 29.8, 29.8),  # of 10 GB; that of 12 GB has the same name and 3 % more
    "rtx 3080 ti": (68.2, 34.1, 34.1),
    "rtx 3090": (71, 35.6, 35.6),
    "rtx 3090 ti": (80, 40, 40),
    # Ada: "NVIDIA Ada GPU architecture", appendices A and B (4090, 4080, RTX 6000 Ada, L40, L4), the other GeForce cards by the same
    # arithmetic; data sheet of the L40S.
    "rtx 4060": (30.2, 15.1, 15.1),
    "rtx 4060 ti": (44.1, 22.1, 22.1),
    "rtx 4070": (58.3, 29.1, 29.1),
    "rtx 4070 super": (71, 35.5, 35.5),
    "rtx 4070 ti": (80.2, 40.1, 40.1),
    "rtx 4070 ti super": (88.2, 44.1, 44.1),
    "rtx 4080": (97.5, 48.7, 48.7),
    "rtx 4080 super": (104.4, 52.2, 52.2),
    "rtx 4090": (165.2, 82.6, 82.6),
    "rtx 6000 ada": (364.2, 182.1, 91.1),
    "l4": (121, 60, 30.3),
    "l40": (181, 90.5, 90.5),
    "l40s": (362, 183, 91.6),
    # Hopper: data sheets of H100 and H200. The SXM form of the H100 names its memory, HBM3.
    "h100 hbm3": (989.4, 494.7, 67),
    "h100 pcie": (756, 378, 51),
    "h100 nvl": (835.5, 417.5, 60),
    "h200": (989.4, 494.7, 67),
    "h200 nvl": (835.5, 417.5, 60),
    "gh200": (989.4, 494.7, 67),
    # Blackwell: HGX B200 data sheet, an eighth of the board; "NVIDIA RTX Blackwell GPU architecture", appendix A.
    "b200": (2250, 1125, 75),
    "rtx 5070": (61.7, 30.9, 30.9),
    "rtx 5070 ti": (87.9, 43.9, 43.9),
    "rtx 5080": (112.6, 56.3, 56.3),
    "rtx 5090": (209.5, 104.8, 104.8),
}
# What a device's name may have beside the words above. Any other word (Laptop, MIG, D, Max-Q) makes it another device, which is unknown.
_OTHER_WORDS = re.compile(r"nvidia|tesla|geforce|generation|graphics|device|sxm\d?|pcie|hbm\d\w?|\d+gb")


def peak_flops(device_name, precision, tensor_float_32=True):
    """Highest rate of matrix products of a GPU in FLOP/s, or None for what the table does not have.

    Args:
      device_name: as TensorFlow gives it, for example "NVIDIA A100-SXM4-80GB".
      precision: "bfloat16", "float16" or "float32", the type of the products.
      tensor_float_32: whether products of float32 may use TensorFloat-32, as TensorFlow's do unless told otherwise.
    """
    words = set(re.findall(r"[a-z0-9]+", device_name.lower()))
    fitting = [name for name in PEAK_TFLOPS if (own := set(name.split())) <= words and all(map(_OTHER_WORDS.fullmatch, words - own))]
    if not fitting:
        return None
    half, tf32, single = PEAK_TFLOPS[max(fitting, key=lambda name: len(name.split()))]
    if precision == "float32":
        return 1e12 * (tf32 if tf32 and tensor_float_32 else single)
    return None if precision == "bfloat16" and tf32 is None else 1e12 * half


def total_peak_flops(device_names, precision, tensor_float_32=None):
    """The peaks of all GPUs of a run together, FLOP/s; None when one is unknown or there is none (CPUs).

    tensor_float_32: None asks TensorFlow.
    """
    if tensor_float_32 is None:
        tensor_float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    peaks = [peak_flops(name, precision, tensor_float_32) for name in device_names]
    return None if not peaks or None in peaks else sum(peaks)


def utilization(model_flops_per_second, hardware_flops_per_second, real_share, peak):
    """The shares of a peak that a run reaches: {"mfu", "mfu_real_tokens", "hfu"}, None each when the peak or a rate is.

    Args:
      model_flops_per_second, hardware_flops_per_second: rates of all GPUs together, of all places of the rows, padding included.
      real_share: share of the places that hold real tokens; mfu_real_tokens is mfu times that, what is not spent on padding.
      peak: FLOP/s of all GPUs together, from `total_peak_flops` or `measured_matrix_rate`.
    """
    if None in (model_flops_per_second, hardware_flops_per_second, peak):
        return dict(mfu=None, mfu_real_tokens=None, hfu=None)
    mfu = model_flops_per_second / peak
    return dict(mfu=mfu, mfu_real_tokens=None if real_share is None else mfu * real_share, hfu=hardware_flops_per_second / peak)


def measured_matrix_rate(dtype=tf.float32, device="CPU:0", size=None, seconds=2.0):
    """FLOP/s that a large square product reaches: the peak to hold a CPU, or a GPU that the table does not have, against.

    Args:
      dtype: of the product. device: where, a device of TensorFlow. size: rows of the matrices; default 1024 on CPUs, 8192 elsewhere.
      seconds: how long to measure; the fastest call counts.
    """
    is_cpu = "CPU" in device.upper()
    size, num_products = size or (1024 if is_cpu else 8192), 4
    with tf.device(device):
        # Products of such matrices keep their scale, so that no number overflows.
        values = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32) / np.sqrt(size)
        matrix = tf.cast(tf.constant(values), dtype)

        @tf.function(autograph=False)
        def multiply(x):
            for _ in range(num_products):
                x = tf.matmul(matrix, x)
            return x, tf.reduce_sum(tf.cast(x[0], tf.float32))

        _, total = multiply(matrix)
        total.numpy()
        best, end = np.inf, time.perf_counter() + seconds
        while best == np.inf or time.perf_counter() < end:
            started = time.perf_counter()
            _, total = multiply(matrix)
            total.numpy()  # waits
            best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 * num_products / best
