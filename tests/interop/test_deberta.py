"""DeBERTas of transformers, which is an independent implementation, compute the same here: hidden
states, scores, losses and gradients, whether texts are padded or packed.
"""

import io
import json
import pathlib
import subprocess
import unicodedata

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from bert_gpu.__main__ import main as command
from bert_gpu.base import tensor_files
from bert_gpu.base.errors import UserError
from bert_gpu.interop import huggingface, relatives, sources
from bert_gpu.interop.tokenizers import load_tokenizer, tokenizer_files
from bert_gpu.model import encoder, heads
from bert_gpu.model.config import ModelConfig
from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer
from tests.interop.test_any_tokenizer import lines_of
from tests.interop.test_huggingface import (
    file_tensors,
    needs_oracle,
    oracle_environment,
    oracle_python,
)
from tests.interop.test_tokenizer_json import text_lines

NAMES = ("buckets", "no buckets", "far", "long")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """(folder of saved models, {name: arrays}), as deberta_oracle.py says."""
    folder = tmp_path_factory.mktemp("deberta")
    script = str(pathlib.Path(__file__).parent / "deberta_oracle.py")
    done = subprocess.run(
        [oracle_python(), script, str(folder)],
        env=oracle_environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, {name: dict(np.load(folder / f"{name}.npz")) for name in NAMES}


def batch_of(arrays, is_packed):
    """(batch, [(row, column of its first token, index) of each text])."""
    texts = [arrays[f"ids/{index}"] for index in range(sum(key[:4] == "ids/" for key in arrays))]
    lengths = [len(text) for text in texts]
    rows = [(0, sum(lengths[:index]), index) for index in range(len(texts))]
    shape = (1, sum(lengths) + 2)
    if not is_packed:
        rows = [(index, 0, index) for index in range(len(texts))]
        shape = (len(texts), max(lengths))
    batch = {
        name: np.zeros(shape, np.int32)
        for name in ("input_ids", "input_mask", "segment_ids", "sequence_ids")
    }
    for row, first, index in rows:
        place = (row, slice(first, first + lengths[index]))
        batch["input_ids"][place] = texts[index]
        batch["segment_ids"][place] = arrays[f"segments/{index}"]
        batch["input_mask"][place] = 1
        batch["sequence_ids"][place] = index + 1
    if not is_packed:
        del batch["sequence_ids"]
    return {name: tf.constant(values) for name, values in batch.items()}, rows


def assert_close(ours, theirs, name, least=0.0):
    atol = max(least, 1e-4 * np.abs(theirs).max())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, err_msg=name)


@needs_oracle
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_packed", [False, True])
def test_states_scores_losses_and_gradients_are_those_of_transformers(oracle, name, is_packed):
    folder, arrays = oracle[0], oracle[1][name]
    config, weights, notes = huggingface.read_model(str(folder / name))
    assert (notes.missing, notes.unused, notes.architecture) == ([], [], "BertForMaskedLM")
    batch, texts = batch_of(arrays, is_packed)
    tensors = {key: tf.constant(value) for key, value in weights.items()}
    labels = np.full(batch["input_ids"].shape, -100)
    for row, first, index in texts:
        labels[row, first : first + len(arrays[f"ids/{index}"])] = arrays[f"labels/{index}"]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        # rows that are packed have more tokens than the model has positions
        states = encoder.encode(tensors, batch, config)
        scores = heads.chosen_mlm_logits(tensors, states, config)
        loss, _ = heads.summed_loss(scores, np.maximum(labels, 0), labels >= 0)
    gradients = tape.gradient(loss, tensors)
    for row, first, index in texts:
        place = (row, slice(first, first + len(arrays[f"ids/{index}"])))
        assert_close(states[place], arrays[f"hidden/{index}"], "states")
        assert_close(scores[place], arrays[f"logits/{index}"], "scores")
    assert float(loss) == pytest.approx(float(arrays["loss"]), rel=1e-5)
    family = relatives.relative_of(config, notes.architecture).family
    # what softmax ignores, such as a bias of all keys, has no gradient but what is rounded
    least = 1e-7 * max(np.abs(gradient).max() for gradient in gradients.values())
    for key, gradient in gradients.items():
        theirs = [arrays[f"gradients/{their}"] for their in family.names(key)]
        assert_close(gradient, family.to_ours(key, theirs), key, least)


