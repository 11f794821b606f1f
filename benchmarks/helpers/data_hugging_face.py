"""Hugging Face's code from a text to rows of ids, for the benchmark of data; needs a Python with
`datasets` and `tokenizers`.

    python data_hugging_face.py TEXT VOCAB FOLDER LENGTH transformers|tokenizers

"transformers" is what the examples' run_mlm.py does; "tokenizers" is the bare tokenizer, ids only.
VOCAB: a vocab.txt, or the tokenizer.json of any tokenizer (with "tokenizers").
"""

import itertools
import sys

from datasets import load_dataset
from tokenizers import BertWordPieceTokenizer, Tokenizer


def main(text, vocab, folder, length, kind):
    length = int(length)
    if vocab.endswith(".json"):
        tokenizer = Tokenizer.from_file(vocab)
    else:
        tokenizer = BertWordPieceTokenizer(vocab, lowercase=True)
    if kind == "transformers":
        from transformers import PreTrainedTokenizerFast

        special = dict(cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]")
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, **special)

    def tokenize(batch):
        if kind == "transformers":
            return tokenizer(batch["text"], return_special_tokens_mask=True)
        return {"input_ids": [encoding.ids for encoding in tokenizer.encode_batch(batch["text"])]}

    def group_texts(batch):
        joined = {name: list(itertools.chain(*rows)) for name, rows in batch.items()}
        whole = len(joined["input_ids"]) // length * length
        return {
            name: [row[start : start + length] for start in range(0, whole, length)]
            for name, row in joined.items()
        }

    data = load_dataset("text", data_files=text, split="train", cache_dir=folder + "/cache")
    data = data.filter(
        lambda batch: [bool(line) for line in batch["text"]], batched=True, num_proc=2
    )
    data = data.map(tokenize, batched=True, num_proc=2, remove_columns=["text"])
    data = data.map(group_texts, batched=True, num_proc=2)
    data.save_to_disk(folder + "/rows")
    print(len(data))


if __name__ == "__main__":
    main(*sys.argv[1:])
