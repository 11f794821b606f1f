"""Schemes of tags: how the tags of words spell entities, how the scheme of a file is found, and how
entities are counted.

A tag such as B-PER is a letter and a type with a separator between them, in either order and case,
or a bare letter. BIO, IOB1 and BIOES are read as seqeval and conlleval do by default: an entity may
lack its begin or its end. BILOU, BMES and BMEWO are read as seqeval's strict mode reads BILOU: only
a begin with its end, or a single word, is an entity.
"""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence

# {scheme: its letters}; of schemes that fit equally the first is taken, and IOB1 is read like BIO
LETTERS = dict(BIO="BI", BIOES="BIES", BILOU="BILU", BMES="BMES", BMEWO="BMEW")
STRICT = ("BILOU", "BMES", "BMEWO")
# {form in which a tag is written: its regular expression, with {} in place of the letters}
FORMS = (
    {f"B{mark}TYPE": f"(?P<letter>[{{}}])[{mark}](?P<type>.+)" for mark in "-_:."}
    | {f"TYPE{mark}B": f"(?P<type>.+)[{mark}](?P<letter>[{{}}])" for mark in "-_:."}
    | {"B": "(?P<letter>[{}])(?P<type>)"}
)
SCHEMES = {
    f"{name} as {form}": re.compile(pattern.format(letters + letters.lower()))
    for name, letters in LETTERS.items()
    for form, pattern in FORMS.items()
}
# schemes of tags without letters: where the tag O occurs, neighbouring words with the same other
# tag are an entity; where it does not, every word counts alone
TYPES, WORDS = "plain tags beside O", "plain tags"
NAMES = (*SCHEMES, TYPES, WORDS)
# the scheme of models of other tools, which have no task.json
FOREIGN = "BIOES or BILOU as B-TYPE"
FOREIGN_PATTERN = re.compile("(?P<letter>[BIESLU])(-(?P<type>.+))?")


def read(scheme: str, tag: str) -> str | None:
    """Return a tag in seqeval's form, such as B-PER, or B without a type; None where the tag does
    not fit the scheme. The returned letter is one of BILOU for a strict scheme, else one of BIOES.
    """
    match = SCHEMES.get(scheme, FOREIGN_PATTERN).fullmatch(tag)
    if match is None:
        return None
    others = ("MESW", "ILUU") if scheme.startswith(STRICT) else ("LU", "ES")
    letter = match["letter"].upper().translate(str.maketrans(*others))
    return f"{letter}-{match['type']}" if match["type"] else letter


def find_scheme(counts: Mapping[str, int]) -> str:
    """Return the scheme, one of NAMES, that the tags of the most words fit; on a tie BIO.

    The scheme is TYPES or WORDS, without letters, unless another fits half of the distinct tags
    except O, or half of the words that have them. Bare letters often fit by chance, so they must
    fit more than half of the distinct tags, and those of strict schemes also need a tag B. A strict
    scheme must end at least half of the entities that it begins: a stray L-PER does not make BILOU
    of BIO.

    Args:
      counts: {tag: words that have it} of the training file.
    """
    spelled = {tag: number for tag, number in counts.items() if tag.upper() != "O"}
    has_outside = len(spelled) < len(counts)
    has_bare_b = not counts.keys().isdisjoint("Bb")

    def fitting(scheme: str) -> dict[str, str]:
        letters = {tag: tag_read[0] for tag in spelled if (tag_read := read(scheme, tag))}
        if scheme.startswith(STRICT):
            ends = [sum(spelled[t] for t in letters if letters[t] == letter) for letter in "BL"]
            if (scheme.endswith(" as B") and not has_bare_b) or ends[0] > 2 * ends[1]:
                return {}
        return letters

    best = max(SCHEMES, key=lambda scheme: sum(spelled[tag] for tag in fitting(scheme)))
    fits = fitting(best)
    num_words = sum(spelled[tag] for tag in fits)
    is_bare = best.endswith(" as B")
    can_be_entities = has_outside or not {"B", "I"}.isdisjoint(fits.values())
    are_most = 2 * len(fits) >= len(spelled) + is_bare
    are_most |= not is_bare and 2 * num_words >= sum(spelled.values())
    if fits and can_be_entities and are_most:
        return best
    return TYPES if has_outside else WORDS


def foreign_scheme(labels: Sequence[str]) -> str:
    """Return the scheme of a model without a task.json: FOREIGN if all its tags fit that, else
    TYPES or WORDS.
    """
    # a bare L or U is a letter of BILOU if there is a B, and else a tag like any other
    bare = "BIESLU" if "B" in labels else "BIES"
    if all(label == "O" or re.fullmatch(f"[{bare}]|[BIESLU]-.+", label) for label in labels):
        return FOREIGN
    return TYPES if "O" in labels else WORDS


def as_entities(labels: Sequence[str], scheme: str | None = None) -> list[str] | None:
    """Return the labels in seqeval's form, such as B-PER, with O for a label that does not fit the
    scheme; None where labels mark no entities, as in part-of-speech tagging.

    scheme: name of the scheme; None = the scheme that fits the labels.
    """
    scheme = scheme or find_scheme(dict.fromkeys(labels, 1))
    if scheme == WORDS:
        return None
    if scheme == TYPES:
        return ["O" if label.upper() == "O" else f"I-{label}" for label in labels]
    # a training file in BIO has no E and S; those of another file are read as by seqeval
    scheme = scheme.replace("BIO ", "BIOES ")
    return [read(scheme, label) or "O" for label in labels]


def entity_scores(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], tags: Sequence[str] = ()
) -> dict[str, float | None]:
    """Return {"precision", "recall", "f1"} of entities, all types together: an entity is right when
    its type and both its ends are. The scheme is strict where one of the tags has the letter L or
    U.

    recall and f1 are None without any true entity, precision is 0 without any predicted entity.

    Args:
      truth, predicted: the true and the predicted tags of each sentence, as `as_entities` returns
        them. tags: all tags that it returned, by default those in truth and predicted.
    """
    from seqeval.metrics import sequence_labeling, v1
    from seqeval.scheme import BILOU

    score = sequence_labeling.precision_recall_fscore_support
    if any(tag[0] in "LU" for tag in tags or itertools.chain(*truth, *predicted)):
        score = functools.partial(v1.precision_recall_fscore_support, scheme=BILOU)
    precision, recall, f1, number = score(truth, predicted, average="micro", zero_division=0)
    if not number:
        return dict(precision=float(precision), recall=None, f1=None)
    return dict(precision=float(precision), recall=float(recall), f1=float(f1))
