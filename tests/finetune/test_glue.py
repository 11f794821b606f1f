"""GLUE's tasks are read from files of the very form in which GLUE distributes them, found under any
spelling, and predictions are written as its server takes them.
"""

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FILES, FinetuneConfig, has_test_file
from bert_gpu.finetune.files.splits import read_splits
from bert_gpu.finetune.tasks import table
from tests.finetune.evaluations import column, evaluated, read, task_of

# {folder: {file: lines of cells}}
FORMS = {
    "CoLA": {
        "train.tsv": ["gj04\t1\t\tThe sailors rode the breeze.", "gj04\t0\t*\tThey drank the pub."],
        "dev.tsv": ['gj04\t1\t\tHe said "go".', "gj04\t0\t*\tGo he."],
        "test.tsv": ["index\tsentence", "0\tBill whistled past the house.", "1\tPast whistled."],
    },
    "SST-2": {
        "train.tsv": ["sentence\tlabel", "hide new secretions \t0", "a fine film \t1"],
        "dev.tsv": ["sentence\tlabel", "charming \t1", "dull \t0"],
        "test.tsv": ["index\tsentence", "0\tuneasy mishmash", "1\tgood"],
    },
    "MRPC": {
        "train.tsv": [
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            '1\t702876\t702977\tHe called it "a mess .\tHe called it that .',
            "0\t2108705\t2108831\tYucaipa owned it .",  # a broken line
            "0\t1330381\t1330521\tThey sold .\tThey bought .",
        ],
        "dev.tsv": [
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            "1\t1\t2\ta\tb",
            "0\t3\t4\tc\td",
        ],
        "test.tsv": [
            "\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String",
            "0\t1\t2\te\tf",
            "1\t3\t4\tg\th",
        ],
    },
    "STS-B": {
        name: [
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
            + last,
            *(
                f"{i}\tmain-captions\tMSRvid\t2012\t{i}\tnone\tnone\tA plane {i}.\tA jet.{score}"
                for i, score in enumerate(scores)
            ),
        ]
        for name, last, scores in (
            ("train.tsv", "\tscore", ("\t5.000", "\t3.800")),
            ("dev.tsv", "\tscore", ("\t0.000", "\t1.600")),
            ("test.tsv", "", ("", "")),
        )
    },
    "QQP": {
        "train.tsv": [
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            "133273\t213221\t213222\tHow is AI used?\tWhat is AI?\t0",
            "402555\t536040",  # two of the broken lines that the file has
            "536041\tHow do I control my emotions?\t1",
            "360472\t364011\t490273\tHow?\tHow come?\t1",
        ],
        "dev.tsv": [
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            "1\t2\t3\tWhy?\tWhy not?\t0",
            "2\t4\t5\tWho?\tWho is it?\t1",
        ],
        "test.tsv": ["id\tquestion1\tquestion2", "0\tWhere?\tWhere to?", "1\tHow?\tWhy?"],
    },
    "MNLI": {
        f"{name}.tsv": [
            "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
            "sentence1_parse\tsentence2_parse\tsentence1\tsentence2" + heads,
            *(
                f"{i}\t31193\t31193n\tgovernment\t( ( a ) b )\t( c )\t(ROOT a)\t(ROOT c)\ta {i}\tc"
                + cells
                for i, cells in enumerate(rows)
            ),
        ]
        for name, heads, rows in (
            (
                "train",
                "\tlabel1\tgold_label",
                ("\tneutral\tneutral", "\tentailment\tentailment", "\tx\tcontradiction"),
            ),
            *(
                (
                    f"dev_{part}",
                    "".join(f"\tlabel{i}" for i in range(1, 6)) + "\tgold_label",
                    ("\tneutral" * 6, "\tentailment" * 6),
                )
                for part in ("matched", "mismatched")
            ),
            ("test_matched", "", ("", "")),
            ("test_mismatched", "", ("", "", "")),
        )
    },
    "QNLI": {
        "train.tsv": ["index\tquestion\tsentence\tlabel", "0\tWhen?\tIn 1872.\tentailment"]
        + ["1\tWho?\tIn 1872.\tnot_entailment"],
        "dev.tsv": ["index\tquestion\tsentence\tlabel", "0\tWhat?\tThat.\tentailment"],
        "test.tsv": ["index\tquestion\tsentence", "0\tWhat?\tThat.", "1\tWhy?\tSo."],
    },
    "RTE": {
        "train.tsv": ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tnot_entailment"]
        + ["1\tc\td\tentailment"],
        "dev.tsv": ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tnot_entailment"],
        "test.tsv": ["index\tsentence1\tsentence2", "0\ta\tb", "1\tc\td"],
    },
    "WNLI": {
        "train.tsv": ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\t1", "1\tc\td\t0"],
        "dev.tsv": ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\t0"],
        "test.tsv": ["index\tsentence1\tsentence2", "0\ta\tb", "1\tc\td"],
    },
}
# first texts, second texts and labels of the training examples
TRAINING = {
    "CoLA": (["The sailors rode the breeze.", "They drank the pub."], None, ["1", "0"]),
    "SST-2": (["hide new secretions ", "a fine film "], None, ["0", "1"]),
    "MRPC": (
        ['He called it "a mess .', "They sold ."],
        ["He called it that .", "They bought ."],
        ["1", "0"],
    ),
    "STS-B": (["A plane 0.", "A plane 1."], ["A jet."] * 2, ["5.000", "3.800"]),
    "QQP": (["How is AI used?", "How?"], ["What is AI?", "How come?"], ["0", "1"]),
    "MNLI": (["a 0", "a 1", "a 2"], ["c"] * 3, ["neutral", "entailment", "contradiction"]),
    "QNLI": (["When?", "Who?"], ["In 1872."] * 2, ["entailment", "not_entailment"]),
    "RTE": (["a", "c"], ["b", "d"], ["not_entailment", "entailment"]),
    "WNLI": (["a", "c"], ["b", "d"], ["1", "0"]),
}


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """A folder with all of GLUE."""
    folder = tmp_path_factory.mktemp("glue")
    for name, contents in FORMS.items():
        (folder / name).mkdir()
        for file, lines in contents.items():
            (folder / name / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = [f"{row}\ta {row}\tb\t{('not_' * (row % 2))}entailment" for row in range(12)]
    text = "\n".join([FORMS["RTE"]["train.tsv"][0], *lines])
    (folder / "RTE" / "whole.tsv").write_text(text)
    return folder


def test_every_task_of_glue_is_here():
    assert sorted(FORMS) == sorted(task.folder for task in table.TASKS.values() if task.folder)


@pytest.mark.parametrize("folder", FORMS)
def test_files_of_glue(glue, folder):
    config = FinetuneConfig(task_name=folder.replace("-", "").upper(), data_dir=str(glue))
    task = task_of(config)
    assert task.spec.name == folder.lower() and has_test_file(config)
    inside = FinetuneConfig(task_name=folder.lower(), data_dir=str(glue / folder))
    for settings in (config, inside):
        task, examples = read_splits(task_of(config), settings, list(FILES))
        [train] = examples["train"]
        assert TRAINING[folder] == tuple(
            column(train, name) for name in ("texts_a", "texts_b", "labels")
        )
        assert train.num_skipped == {"MRPC": 1, "QQP": 2}.get(folder, 0)
        assert not any(part.has_labels for part in examples["predict"])
        evaluated, predicted = len(examples["eval"]), len(examples["predict"])
        assert (evaluated, predicted) == ((2, 2) if folder == "MNLI" else (1, 1))
        assert task.labels == (task.spec.labels or ("score",))
        for part in [train, *examples["eval"]]:
            assert len(task.targets(part)) == len(part)


@pytest.mark.parametrize("folder", FORMS)
def test_test_results_begin_with_the_columns_that_glue_takes(glue, tmp_path, folder):
    """Every file has the id and the prediction of each test example, in GLUE's words."""
    config = FinetuneConfig(task_name=folder, data_dir=str(glue))
    labels = task_of(config).spec.labels or ("score",)
    task = task_of(config, labels)
    for part in read(config, "predict", labels):
        outputs = np.eye(len(labels))[[len(labels) - 1 - i for i in range(len(labels))]]
        outputs = np.array([[4.5], [0.5]]) if folder == "STS-B" else outputs[: len(part)]
        task.write(str(tmp_path), evaluated(examples=part, outputs=outputs))
        name = f"test_results{results.suffix_of(part.source)}.tsv"
        lines = (tmp_path / name).read_text().splitlines()
        heading, *rows = [line.split("\t")[:2] for line in lines]
        assert heading == ["id", "prediction"]
        assert [row[0] for row in rows] == [str(index) for index in range(len(part))]
        wanted = {
            "STS-B": ["4.5", "0.5"],
            "MNLI": ["neutral", "entailment", "contradiction"][: len(part)],
            "QNLI": ["not_entailment", "entailment"],
            "RTE": ["not_entailment", "entailment"],
        }.get(folder, ["1", "0"])
        assert [row[1] for row in rows] == wanted


def test_names_of_tasks():
    assert table.find_task("sst2") is table.find_task("SST-2") is table.find_task("sst_2")
    with pytest.raises(UserError, match="--task_name=glue: no such task; known are pairs, single"):
        table.find_task("glue")


def test_a_header_is_one_also_where_glue_has_none(tmp_path):
    (tmp_path / "train.tsv").write_text("label\tsentence\n1\tYes.\n0\tNo yes.\n")
    config = FinetuneConfig(task_name="cola", data_dir=str(tmp_path))
    [train] = read(config, "train")
    assert column(train, "texts_a") == ["Yes.", "No yes."]


def test_what_is_predicted_needs_no_header_where_glue_has_none(glue, tmp_path):
    dev = FinetuneConfig(task_name="cola", test_file=str(glue / "CoLA" / "dev.tsv"))
    shares = FinetuneConfig(task_name="cola", train_file=str(tmp_path / "all"), test_share=0.5)
    rows = [f"gj04\t{number % 2}\t\tSentence {number}.\n" for number in range(20)]
    (tmp_path / "all").write_text("".join(rows))
    [found] = read(dev, "predict")
    assert column(found, "texts_a") == ['He said "go".', "Go he."]
    assert column(found, "labels") == ["1", "0"]
    [part] = read(shares, "predict")
    assert part.header == list(table.TASKS["cola"].columns["test"]) and 2 < len(part) < 18


def test_own_files_without_a_header(tmp_path):
    (tmp_path / "train.csv").write_text('1,"Yes, sir."\n0,No\n')
    config = FinetuneConfig(data_dir=str(tmp_path), columns=("label", "text_a"))
    [train] = read(config, "train")
    assert column(train, "texts_a") == ["Yes, sir.", "No"] and not train.has_pairs


def test_texts_alone_may_begin_with_a_comma_in_the_first(tmp_path):
    """One column without a header has no delimiter to get wrong."""
    (tmp_path / "new.tsv").write_text("Hello, world; a|b\nno\nyes\n")
    asked = dict(task_name="single", columns=("text",), test_file=str(tmp_path / "new.tsv"))
    config = FinetuneConfig(**asked)
    [found] = read(config, "predict")
    assert column(found, "texts_a") == ["Hello, world; a|b", "no", "yes"]
