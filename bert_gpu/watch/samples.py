"""samples.jsonl: masked sentences, and what a model took the masked word for as it learnt."""

import dataclasses
import os

from bert_gpu.files import check_regular, parse_json, readable
from bert_gpu.settings import UserError, shortened

MAX_SECONDS = 1e10  # three hundred years


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sentence with a masked word, and what the model took it for at a step: guesses are
    (probability, piece), likeliest first.
    """

    step: int
    seconds: float
    text: str
    guesses: tuple[tuple[float, str], ...]


def read_samples(path):
    """[Sample] of a samples.jsonl, whose lines are {"step", "seconds", "text", "guesses":
    [[probability, piece], ...]}. UserError for a damaged line; an unfinished last one is left out.
    A run that was killed and resumed may have written a step twice: the later lines count.
    """
    if not os.path.exists(path):
        return []
    check_regular(path)
    with readable(path), open(path, encoding="utf-8", errors="replace") as file:
        lines = [line for line in file if line.endswith("\n")]
    samples, last_step = {}, 0
    for number, line in enumerate(lines, 1):
        try:
            sample = as_sample(parse_json(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(
                f"{path}, line {number}: not a masked sentence ({str(error)[:80]}); it should be "
                '{"step", "seconds", "text", "guesses": [[probability, piece], ...]}; correct or '
                "remove it"
            ) from None
        if sample.step < last_step:
            samples = {key: other for key, other in samples.items() if other.step < sample.step}
        samples[sample.step, sample.text], last_step = sample, sample.step
    return list(samples.values())


def as_sample(content):
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    step, text = content["step"], content["text"]
    if type(step) is not int or step < 0:
        raise ValueError(f"step={shortened(step)}: must be a whole number of at least 0")
    if not isinstance(text, str):
        raise ValueError("text: must be a text")
    seconds = content["seconds"]
    if type(seconds) not in (int, float) or not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(
            f"seconds={shortened(seconds)}: must be a number from 0 to {MAX_SECONDS:g}"
        )
    guesses = tuple((float(share), piece) for share, piece in content["guesses"])
    if not all(0 <= share <= 1 and isinstance(piece, str) for share, piece in guesses):
        raise ValueError("guesses: must be [probability, piece] each")
    return Sample(step, float(seconds), text, guesses)
