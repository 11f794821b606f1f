"""The jobs of the two tiers, in stages: a job may read what an earlier stage wrote.

A job is a dict: name, command, folder in which it runs, files (patterns in the folder, compared),
and where needed environment, stdin, edits of JSON files and cuts (files without another's last
bytes) made before it, kill_at (a pattern: the process is killed when it has a match).
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
    *("data", "pretrain", "classify", "vocab", "fill-mask", "evaluate", "import"),
    *("export", "embed", "search", "report", "runs", "doctor", "launch"),
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


def classifying(name, flags, **more):
    """A fine-tuning in the folder tuned/NAME."""
    length = "--max_seq_length=24 --train_batch_size=16 --num_train_epochs=2 --log_steps=4"
    flags = f"--init_checkpoint=adamw/model --output_dir=tuned/{name} {length} {flags}"
    more = dict(files=[f"tuned/{name}/**"], environment=FAST) | more
    return job(f"classify {name}", f"{CLASSIFY} --learning_rate=2e-3 {flags}", **more)


def full():
    data, runs, rest = quick()
    demo = dict(folder="demo")
    data += [
        job("demo data", DATA, files=["data/**"], **demo),
        job("vocabulary", "vocab --input_file=text.txt --vocab_size=300 --vocab_file=v.txt"),
        job(
            "SentencePiece",
            "vocab --input_file=text.txt --vocab_size=300 --tokenization=SentencePiece "
            "--sp_model_file=s.model",
            files=["s.model"],
        ),
    ]
    killed = "--train_batch_size=4 --precision=float16"
    kept = "--train_batch_size=8 --num_warmup_steps=0 --curve=constant --save_checkpoints_steps=2"
    rolls = "--max_bad_steps=2 --on_divergence=rollback"
    runs += [
        job(
            "demo pretrain",
            PRETRAIN,
            files=[f"runs/pretrain/{pattern}" for pattern in RUN_FILES],
            **demo,
        ),
        *(
            pretraining(name, "packed", f"--train_batch_size=4 --optimizer={name} {more}")
            for name, more in (("lamb", ""), ("adamw8bit", "--xla=on"))
        ),
        pretraining("whole", "nsp", killed, steps=200),
        pretraining("killed", "nsp", killed, 200, kill_at="killed/checkpoints/step-*10/p*.json"),
        pretraining(
            "ramp",
            "nsp",
            "--train_batch_size=4 --global_batch_size=16 --batch_ramp_proportion=0.5 "
            "--finetune_time_markers=0.5,1 --recompute --steps_per_loop=2",
        ),
        pretraining("rollback", "nsp", kept, 4, files=[]),
    ]
    resumed = [
        job("demo classify", CLASSIFY, files=["runs/classify/**"], **demo),
        pretraining("killed", "nsp", killed, 200) | dict(name="resume killed"),
        pretraining(
            "rollback",
            "nsp",
            f"{kept} {rolls}",
            40,
            edits={"rollback/run.json": dict(learning_rate=1e30)},
        )
        | dict(name="rollback"),
        classifying("pairs", "--data_dir=pairs"),
        classifying("topics", "--task_name=single --data_dir=topics --padding=uniform"),
        classifying("scores", "--task_name=single --data_dir=scores --task_kind=regression"),
        classifying("labels", "--task_name=single --data_dir=labels --task_kind=multilabel"),
        classifying("ner", "--task_name=ner --data_dir=ner"),
        classifying(
            "squad", "--task_name=squad --data_dir=squad --max_query_length=8 --doc_stride=4"
        ),
        classifying("similar", "--task_name=similarity --data_dir=similar"),
        classifying("measured", "--task_name=similarity --data_dir=scored_pairs"),
        classifying(
            "sweep",
            "--data_dir=pairs --grid=seed=1,2 --num_trials=2 --dev_share=.2",
        ),
    ]
    used = [
        *(
            job(
                f"export {kind}",
                f"export --from={source} --to=exported/{kind} --format={kind}",
                files=[f"exported/{kind}/**"],
            )
            for kind, source in (
                ("huggingface", "muon"),
                ("google", "adamw"),
                ("garden", "adamw"),
            )
        ),
        job("import", "import --from=adamw/model --to=imported", files=["imported/**"]),
        job("fill-mask", "fill-mask --model=adamw/model --input=masked.txt"),
        job(
            "embed",
            "embed --model=adamw/model --input=masked.txt --output=e.npy",
            files=["e.npy"],
        ),
        job("runs", "runs demo/runs"),
        job("report", "report --output=report.html adamw lamb"),
        job(
            "classify predict",
            f"{CLASSIFY} --do_predict --output_dir=tuned/pairs --predict_file=predict.tsv",
            files=["tuned/pairs/predictions.tsv"],
        ),
        *(
            job(
                f"classify {name} again",
                f"{CLASSIFY} --do_eval --do_predict --init_checkpoint=tuned/{name}/model "
                f"--output_dir=again/{name}",
                files=[f"again/{name}/**"],
                environment=FAST,
            )
            for name in ("pairs", "scores", "labels", "ner", "squad", "similar", "measured")
        ),
        job(
            "export savedmodel",
            "export --from=tuned/topics/model --to=exported/savedmodel --format=savedmodel",
            files=["exported/savedmodel/*.json"],
        ),
    ]
    wrong = [wrong_job(*row) for row in enumerate(WRONG.strip().splitlines())]
    return [data, runs, [*rest, *resumed], [*used, *wrong]]


def wrong_job(number, line):
    """A command that fails, or warns, with an output of its own. Data and models are named where
    the line does not.
    """
    command, _, flags = line.strip().partition(" ")
    for flag, value in NAMED.get(command, {}).items():
        if f"--{flag}=" not in line:
            flags += f" --{flag}={value.format(number)}"
    cuts = {"cut.tfrecord": "nsp/x-00000-of-00002.tfrecord"} if "cut.tfrecord" in line else {}
    more = dict(environment=FAST, seconds=120, cuts=cuts)
    return job(f"wrong: {line.strip()}", f"{command} {flags}", **more)


NAMED = dict(
    data=dict(input_file="text.txt", output_file="new/{}/x.tfrecord", max_seq_length="32"),
    pretrain=dict(input_file="nsp/*.tfrecord", output_dir="new/{}", num_train_steps="2"),
    classify=dict(init_checkpoint="adamw/model", output_dir="new/{}", data_dir="pairs"),
)
WRONG = """
data --learning_rte=1
data --max_seq_length=many
data --max_seq_length=2
data --masked_lm_prob=1.5
data --input_file=nothing.txt
data --input_file=empty.txt
data --input_file=line.txt
data --input_file=latin.txt
data --input_file=null.txt
data --input_file=bad.gz
data --input_file=bad.parquet
data --input_file=bad.jsonl
data --input_file=other.jsonl
data --input_file=text.txt --input_format=jsonl
data --output_file=text.txt/x.tfrecord
data --output_file=foreign
data --output_file=nsp/x.tfrecord --dupe_factor=3
data --vocab_file=nothing.txt
data --vocab_file=vocab_twice.txt
data --vocab_file=vocab_bare.txt
data --vocab_file=nsp/vocab.txt --vocab_size=300
data --vocab_size=20
data --objective=packed --dupe_factor=3
data --objective=nsp --pack_separator=sep
data --masking=static --objective=other
data --tokenization=SentencePiece --sp_model_file=bare_model/config.json
data --do_whole_word_mask --max_ngram_size=3 --masking=dynamic
data --recipe=crammed --max_predictions_per_seq=1000
data --recipe=nothing
data --language=xx
data --strict --drop_duplicates --text_field=body
data --do_lower_casing
data --num_shards=0
data --ray_address=nowhere:1 --num_workers=-1
pretrain --train_batch_size=0
pretrain --learning_rate=0 --num_train_steps=0
pretrain --train_batch_size=8 --global_batch_size=12
pretrain --input_file=nothing/*
pretrain --input_file=bad.tfrecord
pretrain --input_file=nsp/*.tfrecord,packed/*.tfrecord
pretrain --input_file=text.txt
pretrain --input_file=cut.tfrecord --vocab_file=nsp/vocab.txt
pretrain --model=huge
pretrain --model=tiny --bert_config_file=config.json
pretrain --bert_config_file=config.json
pretrain --bert_config_file=broken.json
pretrain --num_attention_heads=3
pretrain --vocab_size=1000
pretrain --max_position_embeddings=16 --model=tiny
pretrain --vocab_file=vocab_bare.txt
pretrain --output_dir=foreign
pretrain --output_dir=text.txt
pretrain --output_dir=bad_run
pretrain --output_dir=tuned/topics --model=tiny
pretrain --output_dir=adamw --learning_rate=5e-3
pretrain --output_dir=muon --model=tiny
pretrain --output_dir=lamb --overwrite --init_checkpoint=lamb/model
pretrain --init_checkpoint=nowhere
pretrain --init_checkpoint=foreign
pretrain --init_checkpoint=bare_model
pretrain --init_checkpoint=adamw/model --hidden_size=32
pretrain --num_gpus=4
pretrain --virtual_replicas=0
pretrain --precision=int8
pretrain --precision=bfloat16 --all_reduce=nccl
pretrain --optimizer=sgd
pretrain --optimizer=adamw --muon_lr_ratio=0.5
pretrain --curve=cosine --polynomial_power=3
pretrain --lr_schedule=time
pretrain --total_training_time=soon
pretrain --warmup_proportion=2
pretrain --freeze=[
pretrain --freeze=nothing
pretrain --layer_lr_decay=0.5 --optimizer=lamb --model=tiny
pretrain --validation_marks=2
pretrain --on_divergence=pray
pretrain --best_metric=accuracy --export_best
pretrain --recompute_every=3
pretrain --recipe=crammed --hidden_size=10
pretrain --recipe=bert --phase=2
pretrain --recipe=modern --phase=2
pretrain --flagfile=flags.txt
pretrain --flagfile=unknown_flags.txt
pretrain --flagfile=loop_flags.txt
pretrain --flagfile=nothing.txt
pretrain --per_device_train_batch_size=none
pretrain --gradient_checkpointing=perhaps
pretrain --use_tpu=true
pretrain --fp16 --bf16
pretrain --warmup_steps=-5
pretrain --encoder=albert
pretrain --model=tiny --norm_type=batch
pretrain --model=tiny --embedding_size=0
pretrain --model=tiny --num_hidden_groups=3
pretrain --gpu_memory_limit=10 --xla=perhaps
pretrain extra
classify --data_dir=nowhere
classify --data_dir=foreign
classify --data_dir=ragged
classify --data_dir=unlabelled
classify --data_dir=one_label
classify --data_dir=new_label
classify --data_dir=no_numbers --task_kind=regression
classify --data_dir=topics
classify --text_a=first
classify --label=labels
classify --task_name=nothing
classify --task_name=mnli
classify --task_name=ner --data_dir=bad_tags
classify --task_name=squad --data_dir=bad_squad
classify --task_name=squad --data_dir=squad --doc_stride=500
classify --task_kind=tagging
classify --max_seq_length=4000
classify --init_checkpoint=foreign
classify --init_checkpoint=none
classify --init_checkpoint=none --model=tiny
classify --output_dir=ramp
classify --output_dir=tuned/scores --learning_rate=1 --task_name=single --data_dir=scores
classify --do_eval
classify --do_predict --output_dir=tuned/pairs --predict_file=predict_other.tsv
classify --do_predict --output_dir=tuned/labels --predict_file=nothing.tsv
classify --class_weights=1,2,3
classify --class_weights=heavy
classify --positive_label=maybe
classify --label_smoothing=0.1 --task_kind=regression --data_dir=scores --task_name=single
classify --dev_share=1
classify --pooling=max
classify --do_lower_case=perhaps
classify --best_metric=bleu
classify --evaluation_strategy=sometimes
vocab --input_file=text.txt --vocab_size=5 --vocab_file=v5.txt
vocab --input_file=text.txt --vocab_file=text.txt
vocab --input_file=nothing --vocab_file=v6.txt
fill-mask --model=nowhere "The [MASK]"
fill-mask --model=adamw/model "The sea is red."
fill-mask --model=adamw/model --input=unmasked.txt
fill-mask --model=adamw/model --top_k=0 "The [MASK]"
fill-mask --model=tuned/pairs/model "The [MASK]"
embed --model=foreign --input=masked.txt --output=x1.npy
embed --model=adamw/model --input=nothing.txt --output=x2.npy
embed --model=adamw/model --input=masked.txt --output=foreign
embed --model=adamw/model --input=masked.txt --output=x.npy --pooling=max
embed --model=adamw/model --input=masked.txt --output=x.npy --max_seq_length=4000
import --from=nowhere --to=i1
import --from=foreign --to=i2
import --from=adamw/model --to=foreign
import --from=bare_model --to=i3
import --to=i4
export --from=adamw --to=e1 --format=pickle
export --from=adamw --to=adamw/model
export --from=muon --to=e2 --format=google
export --from=tuned/pairs --to=e3 --format=google
export --from=adamw --to=e4 --precision=int8
report nowhere
report --output=foreign adamw
report
runs nowhere
runs bad_run
runs --jsn
doctor extra
launch
launch --num_workers=0 -- pretrain
launch -- nothing
nothing
"""
TIERS = {"quick": quick, "full": full}
