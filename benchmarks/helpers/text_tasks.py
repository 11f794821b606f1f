"""Labelled tasks made from any text of sentences in documents: whether two sentences are from the
same document, and whether two neighbouring words of a sentence have changed places (bigram shift,
Conneau et al. 2018, arXiv 1805.01070, section 3).
"""

import random

WORDS = range(6, 31)  # of a sentence that a task takes
SPLITS = dict(train=4000, dev=1000, test=2000)  # examples


def read_documents(path):
    """Return the documents, lists of sentences, of a text in BERT's format."""
    with open(path, encoding="utf-8") as file:
        parts = file.read().split("\n\n")
    return [lines for part in parts if (lines := [line for line in part.splitlines() if line])]


def hold_out(documents, share, seed=0):
    """Return (the other documents, a share of them), drawn at random."""
    order = list(range(len(documents)))
    random.Random(seed).shuffle(order)
    drawn = set(order[: max(8, round(share * len(documents)))])
    others = [document for index, document in enumerate(documents) if index not in drawn]
    return others, [documents[index] for index in sorted(drawn)]


def fit(document):
    """Return the sentences of a document that a task takes."""
    return [sentence for sentence in document if len(sentence.split()) in WORDS]


def same_document(documents, count, chance):
    """Return `count` rows (text_a, text_b, label): "1" for two sentences of a document that are not
    neighbours, "0" for sentences of two documents; as many of both.
    """
    sentences = [lines for document in documents if len(lines := fit(document)) > 2]
    rows = []
    for index in range(count):
        own = chance.choice(sentences)
        first = chance.randrange(len(own))
        if index % 2:
            far = [other for other in range(len(own)) if abs(other - first) > 1]
            if not far:  # the middle one of three
                first, far = 0, [2]
            second = own[chance.choice(far)]
        else:
            second = chance.choice(
                chance.choice([other for other in sentences if other is not own])
            )
        rows.append((own[first], second, str(index % 2)))
    chance.shuffle(rows)
    return rows


def shifted_words(documents, count, chance):
    """Return `count` rows (text_a, label): sentences, half of them, "1", with two neighbouring
    words inside them in the other order; no sentence occurs twice.
    """
    sentences = sorted({sentence for document in documents for sentence in fit(document)})
    chance.shuffle(sentences)
    rows = []
    for sentence in sentences:
        words = sentence.split()
        places = [
            index
            for index in range(1, len(words) - 2)
            if words[index].isalpha()
            and words[index + 1].isalpha()
            and words[index].lower() != words[index + 1].lower()
        ]
        if not places or len(rows) == count:
            continue
        if len(rows) % 2:
            place = chance.choice(places)
            words[place : place + 2] = reversed(words[place : place + 2])
        rows.append((" ".join(words), str(len(rows) % 2)))
    chance.shuffle(rows)
    return rows


TASKS = {  # {name: (maker, columns)}
    "same document": (same_document, ("text_a", "text_b", "label")),
    "shifted words": (shifted_words, ("text_a", "label")),
}


def write_rows(path, columns, rows):
    lines = ["\t".join(columns), *("\t".join(" ".join(x.split()) for x in row) for row in rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_tasks(documents, folder, splits=None, seed=0):
    """Write each task to folder/NAME/{train,dev,test}.tsv; no two splits share a document."""
    splits = splits or SPLITS
    total = sum(splits.values())
    first = 0
    bounds = {}
    for split, size in splits.items():
        bounds[split] = (first * len(documents) // total, (first + size) * len(documents) // total)
        first += size
    for name, (make, columns) in TASKS.items():
        for split, size in splits.items():
            start, end = bounds[split]
            rows = make(documents[start:end], size, random.Random(f"{seed} {name} {split}"))
            write_rows(folder / name.replace(" ", "-") / f"{split}.tsv", columns, rows)
