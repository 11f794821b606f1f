"""Labels of tables of every kind equal a plain reading of the same rows, whichever way a row says
that it has none; shares leave every class in the training; labels that only other files have count
as wrong, as scikit-learn counts them.
"""

import collections
import dataclasses
import json
import math
import pathlib
import tempfile
import types

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from sklearn import metrics as oracle
from sklearn.preprocessing import MultiLabelBinarizer

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.finetune.describe import describe_overlap
from bert_gpu.finetune.files.parts import Part, share_of
from bert_gpu.finetune.files.splits import read_splits
from bert_gpu.finetune.tasks.metrics import compute_metrics
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from tests.finetune.evaluations import column, configured, evaluated, form_of, read, task_of

WORDS = ("yes", "no", "none", "null", "O", "B-1", "+", "maybe")
NUMBERS = (-1, 0, 1, 2, 10)
NAN = float("nan")
BLANK = {  # values that are no label wherever they stand
    "tsv": ("", "-", "nan", "NaN", " "),
    "csv": ("", "-", "nan", "NaN", " "),
    "jsonl": ("", "-", "nan", "NaN", None),
    "parquet": (None,),
}
PHASES = dict(train="train", dev="eval", test="predict")


def write(folder, split, kind, labels, names=(), texts=None):
    """Writes a table with an id, a text and a label a row. names: of classes, for the schema."""
    texts = texts or [f"text {split} {row}" for row in range(len(labels))]
    path = f"{folder}/{split}.{kind}"
    if kind == "parquet":
        rows = pyarrow.table(dict(id=[*map(str, range(len(labels)))], text=texts, label=labels))
        features = dict(label=dict(names=names, _type="ClassLabel"))
        note = json.dumps(dict(info=dict(features=features))) if names else "{}"
        parquet.write_table(rows.replace_schema_metadata(dict(huggingface=note)), path)
        return
    rows = zip(range(len(labels)), texts, labels, strict=True)
    with open(path, "w") as file:
        if kind == "jsonl":
            file.writelines(json.dumps(dict(id=i, text=t, label=x)) + "\n" for i, t, x in rows)
        else:
            mark = dict(tsv="\t", csv=",")[kind]
            file.writelines(mark.join(map(str, row)) + "\n" for row in [("id", "text", "label")])
            file.writelines(mark.join(map(str, row)) + "\n" for row in rows)


def config_of(folder, **changes):
    config = FinetuneConfig(task_name="single", data_dir=folder, **changes)
    return config, task_of(config)


@st.composite
def label_tables(draw):
    """(kind of file, names in its schema, {split: values of the labels}) of a classification."""
    kind = draw(st.sampled_from(sorted(BLANK)))
    numbers, names = draw(st.booleans()), ()
    if kind == "parquet" and draw(st.booleans()):
        numbers, names = True, draw(st.permutations(WORDS + ("-1", "0")))[:5]
    pool = range(len(names)) if names else NUMBERS if numbers else WORDS
    classes = draw(st.lists(st.sampled_from(pool), min_size=2, max_size=4, unique=True))
    others = [one for one in pool if one not in classes]
    is_text = kind in ("tsv", "csv") or (not numbers) or (kind == "jsonl" and draw(st.booleans()))
    is_float = numbers and draw(st.booleans())
    blank = [*BLANK[kind], *([] if not numbers else [-1] if names or kind == "jsonl" else [])]
    if kind == "parquet" and is_text:
        blank = [None, "", "-", "-1", "nan", "NaN"]
    elif kind == "parquet" and is_float:
        blank = [None, NAN, *([-1.0] if names else [])]
    elif kind != "parquet" and not numbers:
        blank += ["-1", "-1.0"]

    def spell(value):
        number = float(value) if is_float and draw(st.booleans()) else value
        if kind == "parquet" and is_float:
            number = float(value)
        return str(number) if is_text else number

    def values(of, least):
        cells = draw(st.lists(st.sampled_from([*of, None, None]), min_size=least, max_size=8))
        return [draw(st.sampled_from(blank)) if one is None else spell(one) for one in cells]

    train = [spell(one) for one in classes] + values(classes, 0)
    rows = dict(train=draw(st.permutations(train)))
    for split in ("dev", "test"):
        rows[split] = [spell(classes[0]), *values(classes + others[:2], 1)]
    return kind, names, rows


