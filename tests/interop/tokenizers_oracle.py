"""Runs where transformers is installed: opens the tokenizers of model folders and tokenizes lines.

    python tokenizers_oracle.py LINES.json OUTPUT.json FOLDER...
        LINES.json: [text] -> OUTPUT.json: {FOLDER: {"ids": [[id]] without special pieces, "pair":
        ids and segments of the first two lines as a pair cut to 12 tokens, and its settings}}

Kept apart from the tests, because torch and TensorFlow need not live in one environment.
"""

import json
import pathlib
import sys

import transformers


def main(lines_path, output, *folders):
    lines = json.loads(pathlib.Path(lines_path).read_text())
    found = {}
    for folder in folders:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        pair = tokenizer(lines[0], lines[1], truncation=True, max_length=12)
        long = " ".join(lines[:200])
        found[folder] = dict(
            ids=tokenizer(lines, add_special_tokens=False, verbose=False)["input_ids"],
            pair=[pair["input_ids"], pair.get("token_type_ids")],
            limit=tokenizer.model_max_length,
            cut=len(tokenizer(long, truncation=True)["input_ids"]),
            masked=tokenizer("a [MASK] .")["input_ids"].count(tokenizer.mask_token_id),
            specials=[
                getattr(tokenizer, f"{name}_token_id") for name in ("pad", "unk", "cls", "sep")
            ],
        )
    pathlib.Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
