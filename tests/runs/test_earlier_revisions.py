"""What revision fa0b666 wrote, in of_fa0b666/, can still be used: its runs resume, and its data
sets are trained on. Its unfinished data jobs of objective nsp are refused, because it wrote other
labels.
"""

import json
import pathlib
import shutil

import pytest

from bert_gpu.cli import data, flags, pretrain

MADE = pathlib.Path(__file__).parent / "of_fa0b666"
DATA = ["--max_seq_length=16", "--dupe_factor=1", "--max_predictions_per_seq=3"]
DATA += ["--validation_share=.2", "--num_shards=1", "--num_workers=1"]
RUN = ["--model=tiny", "--hidden_size=8", "--num_hidden_layers=1", "--num_attention_heads=2"]
RUN += ["--intermediate_size=8", "--max_position_embeddings=16", "--train_batch_size=4"]
RUN += ["--save_checkpoints_steps=2", "--num_gpus=0", "--notensorboard", "--log_steps=1"]


@pytest.fixture
def made(tmp_path, monkeypatch):
    shutil.copytree(MADE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("folder, steps", [("run", [1, 2, 3, 4, 5, 6]), ("new", [1, 2])])
def test_its_run_resumes_and_its_data_are_trained_on(made, folder, steps):
    words = [f"--output_dir={folder}", "--input_file=data/*.tfrecord", *RUN]
    words.append(f"--num_train_steps={steps[-1]}")
    assert flags.exit_code(pretrain.main, ["pretrain", *words]) == 0
    lines = map(json.loads, (made / folder / "metrics.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if "loss" in line] == steps
    assert (made / folder / "model" / "model.safetensors").exists()


def test_its_unfinished_job_is_refused_and_kept(made, capsys):
    words = ["--input_file=text.txt", "--vocab_file=vocab.txt", *DATA]
    words.append("--output_file=unfinished/text.tfrecord")
    before = {path: path.read_bytes() for path in (made / "unfinished").iterdir()}
    assert flags.exit_code(data.main, ["data", *words]) == 2
    assert "--overwrite" in capsys.readouterr().err.splitlines()[-1]
    lock = {made / "unfinished" / ".text.lock"}
    after = set((made / "unfinished").iterdir()) - lock
    assert {path: path.read_bytes() for path in after} == before


def test_a_setting_that_is_gone_may_have_had_todays_value_alone(made, capsys):
    """Its run.json has the 8-bit optimizer's block size, 2048; with another one it is refused."""
    path = made / "run" / "run.json"
    content = json.loads(path.read_text())
    del content["crc32c"]  # as who edits it does
    assert content["settings"]["quantization_block_size"] == 2048
    content["settings"]["quantization_block_size"] = 64
    path.write_text(json.dumps(content))
    words = ["--output_dir=run", "--input_file=data/*.tfrecord", *RUN, "--num_train_steps=6"]
    assert flags.exit_code(pretrain.main, ["pretrain", *words]) == 2
    assert "--quantization_block_size: 64 -> 2048" in capsys.readouterr().err