def plain_reading(names, rows):
    """(classes, {split: label of each row, None without one}) of the values of labels, by the words
    of the manual.
    """

    def text(value):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        cell = str(value).strip()
        if cell.lower() in ("", "-", "nan"):
            return None
        try:
            number = float(cell)
        except ValueError:
            return cell
        return str(int(number)) if number == int(number) else cell

    found = {split: [text(value) for value in values] for split, values in rows.items()}
    if names:
        found = {
            split: [None if one in (None, "-1") else names[int(one)] for one in values]
            for split, values in found.items()
        }
        return [one for one in names if one in found["train"]], found
    used = {one for one in found["train"] if one is not None}
    if all(one.lstrip("-").isdigit() for one in used):
        return sorted(used, key=int), found
    found = {split: [None if x == "-1" else x for x in xs] for split, xs in found.items()}
    return sorted(used - {"-1"}), found


@settings(max_examples=150)
@given(label_tables())
def test_labels_equal_a_plain_reading_of_the_table(table):
    kind, names, rows = table
    classes, wanted = plain_reading(names, rows)
    with tempfile.TemporaryDirectory() as folder:
        for split, values in rows.items():
            write(folder, split, kind, values, names)
        config, task = config_of(folder)
        task, found = read_splits(task, config, list(PHASES.values()))
        assert list(task.labels) == classes
        for split, phase in PHASES.items():
            [part], labels = found[phase], wanted[split]
            if split != "test":
                labels = [label for label in labels if label is not None]
            number = sum(label is None for label in wanted[split])
            assert len(part) == len(column(part, "ids")) == len(labels)
            assert any(f"{number:,} of the {split}" in one for one in part.warnings) == (number > 0)
            known = [*classes, *dict.fromkeys(one for one in labels if one not in (None, *classes))]
            targets = task.targets(part)
            read = zip(targets, part.label_codes, strict=True)
            assert [known[index] if code >= 0 else None for index, code in read] == labels
            lacking = collections.Counter(one for one in labels if one in known[len(classes) :])
            [warning] = [one for one in part.warnings if "lacks" in one] or [""]
            assert all(f"{label} ({count})" in warning for label, count in lacking.items())
            assert bool(lacking) == bool(warning)


CELLS = st.lists(st.sampled_from(["a", "b", "c", "1.0", "2"]), max_size=3, unique=True)


@settings(max_examples=60)
@given(st.lists(CELLS, min_size=1, max_size=6), st.lists(CELLS | st.none(), min_size=1), st.data())
def test_several_labels_equal_a_plain_reading_of_the_table(train, dev, data):
    train = [["a", "b"], *train]
    dev = [["a"], *dev]

    def spell(cell):
        if cell is None:
            return data.draw(st.sampled_from(["-", "NaN", "-1", "-1.0"]))
        return data.draw(st.sampled_from([",".join(cell), json.dumps(cell)]))

    with tempfile.TemporaryDirectory() as folder:
        write(folder, "train", "jsonl", [spell(cell) for cell in train])
        write(folder, "dev", "jsonl", [spell(cell) for cell in dev])
        config, task = config_of(folder, task_kind="multilabel")
        task, found = read_splits(task, config, ["train", "eval"])
        classes = task.labels
        for cells, [part] in ((train, found["train"]), (dev, found["eval"])):
            targets = task.targets(part)
            wanted = [{one.partition(".")[0] for one in cell} for cell in cells if cell is not None]
            assert [set(np.array(classes)[row[: len(classes)] > 0]) for row in targets] == [
                cell & set(classes) for cell in wanted
            ]
            assert targets.sum(1).tolist() == [len(cell) for cell in wanted]


