"""The jobs of the two tiers, in stages: a job may read what an earlier stage wrote.

A job is a dict: name, command, folder in which it runs, files (patterns in the folder, compared),
and where needed environment, stdin, edits of JSON files before it, kill_at (a pattern: the process
is killed when it has a match).
"""

import shlex

FAST = {"XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_allow_excess_precision=false"}
DUMP = {"XLA_FLAGS": f"{FAST['XLA_FLAGS']} --xla_dump_to=xla --xla_dump_hlo_as_text"}
DATA, PRETRAIN, CLASSIFY = (
    "create_pretraining_data.py",
    "run_pretraining_gpu.py",
    "run_classifier.py",
)
COMMANDS = (
    "data pretrain classify vocab fill-mask import export embed report runs doctor launch".split()
)
RUN_FILES = ("metrics.jsonl", "run.json", "model/**", "checkpoints/**", "marks/**")


def job(name, text, folder=".", files=(), **more):
    """A job of a command line without quotes' meaning but the shell's."""
    return dict(name=name, command=shlex.split(text), folder=folder, files=list(files), **more)


def data_job(name, flags):
    size = "--vocab_size=300 --max_seq_length=32 --dupe_factor=1"
    flags = f"--input_file=text.txt --output_file={name}/x.tfrecord {size} {flags}"
    return job(f"data {name}", f"{DATA} {flags}", files=[f"{name}/**"])


def pretraining(name, data, flags, steps=20, **more):
    """A tiny pretraining in the folder NAME."""
    model = "--model=tiny --hidden_size=16 --intermediate_size=32 --num_hidden_layers=2"
    length = f"--num_train_steps={steps} --log_steps=5 --save_checkpoints_steps=10"
    flags = f"--input_file='{data}/*.tfrecord' --output_dir={name} {model} {length} {flags}"
    more = dict(files=[f"{name}/{pattern}" for pattern in RUN_FILES], environment=FAST) | more
    return job(f"pretrain {name}", f"{PRETRAIN} --learning_rate=1e-3 {flags}", **more)


def quick():
    data = [
        data_job("nsp", "--num_shards=2"),
        data_job("packed", "--objective=packed --masking=dynamic"),
        data_job("bare", "--validation_share=0 --random_seed=1"),
    ]
    texts = [job(f"{command} --helpfull", f"{command} --helpfull") for command in COMMANDS]
    texts += [job("--help", "--help"), job("--version", "--version")]
    shown = [
        job(f"{script} --show_config {flags}", f"{script} --show_config {flags}")
        for script, flags in (
            (DATA, "--input_file=text.txt"),
            (DATA, "--input_file=text.txt --recipe=modern"),
            (PRETRAIN, "--input_file='nsp/*.tfrecord' --seed=1"),
            (PRETRAIN, "--input_file='packed/*.tfrecord' --recipe=crammed --max_seq_length=32"),
            (PRETRAIN, "--recipe=bert --phase=2"),
            (CLASSIFY, "--init_checkpoint=adamw/model"),
            (CLASSIFY, "--init_checkpoint=adamw/model --recipe=roberta"),
        )
    ]
    runs = [
        pretraining("adamw", "nsp", "--train_batch_size=8"),
        pretraining("muon", "packed", "--train_batch_size=4 --optimizer=muon --norm_first"),
        pretraining(
            "replicas",
            "nsp",
            "--train_batch_size=4 --virtual_replicas=2 --gradient_accumulation_steps=2",
        ),
        pretraining(
            "bfloat16", "packed", "--train_batch_size=4 --precision=bfloat16 --padding=dynamic"
        ),
    ]
    step = (
        "--input_file='../../bare/*.tfrecord' --output_dir=run --num_train_steps=1 --xla=on "
        "--train_batch_size=2 --notensorboard --quiet "
        "--model=tiny --max_position_embeddings=32"
    )
    files = [
        "xla/*before_optimizations.txt",
        "run/model/model.safetensors",
        "run/model/config.json",
    ]
    variants = job(
        "variant", f"{PRETRAIN} {step}", folder="variants", files=files, environment=DUMP
    ) | dict(variants=True)
    return [data, runs, [*texts, *shown, variants]]


TIERS = {"quick": quick, "full": quick}
