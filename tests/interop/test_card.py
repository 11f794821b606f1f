"""A model card says what the model is, whatever it is."""

import pytest

from bert_gpu.interop import card, formats
from bert_gpu.interop.heads import ARCHITECTURES
from bert_gpu.model.config import ModelConfig
from tests.interop.test_leaving import kept, model_of
from tests.model.variants import SMALL, VARIANTS


def text_of(model, usage=None):
    return card.readme(model, usage or card.own_usage(model.notes.architecture)).decode()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_head_has_a_title_a_task_and_its_weights(architecture):
    model = model_of(ModelConfig(**SMALL), architecture)
    text = text_of(model)
    assert f"# {ARCHITECTURES[architecture].title}\n" in text
    assert f"pipeline_tag: {ARCHITECTURES[architecture].task}\n" in text
    num_weights = sum(value.size for value in kept(model, architecture).values())
    assert f"| Weights | {num_weights:,} |" in text
    assert "| Architecture | BERT |" in text and "Differs from BERT" not in text
    assert "40 pieces, which are not in the folder" in text
    assert ("fill-mask" in text.partition("## How to open it")[2]) == (
        "mlm" in ARCHITECTURES[architecture].heads
    )


@pytest.mark.parametrize("name", [n for n, config in VARIANTS.items() if not config.is_classic])
def test_every_departure_is_named(name):
    text = text_of(model_of(VARIANTS[name], "BertForMaskedLM"))
    (line,) = (line for line in text.splitlines() if line.startswith("| Differs from BERT in"))
    assert all(f"{field}=" in line for field in VARIANTS[name].departures())


def test_classes_stay_inside_their_cell():
    model = model_of(ModelConfig(**SMALL), "BertForSequenceClassification")
    labels = ("a|b", "two\nlines", *(f"class{index}" for index in range(30)))
    text = text_of(model._replace(notes=model.notes._replace(labels=labels)))
    assert "| Classes | a\\|b, two lines, class0," in text and "class17 and 12 more |" in text


def test_facts_are_told_as_they_are_and_their_absence_is_told():
    model = model_of(ModelConfig(**SMALL), "BertForMaskedLM")
    assert "Nothing beside the model says how it was trained." in text_of(model)
    told = text_of(model._replace(card={"Training": {"steps": "7 of 9"}}), {"Somewhere": ("go",)})
    assert "## Training\n\n| | |\n|---|---|\n| steps | 7 of 9 |\n" in told
    assert told.endswith("## How to open it\n\nSomewhere:\n\n    go\n")
    others = set(formats.format_names(writes=True)) - {formats.OURS}
    assert all(f"--format={name}" in text_of(model) for name in others)