@needs_oracle
@pytest.mark.parametrize("name", NAMES)
def test_a_deberta_leaves_as_it_came(oracle, name, tmp_path):
    """The class, all tensors bit by bit, and what the config.json says."""
    model = huggingface.read(str(oracle[0] / name))
    line = huggingface.write(model, str(tmp_path / "there"))
    assert "DebertaV2ForMaskedLM of transformers" in line
    before, after = (file_tensors(path) for path in (oracle[0] / name, tmp_path / "there"))
    assert after.keys() == before.keys()
    assert all(after[key].tobytes() == before[key].tobytes() for key in before)
    said, says = (
        json.loads((path / "config.json").read_text())
        for path in (oracle[0] / name, tmp_path / "there")
    )
    same = said.keys() & says.keys()
    assert {"legacy", "pos_att_type", "max_relative_positions", "share_att_key"} <= same
    assert {key: says[key] for key in same} == {key: said[key] for key in same}
    assert huggingface.read(str(tmp_path / "there")).config == model.config


def published_pieces(vocab_size=800, **more):
    """A SentencePiece model as DeBERTa v3 has it: four special pieces, pieces for bytes, and no
    [MASK].
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text_lines(2000)), model_writer=model, model_type="unigram",
        vocab_size=vocab_size, pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]",
        bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]", minloglevel=2,
        **dict(byte_fallback=True) | more,
    )  # fmt: skip
    return model.getvalue()


def test_a_model_gets_the_mask_after_its_last_piece(tmp_path):
    (tmp_path / "spm.model").write_bytes(published_pieces())
    settings = dict(do_lower_case=False, vocab_type="spm")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(str(tmp_path))
    assert (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert (tokenizer.mask_id, tokenizer.vocab_size, tokenizer.vocab[800]) == (800, 801, "[MASK]")
    ids, _ = tokenizer.tokenize(["a [MASK] here"])
    assert tokenizer.mask_id not in ids
    assert tokenizer.decode([tokenizer.mask_id]) == "[MASK]"
    for name, content in tokenizer_files(tokenizer, ModelConfig(type_vocab_size=0), True).items():
        (tmp_path / "again").mkdir(exist_ok=True)
        (tmp_path / "again" / name).write_bytes(content)
    again = load_tokenizer(str(tmp_path / "again"))
    assert (again.identity, again.vocab) == (tokenizer.identity, tokenizer.vocab)


def test_a_finder_of_replaced_tokens_comes_in_as_an_encoder(tmp_path, capsys):
    """As published: config.json names no class and no head, and the file has a head for replaced
    tokens, and one for masked words that nothing was trained with. One line names both.
    """
    folder, to = tmp_path / "published", tmp_path / "there"
    said = dict(
        model_type="deberta-v2", vocab_size=900, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=24, hidden_act="gelu", layer_norm_eps=1e-7,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, initializer_range=0.02,
        max_position_embeddings=64, relative_attention=True, position_buckets=16,
        norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type="p2c|c2p",
        max_relative_positions=-1, position_biased_input=False, type_vocab_size=0,
    )  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(said))
    (folder / "spm.model").write_bytes(published_pieces())
    config, generator = sources.read_config(str(folder)), np.random.default_rng(0)
    names = relatives.relative_of(config, "BertModel").family.names
    tensors = {}
    for ours, spec in encoder.encoder_weights(config).items():
        parts = len(names(ours))  # 3 of query, key and value
        shape = (*spec.shape[:-1], spec.shape[-1] // parts)
        shape = shape[::-1] if ours.endswith("/kernel") else shape  # as in torch
        tensors |= {their: generator.standard_normal(shape).astype("f4") for their in names(ours)}
    heads_of_training = {
        f"{head}.{part}": np.ones(16, np.float32)
        for head in ("lm_predictions.lm_head", "mask_predictions")
        for part in ("dense.bias", "LayerNorm.weight", "LayerNorm.bias")
    }
    (folder / "model.safetensors").write_bytes(tensor_files.save(tensors | heads_of_training))
    assert command(["bert-gpu", "import", f"--from={folder}", f"--to={to}"]) == 0
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if "no such weights" in line]
    assert "lm_predictions.lm_head.LayerNorm.bias, mask_predictions.LayerNorm.bias" in line
    _, weights, notes = huggingface.read_model(str(to))
    assert (notes.missing, notes.unused, notes.architecture) == ([], [], "BertModel")
    there = file_tensors(to)
    assert there.keys() == {name.removeprefix("deberta.") for name in tensors}
    assert all(
        there[name.removeprefix("deberta.")].tobytes() == tensors[name].tobytes()
        for name in tensors
    )


@needs_oracle
def test_ten_thousand_lines_get_the_ids_of_transformers(tmp_path):
    """From spm.model, and from the tokenizer.json that a copy gets. Where it has only the former,
    transformers 5 does not as the model says: it normalises text by NFC, not by NFKC, and a
    character without a piece is [UNK], not bytes.
    """
    folder, again = tmp_path / "published", tmp_path / "again"
    for path in (folder, again):
        path.mkdir()
        (path / "config.json").write_text(json.dumps(dict(model_type="deberta-v2")))
    (folder / "spm.model").write_bytes(published_pieces())
    tokenizer = load_tokenizer(str(folder))
    for name, content in tokenizer_files(tokenizer, ModelConfig(type_vocab_size=0), True).items():
        (again / name).write_bytes(content)
    lines = lines_of(10_000)
    (tmp_path / "lines.json").write_text(json.dumps(lines))
    script = str(pathlib.Path(__file__).parent / "tokenizers_oracle.py")
    subprocess.run(
        [oracle_python(), script, tmp_path / "lines.json", tmp_path / "out.json", folder, again],
        env=oracle_environment(tmp_path),
        check=True,
    )
    theirs = json.loads((tmp_path / "out.json").read_text())
    ids, splits = tokenizer.tokenize(lines)
    compared = 0
    for index, mine in enumerate(np.split(ids, splits[1:-1])):
        line = lines[index]
        if "[MASK]" not in line:  # three words here
            assert mine.tolist() == theirs[str(again)]["ids"][index], line
            has_bytes = any(tokenizer.vocab[piece].startswith("<0x") for piece in mine)
            if line == unicodedata.normalize("NFKC", line) and not has_bytes:
                compared += 1
                assert mine.tolist() == theirs[str(folder)]["ids"][index], line
    assert compared > 0.9 * len(lines) > 5000


def test_bytes_of_a_character_are_one_word_and_are_decoded(tmp_path):
    (tmp_path / "spm.model").write_bytes(published_pieces())
    tokenizer = load_tokenizer(str(tmp_path))
    ids, _ = tokenizer.tokenize(["the \u5b57 man"])
    pieces = [tokenizer.vocab[index] for index in ids]
    assert pieces[2:5] == ["<0xE5>", "<0xAD>", "<0x97>"]
    assert tokenizer.decode(ids) == "the \u5b57 man"
    assert tokenizer.word_starts(ids)[:5].tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("falls_back, index", [(False, 800), (True, 804)])
def test_the_files_of_transformers_count_where_they_differ_from_the_pieces(
    tmp_path, falls_back, index
):
    """A tokenizer.json that cuts characters without a piece otherwise, or gives [MASK] another id,
    is what its model was trained with. Without one, the difference is an error.
    """
    (tmp_path / "spm.model").write_bytes(published_pieces())
    tokenizer = load_tokenizer(str(tmp_path))
    files = tokenizer_files(tokenizer, ModelConfig(type_vocab_size=0), True)
    stored = json.loads(files["tokenizer.json"])
    stored["model"]["byte_fallback"] = falls_back
    for row in range(800, index):  # pieces for the ids in between
        stored["model"]["vocab"].append([f"unused{row}", -99.0])
    stored["added_tokens"][-1]["id"] = index
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    theirs = load_tokenizer(str(tmp_path))
    assert isinstance(theirs, HuggingFaceTokenizer) and theirs.mask_id == index
    ids, _ = theirs.tokenize(["the \u5b57 man"])
    assert (theirs.unk_id in ids) == (not falls_back)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": 805}))
    with pytest.raises(UserError, match=r"\[MASK\] has id 805, not 800, unlike the Sentence"):
        load_tokenizer(str(tmp_path))


def test_capitals_of_pieces_that_no_text_gives_do_not_count(tmp_path):
    """Where no file states the casing: byte pieces have capitals, and so may symbols of a user."""
    folds = dict(normalization_rule_name="nmt_nfkc_cf", user_defined_symbols=["<URL>"])
    for name, more in (
        ("spm.model", folds),
        ("spiece.model", dict(user_defined_symbols=["<URL>"])),
    ):
        (tmp_path / name).write_bytes(published_pieces(**more))
    assert load_tokenizer(str(tmp_path)).do_lower_case is False  # spiece.model comes first
    (tmp_path / "spiece.model").unlink()
    assert load_tokenizer(str(tmp_path)).do_lower_case is True