@settings(max_examples=40)
@given(st.lists(st.sampled_from([-1, 0, 2.5, None, "nan", "-", ""]), min_size=1), st.booleans())
def test_numbers_equal_a_plain_reading_of_the_table(scores, predicts):
    scores = [1, *scores]
    values = [None if score in (None, "nan", "-", "") else float(score) for score in scores]
    with tempfile.TemporaryDirectory() as folder:
        write(folder, "test" if predicts else "train", "jsonl", scores)
        config, task = config_of(folder, task_kind="regression")
        phase = "predict" if predicts else "train"
        task, found = read_splits(task, config, [phase])
        [part] = found[phase]
        targets = task.targets(part)[part.label_codes >= 0]
        assert targets.tolist() == [value for value in values if value is not None]
        assert len(part) == (len(values) if predicts else len(targets))
        outputs = np.zeros((len(part), 1))
        path = task.write(folder, evaluated(examples=part, outputs=outputs))
        with open(path) as file:
            assert len(file.readlines()) == 1 + len(part)


@pytest.mark.parametrize("scores, has_scores", [([-1, 0.5], True), ([2, 0.5], False)])
def test_a_file_of_minus_ones_has_scores_where_the_training_has_that_score(
    tmp_path, scores, has_scores
):
    write(str(tmp_path), "train", "jsonl", scores)
    write(str(tmp_path), "test", "jsonl", [-1, -1])
    config, task = config_of(str(tmp_path), task_kind="regression")
    task, files = read_splits(task, config, ["train", "predict"])
    assert task.labels == ("score",)
    assert files["predict"][0].has_labels == has_scores


SHARES = st.sampled_from([0.0, 0.1, 0.3, 0.45])
# one of few texts, so that some occur several times, and its label or labels
EXAMPLES = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(["a", "b", "a,b", "c,d", "-", "1", "1.0"])),
    min_size=3,
)


@settings(max_examples=80)
@given(EXAMPLES, SHARES, SHARES, st.sampled_from(["classification", "multilabel"]), st.randoms())
def test_shares_leave_an_example_of_each_class_to_train(pairs, dev, test, kind, random):
    def split(pairs):
        """{split: Counter of (text, label)}, without empty splits."""
        with tempfile.TemporaryDirectory() as folder:
            texts, labels = zip(*pairs, strict=True)
            write(folder, "train", "tsv", labels, texts=[f"t{text}" for text in texts])
            shares = dict(dev_share=dev, test_share=test)
            config, _ = config_of(folder, task_kind=kind, **shares)
            found = {}
            for split, phase in PHASES.items():
                if split == "train" or shares[f"{split}_share"]:
                    try:
                        [part] = read(config, phase)
                    except UserError as error:
                        assert "no row of it belongs" in str(error) or "no example" in str(error)
                        assert split != "train"
                    else:
                        rows = (tuple(cells[1:]) for cells in column(part, "cells"))
                        found[split] = collections.Counter(rows)
            return found

    pairs = [(0, "a"), *pairs]
    whole = collections.Counter((f"t{text}", label) for text, label in pairs if label != "-")
    found = split(pairs)
    rows = {
        name: collections.Counter({row: n for row, n in part.items() if row[1] != "-"})
        for name, part in found.items()
    }
    assert sum(rows.values(), collections.Counter()) == whole

    def classes(label):
        parts = label.split(",") if kind == "multilabel" else [label]
        return {part.removesuffix(".0") for part in parts}

    every = set().union(*(classes(label) for _, label in whole))
    assert set().union(*(classes(label) for _, label in rows["train"])) == every
    texts = [{text for text, _ in part} for part in rows.values()]
    assert sum(map(len, texts)) == len(set().union(*texts))  # equal texts are in one split
    of_all = [share_of([f"t{text}", ""]) for text, _ in pairs]
    part = Part(None, test, test + dev).fitted(of_all)
    for name, low, high in (("test", 0, part.test_to), ("dev", part.test_to, part.train_from)):
        assert all(low <= share_of([text, ""]) < high for text, _ in rows.get(name, ()))
    highest = {  # the training takes no more than it must
        max(share_of([text, ""]) for text, label in whole if one in classes(label)) for one in every
    }
    taken = {share_of([text, ""]) for text, _ in rows["train"]}
    assert {share for share in taken if share < test + dev} <= highest
    random.shuffle(pairs)
    assert split(pairs) == found


