"""Writes the model card, README.md in a model's folder: what the model is, how it was trained, and
how to open it in each library.

The card is made from the model's own configuration and from facts on its training that the caller
has read in run.json and dataset.json (runs/card_facts.py). Without these facts, the card says that
nothing is known of the training.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np

import bert_gpu
from bert_gpu.interop.families import auto_class
from bert_gpu.interop.formats import OURS, Model, format_names
from bert_gpu.interop.heads import ARCHITECTURES, is_left_out
from bert_gpu.text.vocabulary.file import num_pieces


def readme(model: Model, usage: Mapping[str, Sequence[str]], library: str | None = None) -> bytes:
    """Return the bytes of README.md for a model.

    Args:
      usage: {title of a way to open the folder, such as "In onnxruntime": lines of code}.
      library: name of the library that opens the folder, for Hugging Face's index; None = the card
        names none.
    """
    sections: Mapping[str, str | Mapping[str, str]] = {
        "The model": architecture(model),
        **(model.card or {"Training": "Nothing beside the model says how it was trained."}),
    }
    parts = [
        front_matter(model, library),
        f"# {ARCHITECTURES[model.notes.architecture].title}",
        f"Written by bert-gpu {bert_gpu.__version__}.",
    ]
    for title, content in sections.items():
        parts += [f"## {title}", content if isinstance(content, str) else table(content)]
    parts.append("## How to open it")
    for place, code in usage.items():
        parts += [f"{place}:", "\n".join(f"    {line}" for line in code)]
    return ("\n\n".join(parts) + "\n").encode()


def front_matter(model: Model, library: str | None) -> str:
    """Return the head of the model card: lines of metadata (YAML) that Hugging Face's index
    reads.
    """
    is_sentence = model.notes.embedding.is_known
    library = "sentence-transformers" if library and is_sentence else library
    task = ARCHITECTURES[model.notes.architecture].task
    lines = [f"library_name: {library}"] if library else []
    lines += [
        f"pipeline_tag: {'sentence-similarity' if is_sentence else task}",
        "tags:",
        "- bert",
        "- bert-gpu",
    ]
    return "\n".join(["---", *lines, "---"])


def table(facts: Mapping[str, str]) -> str:
    """Return a Markdown table of facts, {name: text}, with a row for each."""

    def cell(text: str) -> str:
        return " ".join(str(text).split()).replace("|", "\\|")

    rows = [f"| {cell(name)} | {cell(text)} |" for name, text in facts.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def architecture(model: Model) -> dict[str, str]:
    """Return {name: text} of the facts for the card that a model's configuration and tokenizer
    give.
    """
    config = model.config
    num_weights = sum(
        np.size(value)
        for name, value in model.weights.items()
        if not is_left_out(name, model.notes.architecture)
    )
    facts = {
        "Architecture": "BERT" if config.is_classic else "BERT variant",
        "Weights": f"{num_weights:,}",
        "Layers": f"{config.num_hidden_layers} of width {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward {config.intermediate_size}",
        "Longest text": f"{model.notes.max_seq_length or config.num_positions} tokens",
    }
    facts |= {"Longer texts": model.longer_texts} if model.longer_texts else {}
    if not config.is_classic:
        values = config.to_dict()
        facts["Differs from BERT in"] = ", ".join(
            f"{name}={json.dumps(values[name])}" for name in config.departures()
        )
    if model.tokenizer is None:
        facts["Vocabulary"] = f"{config.vocab_size:,} pieces, which are not in the folder"
    else:
        casing = "lower-cased" if model.tokenizer.do_lower_case else "cased"
        size = f"{num_pieces(model.tokenizer.vocab):,} pieces"
        facts["Vocabulary"] = f"{model.tokenizer.kind}, {size}, {casing}"
    rules = model.notes.embedding
    if rules.is_known:
        length = ", scaled to length 1" * rules.is_normalized
        facts["Vector of a text"] = (
            f"{rules.pooling} pooling{length}; before a query {rules.query_prefix!r}, "
            f"before a passage {rules.passage_prefix!r}"
        )
    if model.notes.labels and model.notes.problem_type != "regression":
        labels = model.notes.labels
        more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
        facts["Classes"] = ", ".join(labels[:20]) + more
    return facts


def transformers_usage(
    architecture: str, remote: bool, is_sentence: bool = False
) -> dict[str, tuple[str, ...]]:
    """Return {title: lines of Python} that open a folder in transformers with the class for
    `architecture` and, for a sentence model, in sentence-transformers. remote: whether Python code
    in the folder computes the model.
    """
    auto = auto_class(architecture)
    more = ", trust_remote_code=True" if remote else ""
    lines = (
        f"from transformers import {auto}, AutoTokenizer",
        f'model = {auto}.from_pretrained("FOLDER"{more})',
        f'tokenizer = AutoTokenizer.from_pretrained("FOLDER"{more})',
    )
    sentence_lines = (
        "from sentence_transformers import SentenceTransformer",
        f'model = SentenceTransformer("FOLDER"{more})',
        "vectors = model.encode_document(texts)  # model.encode_query(questions)",
    )
    usage: dict[str, tuple[str, ...]] = {"In Hugging Face's transformers": lines}
    return {"In sentence-transformers": sentence_lines, **usage} if is_sentence else usage


def own_usage(architecture: str) -> dict[str, tuple[str, ...]]:
    """Return {title: lines of shell commands} that use a bert-gpu folder, or write it in another
    format.
    """
    train = "python run_classifier.py --init_checkpoint=FOLDER --data_dir=DATA"
    mask = 'python -m bert_gpu fill-mask --model=FOLDER "the capital of france is [MASK] ."'
    export = "python -m bert_gpu export --from=FOLDER --to=NEW --format"
    row = ARCHITECTURES[architecture]
    lines = [mask] if "mlm" in row.heads else []
    lines.append(f"{train} --do_predict" if row.own else train)
    lines += [f"{export}={name}" for name in format_names(writes=True) if name != OURS]
    return {"With bert-gpu": tuple(lines)}
