"""Runs where transformers is installed: opens the tokenizers of model folders.

    python settings_oracle.py OUTPUT.json FOLDER...
        -> OUTPUT.json: {FOLDER: {"settings": what the tokenizer has of its tokenizer_config.json,
        "inputs": the names of the arrays that it makes of a text}}

Kept apart from the tests, because torch and TensorFlow need not live in one environment.
"""

import json
import pathlib
import sys

import transformers

# facts on the files themselves, and on the class, which is another one in a copy
FILES = ("name_or_path", "is_local", "files_loaded", "backend", "tokenizer_file", "vocab_file")
OWN = ("vocabulary", "crc32c", "added_tokens_decoder", "local_files_only", "tokenizer_class")


def main(output, *folders):
    found = {}
    for folder in folders:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        settings = {
            key: value if isinstance(value, (bool, int, float, list, dict)) else str(value)
            for key, value in tokenizer.init_kwargs.items()
            if key not in (*FILES, *OWN)
        }
        names = ("truncation_side", "padding_side", "model_max_length", "split_special_tokens")
        settings |= {name: getattr(tokenizer, name) for name in names}
        settings["special"] = {k: str(v) for k, v in tokenizer.special_tokens_map.items()}
        found[folder] = dict(settings=settings, inputs=sorted(tokenizer("a text")))
    pathlib.Path(output).write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
