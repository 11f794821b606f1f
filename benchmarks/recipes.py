"""Compares the recipes bert and crammed at one small size and one budget of time, on the same text,
machine and seeds.

    python benchmarks/recipes.py --text=corpus.txt --pairs=PAIRS_FOLDER --minutes=5 --seeds=3

The same flags shrink both (shape, batch), and both follow the clock, so that each learning rate
reaches 0 when the time is up; all else is as in the recipes, but that no document is dropped: the
limit on tokens per character is made for a vocabulary of 32,768. Both are evaluated on the same
rows, with equal masks, in a form that neither was trained on: whole sentences, 15 % masked, from
held-out documents. Both are fine-tuned on the pairs alike. Prints one table: the mean over the
seeds, the lowest and the highest value.
"""

import math
import statistics
import sys

from helpers.command import benchmark_parser, load_json, read_metrics, run_script, work_folder
from helpers.report import origin, print_origin, print_table

# The recipes' batches (256 and up to 8,192 rows) and bert's learning rate (1e-4) are for base and
# days of GPUs. These values are for minutes of a CPU, so that both make hundreds of updates. Only
# bert's learning rate was tuned: 2e-4, 5e-4 and 1e-3 gave similar results.
RECIPES = {
    "bert": dict(global_batch_size=32, learning_rate=5e-4),
    "crammed": dict(global_batch_size=128, learning_rate=1e-3),
}
NOTHING_DROPPED = 2.0  # tokens per character: a token has a character at least


def measure(recipe, seed, scratch, arguments):
    """{column: value} of one recipe and seed."""
    shape = dict(
        num_hidden_layers=arguments.layers,
        hidden_size=arguments.hidden_size,
        num_attention_heads=arguments.hidden_size // 32,
        intermediate_size=4 * arguments.hidden_size,
    )
    length = dict(max_seq_length=arguments.max_seq_length)
    run = scratch / f"{recipe}-{seed}"
    run_script(
        "run_pretraining_gpu.py",
        recipe=recipe,
        input_file=f"{scratch}/{recipe}/*.tfrecord",
        output_dir=run,
        num_gpus=0,
        seed=seed,
        precision="bfloat16",
        train_batch_size=arguments.batch_size,
        lr_schedule="time",
        total_training_time=arguments.minutes / 60,
        num_train_steps=arguments.steps,
        save_checkpoints_steps=10**6,
        max_predictions_per_seq=predictions(recipe, arguments.max_seq_length),
        **shape,
        **length,
        **RECIPES[recipe],
    )
    steps, _ = read_metrics(run)
    epochs = steps[-1]["epoch"]
    speeds = [line["tokens_per_second"] for line in steps if line["tokens_per_second"]]
    run_script(
        "run_pretraining_gpu.py",
        recipe=recipe,
        input_file=f"{scratch}/common/*.tfrecord",
        output_dir=run,
        num_gpus=0,
        precision="bfloat16",
        do_eval=True,
        max_predictions_per_seq=predictions("bert", arguments.max_seq_length),
        **shape,
        **length,
    )
    common = load_json(run / "eval_results.json")
    run_script(
        "run_classifier.py",
        init_checkpoint=run / "model",
        data_dir=arguments.pairs,
        output_dir=scratch / f"pairs-{recipe}-{seed}",
        num_gpus=0,
        seed=seed,
        precision="bfloat16",
        max_seq_length=arguments.max_seq_length,
        num_train_epochs=3,
        learning_rate=2e-4,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        do_train=True,
        do_eval=True,
    )
    pairs = load_json(scratch / f"pairs-{recipe}-{seed}" / "eval_results.json")
    return {
        "steps": steps[-1]["step"],
        "epochs": epochs,
        "tokens/s": statistics.median(speeds) if speeds else math.nan,
        "MLM loss": common["mlm_loss"],
        "MLM accuracy": common["mlm_accuracy"],
        "pairs accuracy": pairs["accuracy"],
        "pairs AUC": pairs["auc"],
    }


def predictions(recipe, length):
    """Masked tokens of a row, by the recipe's share."""
    return round({"bert": 20 / 128, "crammed": 32 / 128}[recipe] * length)


def make_parser():
    parser = benchmark_parser(__doc__, "text", "pairs")
    parser.add_argument("--minutes", type=float, default=5.0, help="time of each training")
    parser.add_argument(
        "--steps", type=int, default=10**9, help="end each training after so many steps"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="rows of a micro-batch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument("--max_seq_length", type=int, default=64)
    parser.add_argument("--vocab_size", type=int, default=8192)
    return parser


def main():
    arguments = make_parser().parse_args()
    print_origin(origin())
    with work_folder() as scratch:
        common = dict(
            input_file=arguments.text, max_seq_length=arguments.max_seq_length, num_shards=1
        )
        run_script(
            "create_pretraining_data.py",
            **common,
            recipe="crammed",
            max_tokens_per_character=NOTHING_DROPPED,
            output_file=f"{scratch}/crammed/text.tfrecord",
            **sizes("crammed", arguments),
        )
        vocab = dict(vocab_file=f"{scratch}/crammed/vocab.txt")
        run_script(
            "create_pretraining_data.py",
            **common,
            **vocab,
            recipe="bert",
            output_file=f"{scratch}/bert/text.tfrecord",
            **sizes("bert", arguments),
        )
        held_out = dict(
            objective="full_sentences", masking="static", dupe_factor=1, **sizes("bert", arguments)
        )
        run_script(
            "create_pretraining_data.py",
            **common,
            **vocab,
            **held_out,
            output_file=f"{scratch}/common/text.tfrecord",
        )
        found = {recipe: [] for recipe in RECIPES}
        for seed in range(1, arguments.seeds + 1):
            for recipe in RECIPES:
                found[recipe].append(measure(recipe, seed, scratch, arguments))
                print(recipe, seed, found[recipe][-1], file=sys.stderr, flush=True)
        columns = list(found["bert"][0])
        print(
            f"{arguments.layers} layers x {arguments.hidden_size}, "
            f"S {arguments.max_seq_length}, {arguments.minutes:g} minutes each"
        )
        rows = [
            [recipe, *(spread([result[column] for result in results]) for column in columns)]
            for recipe, results in found.items()
        ]
        print_table(["recipe", *columns], rows)


def sizes(recipe, arguments):
    names = dict(vocab_size=arguments.vocab_size) if recipe == "crammed" else {}
    return names | dict(max_predictions_per_seq=predictions(recipe, arguments.max_seq_length))


def spread(values):
    shown = [
        f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3f}"
        for value in (statistics.mean(values), min(values), max(values))
    ]
    return f"{shown[0]} ({shown[1]}-{shown[2]})"


if __name__ == "__main__":
    main()
