"""The small files that jobs read: tables of tasks, and files that are wrong."""

import json
import pathlib
import random

COLOURS, OTHERS = "red green blue".split(), "house sea man whale ship day time water".split()


def write_files(folder):
    """Writes the files into a folder; the same ones each time."""
    draw = random.Random(1)
    for split, count in (("train", 64), ("dev", 16), ("test", 8)):
        tables = {"pairs": [], "topics": [], "scores": [], "labels": []}
        tables |= {"similar": [], "scored_pairs": []}
        tags, answers = [], []
        for number in range(count):
            words = draw.choices(COLOURS + OTHERS, k=6)
            text, colours = " ".join(words), sorted({word for word in words if word in COLOURS})
            label = "yes" if len(colours) > 1 else "no"
            tables["pairs"].append(dict(id=number, text_a=text, text_b=words[0], label=label))
            tables["topics"].append(dict(text=text, label=(colours or ["none"])[0]))
            tables["scores"].append(dict(text=text, label=len(colours) / 2))
            tables["labels"].append(dict(text=text, label=",".join(colours)))
            share = len(set(words[:3]) & set(colours)) / 3
            pair = dict(text_a=text, text_b=" ".join(words[:3]))
            tables["similar"].append(pair)
            tables["scored_pairs"].append(pair | dict(label=round(share, 2)))
            tags += [f"{word} {'B-COL' if word in COLOURS else 'O'}" for word in words] + [""]
            found = [dict(text=word, answer_start=text.index(word)) for word in colours[:1]]
            question = dict(id=f"{split}-{number}", question="which colour", answers=found)
            question |= dict(is_impossible=not found)
            answers.append(dict(context=text, qas=[question]))
        squad = dict(version="v2.0", data=[dict(title="", paragraphs=answers)])
        contents = {
            f"ner/{split}.txt": "\n".join(tags),
            f"squad/{split}-v2.0.json": json.dumps(squad),
        }
        for task, rows in tables.items():
            lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
            contents[f"{task}/{split}.tsv"] = "\n".join(lines) + "\n"
        write(folder, contents)
    table = (pathlib.Path(folder) / "pairs" / "train.tsv").read_text()
    wrong = {
        "empty.txt": "",
        "line.txt": "One sentence alone.\n",
        "latin.txt": b"caf\xe9 and more\n\nna\xefve\n" * 9,
        "null.txt": b"\0\1\2" * 999,
        "bad.gz": b"\x1f\x8b\x08" + b"no" * 99,
        "bad.parquet": b"PAR1" + b"no" * 99,
        "bad.jsonl": '{"text": "One."}\n{"text": \n',
        "other.jsonl": '{"body": "One."}\n' * 9,
        "bad.tfrecord": b"no" * 99,
        "flags.txt": "# of a run\n--learning_rate=fast\n",
        "unknown_flags.txt": "--train_batch_size=4\n--learning_rte=1\n",
        "loop_flags.txt": "--flagfile=loop_flags.txt\n",
        "vocab_twice.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsea\nsea\n",
        "vocab_bare.txt": "sea\nman\n",
        "config.json": '{"hidden_size": 10, "num_attention_heads": 3}',
        "broken.json": '{"hidden_size": ',
        "foreign/config.json": '{"model_type": "gpt2", "vocab_size": 9}',
        "foreign/note.txt": "of someone else\n",
        "bare_model/config.json": '{"model_type": "bert", "vocab_size": 9}',
        "ragged/train.tsv": table + "9\tone cell\n",
        "ragged/dev.tsv": table,
        "unlabelled/train.tsv": table.replace("\tyes\n", "\t\n"),
        "unlabelled/dev.tsv": table,
        "one_label/train.tsv": table.replace("\tyes\n", "\tno\n"),
        "one_label/dev.tsv": table,
        "new_label/train.tsv": table,
        "new_label/dev.tsv": table.replace("\tyes\n", "\tperhaps\n"),
        "no_numbers/train.tsv": table,
        "no_numbers/dev.tsv": table,
        "bad_tags/train.txt": "sea O\nman\n\nship O\n",
        "bad_tags/dev.txt": "sea O\n",
        "bad_squad/train-v1.1.json": '{"data": [{"paragraphs": [{"context": "sea"}]}]}',
        "bad_squad/dev-v1.1.json": '{"data": 3}',
        "predict.tsv": "text_a\ttext_b\nred sea\tblue\n",
        "predict_other.tsv": "first\tsecond\nred sea\tblue\n",
        "masked.txt": "The [MASK] is red.\nThe sea has a [MASK].\n",
        "unmasked.txt": "The sea is red.\n",
        "bad_run/run.json": "{",
        "bad_run/metrics.jsonl": "{}\n",
    }
    write(folder, wrong)


def write(folder, contents):
    for name, content in contents.items():
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