@settings(max_examples=60)
@given(st.integers(2, 4), st.lists(st.integers(0, 6), min_size=8, max_size=30), st.randoms())
def test_classes_that_the_model_lacks_count_as_scikit_learn_counts_them(number, targets, random):
    targets = np.array([*range(number), *targets])
    outputs = np.random.default_rng(random.randrange(1000)).dirichlet([1] * number, len(targets))
    predicted, known = outputs.argmax(-1), targets < number
    found = compute_metrics(outputs, targets, ("accuracy", "f1", "f1_of_classes", "loss", "auc"))
    every = dict(average="macro", zero_division=0.0)
    f1 = oracle.f1_score(targets, predicted, labels=sorted({*range(number), *targets}), **every)
    assert found["accuracy"] == pytest.approx(np.mean(predicted == targets))
    assert found["f1_of_classes"] == pytest.approx(f1)
    first = oracle.f1_score(targets, predicted, labels=[1], **every)
    assert found["f1"] == pytest.approx(first if number == 2 else f1)
    loss = oracle.log_loss(targets[known], outputs[known], labels=range(number))
    assert found["loss"] == pytest.approx(loss)
    scores = outputs[known][:, 1] if number == 2 else outputs[known]
    auc = oracle.roc_auc_score(targets[known], scores, multi_class="ovr")
    assert found["auc"] == pytest.approx(auc)


@settings(max_examples=60)
@given(st.lists(st.sets(st.sampled_from("abcd")), min_size=2, max_size=12), st.randoms())
def test_several_labels_that_the_model_lacks_count_as_scikit_learn_counts_them(truth, random):
    truth, labels = [{"a"}, {"b"}, *truth], "ab"
    columns = labels + "".join(one for one in "cd" if any(one in row for row in truth))
    outputs = np.random.default_rng(random.randrange(1000)).random((len(truth), 2))
    answers = [{"ab"[i] for i in np.flatnonzero(row > 0.5)} for row in outputs]
    encode = MultiLabelBinarizer(classes=list(columns)).fit_transform
    targets = encode(truth)
    found = compute_metrics(outputs, targets, ("f1_micro", "f1_macro", "exact_match"))
    for average in ("micro", "macro"):
        score = oracle.f1_score(targets, encode(answers), average=average, zero_division=0.0)
        assert found[f"f1_{average}"] == pytest.approx(score)
    assert found["exact_match"] == pytest.approx(oracle.accuracy_score(targets, encode(answers)))


@pytest.mark.parametrize(
    "classes, codes, labels",
    [
        (("0", "1"), [0, -1, 1, 2], ["0", "1", "2"]),  # of a model trained without the names
        (("yes", "no"), [1, -1, 0, 2], ["yes", "no", "maybe"]),
        (("0.0", "1.0"), [0, -1, 1], ["0", "1"]),  # of another tool
    ],
)
def test_numbers_of_a_schema_are_the_classes_of_the_model(tmp_path, classes, codes, labels):
    """GLUE's CoLA has the classes 0 and 1 here, and the names unacceptable and acceptable there."""
    write(str(tmp_path), "dev", "parquet", codes, ("no", "yes", "maybe"))
    config, task = config_of(str(tmp_path))
    [part] = read(config, "eval", classes)
    assert part.labels == tuple(labels)
    assert task_of(config, classes).targets(part).tolist() == list(range(len(labels)))


