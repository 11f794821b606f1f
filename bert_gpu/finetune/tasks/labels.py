"""Labels in the cells of a column: which labels a cell holds, which cells hold none, and the order
of the classes.

A cell with several labels is a list, as JSON, Python or NumPy write it, or has a separator between
its labels; the separator is inferred from the whole column.

A row without a label holds one of BLANK, or -1 where the labels are not all numbers or the classes
have names: among numbers -1 is a class, as in -1, 0, 1 for sentiment.
"""

import ast
import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from bert_gpu.base import files
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.settings import number_in
from bert_gpu.finetune.tasks import table

NEGATION = "(not|non|no|nt|un|in|im|il|ir|dis|without)"  # a prefix that negates a name
NEGATIVE = "no|not|none|false|negative|without"  # names that negate any other
SEPARATOR = ","  # default separator of the labels in a cell
BLANK = ("", "-", "nan")  # cells without a label, in lower case
MINUS_ONE = "-1"
SEPARATORS = (";", "|", SEPARATOR)
# matches a string or a number in a Python list, tuple or set, or in a NumPy array, which has no
# commas between its entries
ITEM = r"'(?:[^'\\]|\\.)*'|" + r'"(?:[^"\\]|\\.)*"|-?\d+\.?\d*'
LIST = re.compile(rf"(?s)[\[({{]\s*(?:(?:{ITEM})(?:[\s,]+(?:{ITEM}))*)?[\s,]*[\])}}]")
ONE_HOT = re.compile(r"(?i)\[?\s*(?:(?:[01]\.?0*|true|false)(?:[\s,;|]+|(?=\])|$)){2,}\]?")


def read_labels(
    cells: Iterable[str],
    task: table.TaskSpec,
    classes: Iterable[str] | None = None,
    names: Sequence[str] = (),
    may_lack: bool = False,
) -> dict[str, tuple[str, ...]]:
    """Return {cell: its labels} of the cells that hold labels. In a task with several labels an
    example, an empty cell is among them: it says that no label applies. True, TRUE and true are one
    label, as are the spellings of false.

    Args:
      cells: all distinct cells of a file. classes: names of the classes of the training or the
        model, None where they follow from these cells.
      names: names in the schema of the file for the classes 0, 1 and so on; ignored where the
        model's classes are other numbers, as it was then trained without names.
      may_lack: whether a file whose cells are all -1 or blank counts as a file without labels.
    """
    known = frozenset(map(plain_label, classes or task.labels or ()))
    are_indices = bool(known) and are_numbers(known) and not known <= set(names)
    indices = {} if are_indices else {str(index): name for index, name in enumerate(names)}
    labels_of = {
        cell: labels
        for cell in cells
        if (labels := labels_in(cell, task)) == [] or cell.lower() not in BLANK or cell in known
    }
    own = {label for labels in labels_of.values() for label in labels}
    # True, TRUE and true are one class: that of the model, else the last in order
    spellings = {x.lower(): x for x in sorted(known or own) if x.lower() in ("true", "false")}
    names_of = {x: spellings[x.lower()] for x in own - known if x.lower() in spellings} | indices
    if may_lack and own <= {MINUS_ONE} - known:
        return {}
    is_named = bool(names or task.labels) or not are_numbers(known or own)
    is_number = not (task.facts.has_classes or task.facts.makes_vectors)
    is_class = is_number or (MINUS_ONE in known and not indices) or not is_named
    return {
        cell: tuple(dict.fromkeys(names_of.get(label, label) for label in labels))
        for cell, labels in labels_of.items()
        if is_class or labels != [MINUS_ONE]
    }


def labels_in(cell: str, task: table.TaskSpec) -> list[str]:
    """Return the labels in a cell, in the form of `plain_label`, without repetitions."""
    if not task.facts.has_label_lists:
        return [plain_label(cell)]
    listed = listed_labels(cell)
    texts = map(str.strip, cell.split(task.separator or SEPARATOR) if listed is None else listed)
    return list(dict.fromkeys(plain_label(text) for text in texts if text))


def listed_labels(cell: str) -> list[str] | None:
    """Return the labels of a cell that is a list, as JSON, Python and NumPy write it; None for any
    other cell.
    """
    if cell == "set()":  # Python's empty set
        return []
    with contextlib.suppress(ValueError, RecursionError):
        values = files.parse_json(cell)
        are_labels = isinstance(values, list) and {*map(type, values)} <= {str, int, float, bool}
        return list(map(str, values)) if are_labels else None
    with contextlib.suppress(ValueError, SyntaxError):
        if LIST.fullmatch(cell):
            return [str(ast.literal_eval(item)) for item in re.findall(f"(?s){ITEM}", cell)]
    return None


