"""create_pretraining_data.py: text -> TFRecords."""

import dataclasses
import time

from bert_gpu import environment
from bert_gpu.cli import flags
from bert_gpu.data.config import DataConfig, InputConfig
from bert_gpu.recipes import RecipeConfig
from bert_gpu.settings import Settings, setting
from bert_gpu.text.config import TextFormat

SUMMARY = (
    "Turns text (one sentence a line, a blank line between documents) into TFRecords for BERT pretraining. Learns a WordPiece vocabulary "
    "from the text when none is named. A killed job goes on where it was when the same command is given again."
)
EXAMPLE = (
    "python create_pretraining_data.py",
    "python create_pretraining_data.py --input_file='books/*.txt' --output_file=data/books.tfrecord --vocab_size=32768",
    "python create_pretraining_data.py --input_file=corpus.txt --vocab_file=vocab.txt --max_seq_length=512",
    "python create_pretraining_data.py --input_file=corpus.txt --recipe=crammed",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowConfig(Settings):
    """A look at the result."""

    show: int = setting(0, "Print this many instances of the data set, decoded.", low=0)


def main(argv):
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, [DataConfig, RecipeConfig, TextFormat, ShowConfig, flags.CommonConfig], script="data")
    common, show = parsed.make(flags.CommonConfig), parsed.make(ShowConfig)
    config = parsed.make(DataConfig, **{} if parsed.given("input_file") else dict(input_file=flags.bundled("sample_text.txt")))
    text_format = parsed.make(TextFormat)
    if common.show_config:
        print(flags.describe(parsed, [config, parsed.make(RecipeConfig), text_format, show, common]))
        return
    with environment.quick_imports():
        from bert_gpu.data.build import Job
        from bert_gpu.train.monitor import Console, format_seconds
    console = Console(common.quiet)
    job = Job(config, common.overwrite, text_format)
    folder = config.folder
    if job.status == "finished":
        job.target.sweep()
        console.say(f"{folder}: this data set is already there; nothing to do (--overwrite builds it again)")
    else:
        console.say(f"{len(job.inputs)} file{'s' if len(job.inputs) > 1 else ''}, {job.num_bytes / 1e6:.1f} MB")
        started = time.monotonic()
        manifest, counts, num_duplicates = job.run(console)
        console.say(summary(manifest, counts, num_duplicates, config, format_seconds(time.monotonic() - started)))
    if show.show:
        show_instances(config, show.show)


def summary(manifest, counts, num_duplicates, config, duration):
    """What was written, as lines. manifest, counts, num_duplicates: of Job.run. duration: as people read it."""
    share = counts.num_random_next / max(1, counts.num_instances)
    num_shards = len(manifest.train_shards) + len(manifest.validation_shards)
    padding = 1 - counts.num_row_tokens / max(1, counts.num_instances * config.max_seq_length)
    dropped = [(num_duplicates, "duplicates"), (counts.num_dropped, "with too many tokens a character")]
    dropped = ", ".join(f"{number:,} {what}" for number, what in dropped if number)
    rows = [
        ("documents", f"{counts.num_documents:,}" + (f"; dropped: {dropped}" if dropped else "")),
        ("sentences", f"{counts.num_sentences:,}"),
        ("tokens", f"{counts.num_tokens:,}, of which [UNK] {counts.num_unknown / max(1, counts.num_tokens):.2%}"),
        ("vocabulary", f"{manifest.vocab_size:,} pieces in {config.folder}/{manifest.vocab_file}"),
        ("instances", f"{manifest.num_train_instances:,} training, {manifest.num_validation_instances:,} validation"),
        *([("random next" if config.objective == "nsp" else "swapped", f"{share:.1%}")] if config.objective in ("nsp", "sop") else []),
        ("padding", f"{padding:.1%} of all positions"),
        ("written", f"{counts.num_bytes / 1e6:.1f} MB in {num_shards} shards to {config.folder}/ in {duration}"),
    ]
    return "\n".join(f"  {name:<12}{text}" for name, text in rows)


def show_instances(config, number):
    """Prints instances of the data set as pieces, with what is predicted."""
    from bert_gpu.data.dataset import Dataset
    from bert_gpu.data.manifest import read_manifest
    from bert_gpu.data.pipeline import evaluation_batches
    from bert_gpu.text.open_tokenizer import open_tokenizer

    manifest = read_manifest(config.folder)
    tokenizer = open_tokenizer(f"{config.folder}/{manifest.vocab_file}", manifest.do_lower_case)
    data = Dataset(InputConfig(input_file=",".join(manifest.paths(config.folder, "train"))))
    shown = 0
    for batch in evaluation_batches(data.reader("train", tokenizer, config.random_seed), batch_size=min(number, 64)):
        for row in range(len(batch["input_ids"])):
            if shown == number or not batch["row_weights"][row]:
                return
            length = int(batch["input_mask"][row].sum())
            is_real = batch["masked_lm_weights"][row] > 0
            wanted = zip(batch["masked_lm_positions"][row][is_real], batch["masked_lm_ids"][row][is_real], strict=True)
            print(" ".join(tokenizer.pieces(batch["input_ids"][row][:length])))
            print("  predict: " + ", ".join(f"{position} {tokenizer.vocab[piece]}" for position, piece in wanted))
            if "next_sentence_labels" in batch:
                print(f"  next sentence: {'random' if batch['next_sentence_labels'][row] else 'the real one'}\n")
            shown += 1
