"""Models as the world publishes them: tables with more rows than pieces, and the config.json of ten
families.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

import bert_gpu
from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.data.masking import MaskingSpec, mask_rows
from bert_gpu.interop import models
from bert_gpu.interop.relatives import read_shape
from bert_gpu.interop.sources import read_config
from bert_gpu.model import heads
from bert_gpu.model.config import ATTENTION, ModelConfig
from bert_gpu.model.encoders import open_encoder
from tests import pretraining
from tests.cli.test_continued import make_data
from tests.test_architecture import ROOT

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SHAPE = dict(
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=8,
    max_position_embeddings=64,
)


def write_folder(folder, lines, num_rows):
    """Writes a folder with these lines in vocab.txt and a table of num_rows. Returns its weights,
    by which rows without a piece are by far the likeliest, and which rows have a piece: bool
    (num_rows,).
    """
    last = {line: index for index, line in enumerate(lines)}
    has_piece = np.array([index in last.values() for index in range(num_rows)])
    has_piece[last.get("", 0)] &= "" not in last
    config = ModelConfig(vocab_size=num_rows, **SHAPE)
    draw = np.random.default_rng(3)
    specs = pretraining.weights(open_encoder(config))
    weights = {key: draw.normal(size=spec.shape).astype("f4") for key, spec in specs.items()}
    weights["mlm/bias"] = np.where(has_piece, 0, 20).astype(np.float32)
    models.write_model(str(folder), config, weights)
    (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in lines))
    return weights, has_piece


@hypothesis.settings(max_examples=8)
@hypothesis.given(
    st.lists(st.sampled_from([*"abcd", "##e", ""]), min_size=1, max_size=9),
    st.integers(-2, 9),
    st.integers(1, 30),
)
def test_a_table_with_more_rows_than_lines_is_kept_and_only_pieces_are_words(pieces, extra, count):
    lines = [*SPECIAL, *pieces, "z"]  # no blank line is the last one
    num_rows = len(lines) + extra
    with tempfile.TemporaryDirectory() as name:
        weights, has_piece = write_folder(Path(name) / "in", lines, num_rows)
        if extra < 0:
            with pytest.raises(UserError, match=f"{len(lines)} pieces, the model {num_rows}; "):
                models.open_model(f"{name}/in", "from")
            return
        path, model = models.open_model(f"{name}/in", "from")
        assert model.config.vocab_size == read_config(path).vocab_size == num_rows
        models.write_own(model, f"{name}/out")
        again = models.open_model(f"{name}/out", "from")[1]
        assert again.config == model.config and again.tokenizer.identity == model.tokenizer.identity
        assert all(np.array_equal(again.weights[key], value) for key, value in weights.items())
        vocab = model.tokenizer.vocab
        known = [index for index, piece in enumerate(vocab) if piece]
        assert known == np.flatnonzero(has_piece).tolist()
        logits = np.random.default_rng(count).normal(size=(3, num_rows)) + weights["mlm/bias"]
        shares, ids = (part.numpy() for part in heads.best_words(logits, has_piece, count))
        softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        for row in range(3):
            best = sorted(known, key=lambda index: -softmax[row, index])[:count]
            assert ids[row].tolist() == best
            np.testing.assert_allclose(shares[row], softmax[row, best], rtol=1e-5)


@hypothesis.settings(max_examples=8)
@hypothesis.given(st.sets(st.integers(5, 39), max_size=33), st.integers(0, 1 << 32))
def test_replacements_are_drawn_as_from_a_vocabulary_without_the_blank_rows(blank, key):
    def masked(**settings):
        special = dict(cls_id=2, sep_id=3, mask_id=4, max_predictions=60, share=0.9)
        ids = np.full((8, 64), 4)
        spec = MaskingSpec(**special, **settings)
        return mask_rows(ids, np.full(8, 64), None, np.arange(key, key + 8), spec)["input_ids"]

    pieces = np.array([index for index in range(40) if index not in blank])
    drawn = masked(vocab_size=40, blank_ids=tuple(sorted(blank)))
    assert np.array_equal(drawn, pieces[masked(vocab_size=len(pieces))])
    assert not blank & set(drawn.ravel().tolist())


def test_fill_mask_answers_with_pieces_and_the_probabilities_of_the_whole_table(tmp_path, caplog):
    lines = [*SPECIAL, "a", "b", "a", "", *"cdefgh"]
    weights, has_piece = write_folder(tmp_path / "model", lines, len(lines) + 3)
    console.warn_once.cache_clear()
    ((words,),) = bert_gpu.fill_mask("c [MASK] d", model=tmp_path / "model", top_k=100)
    err = caplog.text
    assert "has ids for 15 of the 18 rows" in err and "2 of 15 lines are blank" in err
    assert sorted(word for _, word in words) == sorted({*lines} - {""})
    batch = dict(input_ids=[[2, 9, 4, 10, 3]], input_mask=[[1] * 5], segment_ids=[[0] * 5])
    batch = {name: tf.constant(values, tf.int32) for name, values in batch.items()}
    config = ModelConfig(vocab_size=len(lines) + 3, **SHAPE)
    tensors = {name: tf.constant(value) for name, value in weights.items()}
    hidden = open_encoder(config).encode(tensors, batch, dtype=tf.float32)
    logits = heads.mlm_logits(tensors, hidden, tf.constant([[2]]), config)[0, 0]
    shares = tf.nn.softmax(logits).numpy()[has_piece]
    np.testing.assert_allclose([share for share, _ in words], np.sort(shares)[::-1], rtol=1e-4)
    assert sum(share for share, _ in words) < 0.01


# config.json as published, without what they share
BASE = dict(
    attention_probs_dropout_prob=0.1,
    hidden_act="gelu",
    hidden_dropout_prob=0.1,
    hidden_size=768,
    initializer_range=0.02,
    intermediate_size=3072,
    layer_norm_eps=1e-12,
    max_position_embeddings=512,
    num_attention_heads=12,
    num_hidden_layers=12,
    type_vocab_size=2,
)
BERT = dict(BASE, model_type="bert", architectures=["BertForMaskedLM"])
GENERATES = dict(
    bad_words_ids=None,
    bos_token_id=None,
    decoder_start_token_id=None,
    do_sample=False,
    early_stopping=False,
    eos_token_ids=None,
    finetuning_task=None,
    is_decoder=False,
    is_encoder_decoder=False,
    length_penalty=1.0,
    max_length=20,
    min_length=0,
    no_repeat_ngram_size=0,
    num_beams=1,
    num_return_sequences=1,
    output_attentions=False,
    output_hidden_states=False,
    output_past=True,
    prefix=None,
    pruned_heads={},
    repetition_penalty=1.0,
    task_specific_params=None,
    temperature=1.0,
    top_k=50,
    top_p=1.0,
    torchscript=False,
    use_bfloat16=False,
)
POOLS = dict(
    directionality="bidi",
    pooler_fc_size=768,
    pooler_num_attention_heads=12,
    pooler_num_fc_layers=3,
    pooler_size_per_head=128,
    pooler_type="first_token_transform",
)
CLASSES = dict(id2label={"0": "positive", "1": "negative"}, label2id=dict(positive=0, negative=1))
TOKENS = dict(pad_token_id=0, position_embedding_type="absolute", use_cache=True)
ROBERTA = BERT | dict(
    model_type="roberta",
    architectures=["RobertaForMaskedLM"],
    bos_token_id=0,
    eos_token_id=2,
    pad_token_id=1,
    layer_norm_eps=1e-5,
    max_position_embeddings=514,
    type_vocab_size=1,
)
DISTILBERT = dict(
    activation="gelu",
    architectures=["DistilBertForMaskedLM"],
    attention_dropout=0.1,
    dim=768,
    dropout=0.1,
    hidden_dim=3072,
    initializer_range=0.02,
    max_position_embeddings=512,
    model_type="distilbert",
    n_heads=12,
    n_layers=6,
    pad_token_id=0,
    qa_dropout=0.1,
    seq_classif_dropout=0.2,
    sinusoidal_pos_embds=False,
    tie_weights_=True,
    transformers_version="4.10.0.dev0",
)
ELECTRA = {key: value for key, value in BERT.items() if key != "hidden_act"} | dict(
    architectures=["ElectraForPreTraining"],
    embedding_size=768,
    hidden_act="gelu",
    model_type="electra",
    summary_activation="gelu",
    summary_last_dropout=0.1,
    summary_type="first",
    summary_use_proj=True,
)
OLDER = dict(global_attn_every_n_layers=3, global_rope_theta=160000.0, local_rope_theta=10000.0)
DEBERTA = dict(
    model_type="deberta-v2", attention_probs_dropout_prob=0.1, hidden_act="gelu",
    hidden_dropout_prob=0.1, hidden_size=768, initializer_range=0.02, intermediate_size=3072,
    max_position_embeddings=512, relative_attention=True, position_buckets=256,
    norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type="p2c|c2p", layer_norm_eps=1e-7,
    max_relative_positions=-1, position_biased_input=False, num_attention_heads=12,
    num_hidden_layers=12, type_vocab_size=0,
)  # fmt: skip
MODERNBERT = OLDER | dict(
    architectures=["ModernBertForMaskedLM"],
    attention_bias=False,
    attention_dropout=0.0,
    bos_token_id=50281,
    classifier_activation="gelu",
    classifier_bias=False,
    classifier_dropout=0.0,
    classifier_pooling="mean",
    cls_token_id=50281,
    decoder_bias=True,
    deterministic_flash_attn=False,
    embedding_dropout=0.0,
    eos_token_id=50282,
    gradient_checkpointing=False,
    hidden_activation="gelu",
    hidden_size=768,
    initializer_cutoff_factor=2.0,
    initializer_range=0.02,
    intermediate_size=1152,
    layer_norm_eps=1e-05,
    local_attention=128,
    max_position_embeddings=8192,
    mlp_bias=False,
    mlp_dropout=0.0,
    model_type="modernbert",
    norm_bias=False,
    norm_eps=1e-05,
    num_attention_heads=12,
    num_hidden_layers=22,
    pad_token_id=50283,
    position_embedding_type="absolute",
    reference_compile=None,
    repad_logits_with_grad=False,
    sep_token_id=50282,
    sparse_pred_ignore_index=-100,
    sparse_prediction=False,
    tie_word_embeddings=True,
    torch_dtype="float32",
    transformers_version="4.47.0.dev0",
    vocab_size=50368,
)
PUBLISHED = {
    "bert-base-uncased": (
        BERT | TOKENS | dict(gradient_checkpointing=False, transformers_version="4.6.0.dev0"),
        30522,
    ),
    "bert-base-multilingual-cased": (BERT | TOKENS | POOLS, 119547),
    "dbmdz/bert-base-german-uncased": (BERT | dict(pad_token_id=0), 31102),
    "dmis-lab/biobert-base-cased": (BASE, 28996),
    "allenai/scibert_scivocab_uncased": (BASE, 31090),
    "yiyanghkust/finbert-tone": (BERT | GENERATES | CLASSES | dict(_num_labels=3), 30873),
    "ProsusAI/finbert": (BERT | CLASSES | TOKENS | dict(_name_or_path="/home/finbert"), 30522),
    "nvidia/megatron-bert-345m": (
        BERT | TOKENS | dict(model_type="megatron-bert", hidden_size=1024, num_attention_heads=16),
        29056,
    ),
    "cl-tohoku/bert-base-japanese": (BERT | dict(tokenizer_class="BertJapaneseTokenizer"), 32000),
    "with a key of its own": (BERT | dict(split=10), 31116),
    "google/mobilebert-uncased": (
        BERT | dict(model_type="mobilebert", trigram_input=True),
        "model_type='mobilebert' is not supported, only bert, .*distilbert",
    ),
    "microsoft/deberta-v3-base": (DEBERTA, 128100),
    "microsoft/deberta-base": (
        BERT | dict(model_type="deberta"),
        "model_type='deberta' is not supported, only bert, .*deberta-v2",
    ),
    "microsoft/deberta-v2-xlarge": (
        DEBERTA | dict(conv_kernel_size=3, conv_act="gelu", attention_head_size=64),
        "conv_kernel_size=3 is not supported, only 0 is, because the convolution of DeBERTa v2",
    ),
    "a deberta with absolute positions": (
        DEBERTA | dict(position_biased_input=True),
        "position_biased_input=True is not supported, only False is",
    ),
    "a deberta with a table of its own for keys": (
        {key: value for key, value in DEBERTA.items() if key != "share_att_key"},
        "has no share_att_key; transformers' default is not supported",
    ),
    "a deberta with narrow embeddings": (
        DEBERTA | dict(embedding_size=64),
        "embedding_size=64 is not supported, only 768 is",
    ),
    "a deberta that attends to positions alone": (
        DEBERTA | dict(pos_att_type="p2p|c2p"),
        "pos_att_type=c2p.p2p: must be one of",
    ),
    "roberta-base": (ROBERTA, 50265),
    "xlm-roberta-base": (
        ROBERTA | dict(model_type="xlm-roberta", output_past=True, use_cache=True),
        250002,
    ),
    "roberta with positions from another row": (
        ROBERTA | dict(pad_token_id=0),
        "pad_token_id=0 is not supported, only 1 is",
    ),
    "roberta with a table too small": (
        ROBERTA | dict(max_position_embeddings=2),
        "max_position_embeddings=2: must be above 2, because the table of positions begins with 2",
    ),
    "distilbert-base-uncased": (DISTILBERT, 30522),
    "answerdotai/ModernBERT-base": (MODERNBERT, 50368),
    "ModernBERT saved by transformers 5": (
        {key: value for key, value in MODERNBERT.items() if key not in OLDER}
        | dict(
            layer_types=(["full_attention"] + 2 * ["sliding_attention"]) * 7 + ["full_attention"],
            rope_parameters=dict(
                full_attention=dict(rope_theta=160000.0, rope_type="default"),
                sliding_attention=dict(rope_theta=10000.0, rope_type="default"),
            ),
        ),
        50368,
    ),
    "a modernbert with other layers": (
        MODERNBERT | dict(layer_types=["full_attention"] * 2 + ["sliding_attention"] * 20),
        "layer_types=.* is not supported, only full_attention in each n-th layer, from the first",
    ),
    "a modernbert with interpolated positions": (
        MODERNBERT | dict(rope_scaling=dict(rope_type="linear", factor=2.0)),
        "rope_parameters=.*linear.* is not supported, only default is",
    ),
    "a sinusoidal distilbert": (
        DISTILBERT | dict(sinusoidal_pos_embds=True),
        "sinusoidal_pos_embds=True is not supported, only False is",
    ),
    "a distilbert that lacks a size": (
        {key: value for key, value in DISTILBERT.items() if key != "n_layers"},
        "has no n_layers, which DistilBert needs",
    ),
    "google/electra-base-discriminator": (ELECTRA | TOKENS, 30522),
    "google/electra-base-generator, of its width": (
        ELECTRA | TOKENS | dict(architectures=["ElectraForMaskedLM"], embedding_size=3072),
        30522,
    ),
    "an electra that lacks a width": (
        {key: value for key, value in ELECTRA.items() if key != "embedding_size"},
        "has no embedding_size, which Electra needs",
    ),
    "mosaicml/mosaic-bert-base": (
        BERT | TOKENS | dict(alibi_starting_size=512, attention_probs_dropout_prob=0.0),
        "alibi_starting_size=512 is not supported.*because.*biased by distance",
    ),
    "jinaai/jina-bert": (
        BERT | dict(feed_forward_type="geglu", position_embedding_type="alibi"),
        "feed_forward_type='geglu' is not supported.*because.*gated",
    ),
    "relative positions": (
        BERT | dict(position_embedding_type="relative_key_query"),
        "position_embedding_type=relative_key_query: must be one of",
    ),
    "a decoder": (
        BERT | dict(is_decoder=True, add_cross_attention=True),
        "is_decoder=True is not supported, only False is, because",
    ),
    "nomic-ai/nomic-bert-2048": (
        dict(model_type="nomic_bert", n_embd=768, n_layer=12, activation_function="swiglu"),
        "has no vocab_size, which NomicBert needs",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read_or_refused_for_its_reason(name, tmp_path, capsys):
    values, expected = PUBLISHED[name]
    size = expected if isinstance(expected, int) else 30000
    content = values if "nomic" in name else dict(values, vocab_size=size)
    (tmp_path / "config.json").write_text(json.dumps(content))
    console.warn_once.cache_clear()
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected) as caught:
            read_shape(str(tmp_path / "config.json"))
        assert len(str(caught.value)) <= 300
        return
    for _ in range(2):
        config = read_shape(str(tmp_path / "config.json")).config
    assert config.vocab_size == size and config.hidden_size == 768 or "nvidia" in name
    assert config.num_positions == (8192 if values.get("model_type") == "modernbert" else 512)
    if config.num_positions == 8192:
        found = [getattr(config, field) for field in ATTENTION]
        assert found == [160000.0, 128, 3, 10000.0]
        assert (config.pooling, config.intermediate_size) == ("mean", 2304)
    err = capsys.readouterr().err
    assert err == "" or (err.count("\n") == 1 and err.endswith(": split\n") and "split" in values)


@pytest.mark.long
def test_pretraining_goes_on_from_a_padded_table_and_keeps_it(tmp_path):
    lines = [*SPECIAL, *"abcdefgh", "", "i", "a"]
    write_folder(tmp_path / "model", lines, 24)
    text = "\n".join("a b c d e f g h i" if line % 4 else "" for line in range(80))
    (tmp_path / "text.txt").write_text(text)
    start = f"--init_checkpoint={tmp_path}/model"
    assert make_data(tmp_path / "text.txt", tmp_path / "data", start, "--quiet") == 0
    command = ["run_pretraining_gpu.py", f"--input_file={tmp_path}/data/*.tfrecord", start]
    command += [f"--output_dir={tmp_path}/run", "--num_train_steps=2", "--train_batch_size=4"]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("has ids for 16 of the 24 rows") == 1, done.stderr
    _, model = models.open_model(str(tmp_path / "run"), "from")
    assert len(model.weights["embeddings/word"]) == model.config.vocab_size == 24
    kept = (tmp_path / "run" / "model" / "vocab.txt").read_text().splitlines()
    assert kept == [*SPECIAL, "", *lines[6:]]
