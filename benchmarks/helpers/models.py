"""Models with random weights and a vocabulary learnt from a text, for benchmarks of speed."""

from .shapes import shape_of

LABELS = ("0", "1")  # of a classifier


def learn_vocabulary(text, vocab_file, vocab_size):
    """Write a WordPiece vocabulary of at most so many pieces, learnt from a file."""
    from bert_gpu.base.console import Console
    from bert_gpu.text.config import TextFormat, VocabConfig
    from bert_gpu.text.vocabulary.learning import learn_files

    config = VocabConfig(
        input_file=str(text), vocab_file=str(vocab_file), vocab_size=vocab_size, overwrite=True
    )
    learn_files(config, TextFormat(), Console(quiet=True))


def make_model(folder, text, name, classifies=False):
    """Write a model of a named shape to folder/model: for pretraining, or a classifier of LABELS.

    text: a file. It has up to 30,522 pieces.
    """
    from bert_gpu.interop import models
    from bert_gpu.model.config import ModelConfig
    from bert_gpu.model.encoder import BertEncoder
    from bert_gpu.model.heads import classifier_weights
    from bert_gpu.model.weights import initialize
    from bert_gpu.pretrain.objectives.joint import open_objective
    from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer

    vocab_file = str(folder / "vocab.txt")
    learn_vocabulary(text, vocab_file, 30522)
    tokenizer = WordPieceTokenizer(vocab_file)
    config = ModelConfig(vocab_size=tokenizer.vocab_size, **shape_of(name))
    encoder, path = BertEncoder(config), str(folder / "model")
    if classifies:
        weights = initialize(encoder.weights() | classifier_weights(config, len(LABELS)), 1)
        notes = models.Notes([], [], "BertForSequenceClassification", LABELS)
        models.write_own(models.Model(config, weights, notes, tokenizer, None), path)
    else:
        weights = initialize(open_objective(("mlm", "nsp"), encoder).weights(), 1)
        models.write_model(path, config, weights, files=models.tokenizer_files(tokenizer))