def test_a_number_that_a_schema_does_not_name_is_refused(tmp_path):
    write(str(tmp_path), "train", "parquet", [0, 1, 7], ("no", "yes"))
    config, task = config_of(str(tmp_path))
    with pytest.raises(UserError, match="line 3 has the label '7', which its schema does not have"):
        read_splits(task, config, ["train"])


def test_arrow_dictionaries_hold_the_names_of_classes(tmp_path):
    labels = pyarrow.array(["b", None, "a", "-"]).dictionary_encode()
    write(str(tmp_path), "train", "parquet", labels)
    config, task = config_of(str(tmp_path))
    task, found = read_splits(task, config, ["train"])
    assert task.labels == ("a", "b") and len(found["train"][0]) == 2


def test_the_only_file_of_a_split_on_the_hub_is_found(tmp_path):
    for split in ("train", "validation"):
        write(str(tmp_path), f"{split}-00000-of-00001", "parquet", [0, 1], ("no", "yes"))
    config, task = config_of(str(tmp_path))
    _, found = read_splits(task, config, ["train", "eval"])
    assert [found[phase][0].source.stem for phase in found] == ["train", "dev"]


@pytest.mark.parametrize("kind", ["classification", "multilabel"])
def test_what_is_judged_has_a_label(tmp_path, kind):
    labels = ["b", "-", "a", "z", "a", "b"]
    write(str(tmp_path), "test", "jsonl", labels)
    config, _ = config_of(str(tmp_path), task_kind=kind)
    [part] = read(config, "predict", ("a", "b"))
    task = task_of(config, ("a", "b"))
    targets = task.targets(part)
    outputs = np.array([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4], [0.4, 0.6], [0.3, 0.7]])
    one = evaluated(
        examples=part,
        rows=types.SimpleNamespace(labels=targets),
        outputs=outputs,
    )
    found = task.judge(one)
    share = found["accuracy" if kind == "classification" else "exact_match"]
    assert share == pytest.approx(3 / 5)
    if kind == "classification":
        assert found["loss"] == pytest.approx(-np.mean(np.log([0.9, 0.7, 0.4, 0.7])))


WRITERS = dict(  # of several labels in a cell, as people write them
    json=json.dumps,
    unescaped=lambda labels: json.dumps(labels, ensure_ascii=False),
    python=repr,
    sets=lambda labels: repr(set(labels)),
    pandas=lambda labels: str(tuple(labels)) if labels else "()",
    numpy=lambda labels: " ".join(str(np.array(labels)).split("\n")) if labels else "[]",
    comma=",".join,
    semicolon=";".join,
    bar="|".join,
)
# with quotes, escapes, brackets, separators, and characters that JSON writes as two escapes
PLAIN_LABELS = st.text("abé1'\"\\,;|😀 \xa0()[]{}_-/", min_size=1, max_size=6).map(str.strip)


