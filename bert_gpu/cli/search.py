"""python -m bert_gpu search: finds the lines of a text that are nearest to a query."""

import json

from bert_gpu.base import console
from bert_gpu.cli import flags
from bert_gpu.inference.config import SearchConfig

SUMMARY = (
    "Searches a text of one's own with a model: finds the lines whose vectors have the largest "
    "cosine with that of a query. The vectors of the text are computed once and stored."
)
EXAMPLE = (
    "python -m bert_gpu search --model=runs/similarity/model --input=texts.txt "
    '--index=texts.index --query="how do i change my password"',
    "python -m bert_gpu search --model=runs/similarity/model --input=texts.txt "
    "--index=texts.index --query_file=-",
)
CLASSES = [SearchConfig]


def main(argv: list[str], in_program: bool = False) -> list[list[tuple[float, int, str]]]:
    """Run the command; return, for each query, (cosine, number of a line, line) triples, the
    nearest line first. Only a program gets them; a command line gets [], as each answer is printed.
    in_program: as in flags.parse.
    """
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, in_program=in_program)
    config = parsed.make(SearchConfig)
    with parsed.imports():
        from bert_gpu.inference.search import search
    answers = []
    for query, matches in search(config, parsed.console(config.quiet)):
        if parsed.in_program:
            answers.append(matches)
        elif config.json:
            lines = [dict(number=n, score=round(x, 6), text=text) for x, n, text in matches]
            console.answer(json.dumps(dict(query=query, lines=lines), ensure_ascii=False))
        else:
            rows = [f"  {score:.4f}  {number:,}  {text}" for score, number, text in matches]
            console.answer("\n".join([query] * (config.query_file is not None) + rows))
    return answers