def with_separator(task: table.TaskSpec, cells: Iterable[str]) -> table.TaskSpec:
    """Return the task with the separator of labels in a cell: its own or, of SEPARATORS, one that
    occurs in the column, in no label of a cell that is a list, and whose parts repeat most; earlier
    conditions count more.
    """
    if not task.facts.has_label_lists or task.separator is not None:
        return task
    lists = {cell: listed_labels(cell) for cell in cells}
    plain = [cell for cell, labels in lists.items() if labels is None]

    def rank(separator: str) -> tuple[bool, bool, float, bool]:
        parts = [part.strip() for cell in plain for part in cell.split(separator)]
        is_unused = not any(separator in cell for cell in plain)
        return (
            is_unused,
            any(separator in label for labels in lists.values() for label in labels or ()),
            len(set(parts)) / max(1, len(parts)),
            is_unused and separator != SEPARATOR,
        )

    return dataclasses.replace(task, separator=min(SEPARATORS, key=rank))


def check_cells(path: str, lines: Mapping[str, int], labels: Sequence[str]) -> list[str]:
    """Raise UserError for cells with several labels that are one-hot vectors, or lists that cannot
    be read. Return the labels that contain a separator.

    lines: {cell: its first line} of a training file. labels: the labels in that file.
    """
    cells = [cell for cell in lines if cell.lower() not in BLANK]
    sizes = {len(re.split(r"[\s,;|]+", cell.strip("[ ]"))) for cell in cells}
    are_one_hot = len(sizes) == 1 and all(map(ONE_HOT.fullmatch, cells))
    for cell in cells:
        if are_one_hot or (cell[0] + cell[-1] in ("[]", "{}") and listed_labels(cell) is None):
            problem = (
                "a one-hot vector, which names no labels" if are_one_hot else "which is no list"
            )
            raise UserError(
                f"line {lines[cell]} has {shortened(repr(cell))}, {problem}",
                'write the names of its labels, such as a,b or ["a", "b"]',
                where=path,
            )
    return [label for label in labels if any(one in label for one in SEPARATORS)]


def find_classes(
    path: str, num_examples: int, names: Sequence[str], order: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the distinct labels `names`, sorted: by `order`, which has all of them, if it is
    given; else as numbers where all are numbers, else as text. Raises UserError for fewer than two.
    """
    if len(names) < 2:
        raise UserError(
            f"{path}: {names[0]!r:.60} is the only label of its {num_examples} examples; "
            "a classifier needs two or more"
            if names
            else f"{path}: no example has a label; a classifier needs two or more"
        )
    if order:
        return tuple(sorted(names, key=order.index))
    is_number = are_numbers(names)
    return tuple(sorted(names, key=lambda name: (is_number and number_in(name) or 0.0, name)))


def choose_positive(labels: tuple[str, ...], named: str | None) -> str | None:
    """Return the class whose F1 is reported, of two classes: the class that --positive_label names
    (`named`), else the last that does not negate the other; None for more classes. Raises UserError
    when `named` is no class.
    """
    if named is not None and (named not in labels or len(labels) != 2):
        raise UserError(
            f"must be one of two classes, and the classes are {', '.join(labels)}",
            setting="positive_label",
            value=named[:60],
        )
    if named is not None or len(labels) != 2:
        return named
    pairs = (labels[::-1], labels)
    return next((name for name, other in pairs if not is_negation(name, other)), labels[1])


def is_negation(name: str, other: str) -> bool:
    """Return whether the name of a class negates that of another: not_spam, non-spam and no negate
    spam, is_not_spam negates is_spam.
    """
    plain, other = (re.sub(r"[\W_]", "", label.casefold()) for label in (name, other))
    rest = re.sub("^(is|has|with)(?=.)", "", other)
    return re.fullmatch(f"{NEGATIVE}|(is|has)?{NEGATION}(is|has|with)?{rest}", plain) is not None


def index_labels(labels: Sequence[str], found: Iterable[str]) -> dict[str, int]:
    """Return {label: index}: first for the names of the classes, then for further labels
    that a file has.
    """
    indices = {plain_label(label): index for index, label in enumerate(labels)}
    others = [label for label in found if label not in indices]
    return indices | {label: index for index, label in enumerate(others, len(labels))}


def plain_label(text: str) -> str:
    """Return a label as text: 1 for 1.0, which is how pandas writes whole numbers in a column with
    gaps.
    """
    return text.partition(".")[0] if re.fullmatch(r"-?[0-9]+\.0*", text) else text


def are_numbers(labels: Iterable[str]) -> bool:
    return all(number_in(label) is not None for label in labels)


def are_measures(labels: Collection[str]) -> bool:
    """Return whether labels are more than two numbers that are not all whole, and so probably
    measured values, not classes.
    """
    numbers = [number for label in labels if (number := number_in(label)) is not None]
    return 2 < len(numbers) == len(labels) and not all(number.is_integer() for number in numbers)
