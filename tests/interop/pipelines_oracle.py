"""Runs where torch and transformers are installed: opens model folders through pipelines, with text
that is far too long for them.

    python pipelines_oracle.py TASKS.json OUTPUT.json
        TASKS.json: [[task, folder, text]] -> OUTPUT.json: [what the pipeline says]
        It also runs the lines of each folder's model card.

Kept apart from the tests, because torch and TensorFlow need not live in one environment.
"""

import json
import pathlib
import sys

import transformers

CUTS = {
    "fill-mask": dict(tokenizer_kwargs=dict(truncation=True), top_k=5),
    "text-classification": dict(truncation=True, top_k=None),
    "ner": {},  # cuts by itself
}


def answer(folder, text, remote):
    """The question-answering model's logits for a question and its text, cut to what it takes."""
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder, **remote).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(*text, truncation="only_second", return_tensors="pt")
    outputs = model(**inputs)
    return dict(length=inputs["input_ids"].shape[1], starts=outputs.start_logits.tolist()[0])


def run_card(folder):
    """Opens a folder as its model card says."""
    card = pathlib.Path(folder, "README.md").read_text()
    lines = card.partition("In Hugging Face's transformers:\n\n")[2].splitlines()
    code = "\n".join(line.strip() for line in lines if line.startswith("    "))
    opened = {}
    exec(code.replace("FOLDER", folder), opened)
    assert opened["model"].config.vocab_size == len(opened["tokenizer"]), code


def main(tasks, output):
    found = []
    for task, folder, text in json.loads(pathlib.Path(tasks).read_text()):
        run_card(folder)
        said = json.loads(pathlib.Path(folder, "config.json").read_text())
        remote = dict(trust_remote_code=True) if "auto_map" in said else {}
        known = transformers.pipelines.get_supported_tasks()
        if task == "question-answering" and task not in known:
            found.append(answer(folder, text, remote))
            continue
        pipe = transformers.pipeline(task, model=folder, **remote)
        if task == "question-answering":
            found.append(pipe(question=text[0], context=text[1]))
        else:
            found.append(pipe(text, **CUTS[task]))
    pathlib.Path(output).write_text(json.dumps(found, default=float))


if __name__ == "__main__":
    main(*sys.argv[1:])