@settings(max_examples=100)
@given(st.sampled_from(sorted(WRITERS)), st.data())
def test_several_labels_equal_those_that_were_written_whatever_the_writer(name, data):
    write_cell = WRITERS[name]
    is_joined = name in ("comma", "semicolon", "bar")
    banned = set(',;|[](){}"') if is_joined else set()
    labels = PLAIN_LABELS.filter(
        lambda text: text not in ("", "-") and not set(text) & banned and text[0] not in "-1"
    )
    names = data.draw(st.lists(labels, min_size=2, max_size=4, unique=True))
    sets = data.draw(st.lists(st.lists(st.sampled_from(names), unique=True), max_size=6))
    sets = [names, *sets, names[:1], names[1:]]
    with tempfile.TemporaryDirectory() as folder:
        write(folder, "train", "jsonl", [write_cell(one) for one in sets])
        config, task = config_of(folder, task_kind="multilabel")
        task, files = read_splits(task, config, ["train"])
        [part] = files["train"]
        found = [set(part.label_sets[code]) for code in part.label_codes]
        assert found == [set(one) for one in sets]
        has_separator = any(set(one) & set(",;|") for one in names)
        assert any("labels such as" in one for one in part.warnings) == has_separator
        task = configured(dataclasses.replace(task, labels=tuple(names)), part)
        assert not is_joined or task.separator == dict(comma=",", semicolon=";", bar="|")[name]
        if (
            not has_separator
            or not is_joined
            and not all(any(mark in one for one in names) for mark in ",;|")
        ):  # predictions read as they were meant
            text = task.predicted_labels(np.ones((1, len(names))))[0]
            assert text.split(task.separator) == names


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=2, max_size=6),
    st.sampled_from(["json", "bool", "float", "numpy", "booleans", "comma", "space"]),
)
def test_one_hot_vectors_are_refused_whatever_the_writer(rows, name):
    spell = dict(
        json=lambda row: json.dumps([int(x) for x in row]),
        bool=json.dumps,
        float=lambda row: str([float(x) for x in row]),
        numpy=lambda row: str(np.array(row, float)),
        booleans=lambda row: str(np.array(row)),
        comma=lambda row: ",".join(str(int(x)) for x in row),
        space=lambda row: " ".join(str(int(x)) for x in row),
    )[name]
    with tempfile.TemporaryDirectory() as folder:
        write(folder, "train", "jsonl", [spell(row) for row in rows])
        config, task = config_of(folder, task_kind="multilabel")
        with pytest.raises(UserError, match="line 1 has .* a one-hot vector.*write the names"):
            read_splits(task, config, ["train"])


@pytest.mark.parametrize("cell", ['["a", null]', "[a, b]", "['a' b]", '{"a": 1}'])
def test_a_list_that_cannot_be_read_is_refused(tmp_path, cell):
    write(str(tmp_path), "train", "jsonl", ["x", "y", cell])
    config, task = config_of(str(tmp_path), task_kind="multilabel")
    with pytest.raises(UserError, match="line 3 has .*no list; write the names of its labels"):
        read_splits(task, config, ["train"])


VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefwz"]
TEXTS = st.lists(
    st.tuples(
        st.sampled_from(["a b", "a  b", " c", "c", "d", "e f", "A b"]), st.sampled_from("xyz")
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=80)
@given(TEXTS, TEXTS, st.booleans())
def test_rows_that_are_also_in_the_training_are_counted(train, dev, is_tagged):
    train, dev = [("a b", "x"), ("z", "y"), *train], [("w", "x"), *dev]

    def cleaned(rows):
        return [(" ".join(text.lower().split()), label) for text, label in rows]

    with tempfile.TemporaryDirectory() as folder:
        for split, rows in dict(train=train, dev=dev).items():
            texts, labels = zip(*rows, strict=True)
            if is_tagged:
                with open(f"{folder}/{split}.txt", "w") as file:
                    for text, label in rows:
                        file.writelines(f"{word} {label}\n" for word in text.split())
                        file.write("\n")
            else:
                write(folder, split, "jsonl", labels, texts=texts)
        config = FinetuneConfig(task_name="ner" if is_tagged else "single", data_dir=folder)
        task, files = read_splits(task_of(config), config, ["train", "eval"])
        [known], [part] = files["train"], files["eval"]
        (vocab := pathlib.Path(folder, "vocab.txt")).write_text("\n".join(VOCAB))
        form = form_of(WordPieceTokenizer(str(vocab), True), 9, folder=folder)
        rows = [task.encode(one, form) for one in (known, part)]
        warnings = describe_overlap(known, rows[0], part, rows[1])
    train, dev = cleaned(train), cleaned(dev)
    known = {text for text, _ in train}
    same = [row for row in dev if row[0] in known]
    others = [row for row in same if row not in train]
    wanted = (
        f"{len(same)} of the {len(dev)} dev examples ({len(same) / len(dev):.1%}) have the same"
    )
    [warning] = warnings or [""]
    assert warning.startswith(wanted) if same else not warning
    assert not same or f", {len(others)} of them with another label" in warning
