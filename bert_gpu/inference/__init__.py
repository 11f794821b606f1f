"""A trained model at work on text: hidden states for each line, and words for [MASK].

`embed` and `fill_mask` do what the commands of these names do; `Embedder` keeps a model open for
several calls.
"""

from bert_gpu.inference.config import EmbedConfig, FillMaskConfig

__all__ = ["EmbedConfig", "Embedder", "FillMaskConfig", "embed", "fill_mask"]


def embed(config, console=None):
    """Embeds the lines of a text file into an array file.

    Args:
      config: EmbedConfig. console: console.Console; by default messages go to Python's logger
        "bert_gpu".

    Returns:
      inference.embeddings.Embedded: the files and their sizes.

    Raises:
      errors.UserError: a setting or a file is wrong, or the disk is full; then no file is left.
    """
    from bert_gpu.inference.embeddings import embed_file  # imports TensorFlow

    return embed_file(config, console)


def fill_mask(config, texts):
    """The most probable words for each [MASK] of some texts.

    Args:
      config: FillMaskConfig. texts: list of str, each with one [MASK] or more.

    Returns:
      for each text, for each [MASK] of it: [(probability, piece), ...], the best first.

    Raises:
      errors.UserError: the model cannot guess words, or a text has no [MASK] or is too long.
    """
    from bert_gpu.inference.masked_words import MaskFiller, check_masks

    check_masks(texts)
    return MaskFiller(config)(texts)


def __getattr__(name):
    if name != "Embedder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bert_gpu.inference.embeddings import Embedder

    return Embedder
