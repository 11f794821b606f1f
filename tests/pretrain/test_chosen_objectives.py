"""Which objectives are trained on which records."""

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.data.examples import COMPACT, STATIC, Schema
from bert_gpu.interop.heads import architecture_of
from bert_gpu.pretrain.objectives.joint import select_objectives


@pytest.mark.parametrize("kind", [STATIC, COMPACT])
def test_what_is_trained_follows_from_the_records_unless_it_is_named(kind):
    pairs, single = (Schema(kind, 32, 5, has_next_sentence_labels=has) for has in (True, False))
    both = ("mlm", "nsp")
    assert select_objectives((), pairs) == select_objectives(("nsp", "mlm"), pairs) == both
    assert select_objectives((), single) == select_objectives(("mlm",), pairs) == ("mlm",)
    assert select_objectives(("nsp",), pairs) == ("nsp",)
    with pytest.raises(UserError, match="--train_objective=nsp: needs next_sentence_labels"):
        select_objectives(("nsp",), single)


@pytest.mark.parametrize(
    "heads, architecture",
    [
        (("mlm",), "BertForMaskedLM"),
        (("pooler", "mlm"), "BertForMaskedLM"),
        (("pooler", "nsp", "mlm"), "BertForPreTraining"),
        (("pooler", "nsp"), "BertModel"),
        (("length",), "BertModel"),
    ],
)
def test_the_exported_class_has_most_of_what_is_trained(heads, architecture):
    assert architecture_of(heads) == architecture
