"""Labels as the cells of a column hold them: which classes a cell names, and which cells are none.

A row without a label holds one of BLANK, or -1 where the labels are not all numbers or something
names the classes: among numbers -1 is a class, as in -1, 0, 1 for sentiment.
"""

from bert_gpu.finetune.problem_types import are_numbers, labels_in, plain_label

BLANK = ("", "-", "nan")  # cells without a label, in lower case
MINUS_ONE = "-1"


def read_labels(cells, task, classes=None, names=(), may_lack=False):
    """{cell: its labels, a tuple of str}, of the cells that hold labels; where there may be several
    an empty cell is no label among them, which is an answer.

    Args:
      cells: all distinct cells of a file. task: TaskSpec. classes: those of the training or the
        model, None where these cells tell them. names: that the schema of the file gives to the
        classes 0, 1 and so on; a model whose classes are other numbers was trained without them.
      may_lack: whether a file that says -1 everywhere, or nothing, has no labels.
    """
    known = frozenset(map(plain_label, classes or task.labels or ()))
    are_indices = bool(known) and are_numbers(known) and not known <= set(names)
    indices = {} if are_indices else {str(index): name for index, name in enumerate(names)}
    split = labels_in if task.kind == "multilabel" else lambda cell: [plain_label(cell)]
    found = {
        cell: labels
        for cell in cells
        if (labels := split(cell)) == [] or cell.lower() not in BLANK or cell in known
    }
    own = {label for labels in found.values() for label in labels}
    if may_lack and own <= {MINUS_ONE} - known:
        return {}
    is_named = bool(names or task.labels) or not are_numbers(known or own)
    is_class = task.kind == "regression" or (MINUS_ONE in known and not indices) or not is_named
    return {
        cell: tuple(indices.get(label, label) for label in labels)
        for cell, labels in found.items()
        if is_class or labels != [MINUS_ONE]
    }
