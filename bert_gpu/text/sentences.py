"""Running text -> sentences.

The library sentencex (Wikimedia, in Rust) knows the abbreviations and marks of many languages. In
doubt it joins two sentences rather than break one. This module adds three things: a line break
always ends a sentence; a paragraph is split in windows, because the library's time grows with the
square of the paragraph's length; and long quotations, which the library never splits, are split
too, because an unclosed quotation mark would otherwise join a whole page.
"""

import itertools
import re
from collections.abc import Iterator

import sentencex

WINDOW = 8192  # characters; far more than a paragraph usually has
LONGEST_SENTENCE = 1 << 18  # characters; a longer one is cut at a space
# Characters from which a quotation is split into sentences. That finds 2.3 % more sentence ends in
# English prose, at equal precision.
LONG_QUOTATION = 200
QUOTATION = re.compile(f'[“"«„]([^“”"«»„]{{{LONG_QUOTATION},}})')
# Languages for which the library has rules (sentencex 1.0, src/lib.rs and languages/fallbacks.rs),
# and languages that take the rules of one of these; all others take the rules of English. Marks
# such as 。 end sentences in all languages, and Chinese needs no other rules.
OWN_RULES = (
    "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk"
)
RULES_OF_OTHERS = (
    "ab aeb alt an anp arn arq ary arz as ast atj av avk awa ay ba bar bi bm bpy br bxr ce co "
    "cs csb cv de-at de-ch de-formal dsb egl eml en-ca en-gb ext ff fit frc frp frr fur gcr gl "
    "gn gom gsw hrx hsb ht hyw inh jam jut kab kbp kjp kl koi krc krl ksh kum kv lad lb lbe lez "
    "li lij lld lmo ln mai mdf mg mhr mnw mrj mwl myv nah nap nds nds-nl nrm oc olo os pcd pdc "
    "pdt pfl pih pms pnt pt-br qu qug rgn roa-tara rue sa sah scn sco sdc ses sg shi sli smn "
    "srn stq sty szl tcy tet tt ty tyv udm vec vls vmf wa wo xal zea"
)
CHINESE = "zh zh-cn zh-hans zh-hant zh-hk zh-mo zh-sg zh-tw cdo gan hak ii lzh nan wuu yue za"
WITH_RULES = frozenset(f"{OWN_RULES} {RULES_OF_OTHERS} {CHINESE}".split())
# The library panics where a letter, a space of more than one byte and a full stop follow one
# another ("A\u2003."), so these spaces are replaced by plain ones.
WIDE_SPACES = [chr(code) for code in range(0x80, 0x10000) if chr(code).isspace()]


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Return the sentences of a text, without space at the ends, never empty.

    Args:
      text: has no lone surrogates.
      language: ISO 639 code. For a language without rules of its own, the library takes the rules
        of a related language or of English.

    Only space between sentences is lost, and a text that is not all space has at least one
    sentence.
    """
    pieces = (piece.strip() for line in text.splitlines() for piece in split_line(line, language))
    return [piece for piece in pieces if piece]


def split_line(line: str, language: str) -> Iterator[str]:
    """Yield the sentences of a line, each with the space after it; joined, they are the line."""
    start = 0
    window = WINDOW
    while start < len(line):
        pieces = split_window(line[start : start + window], language)
        if start + window < len(line):
            # The last sentence may continue after the window, so the next window begins with it.
            if len(pieces) > 1:
                pieces.pop()
            elif window < LONGEST_SENTENCE:
                window *= 2
                continue
            else:
                pieces = [pieces[0][: pieces[0].rfind(" ") + 1] or pieces[0]]
        for piece in pieces:
            yield from (
                split_quotations(piece, language) if len(piece) > LONG_QUOTATION else (piece,)
            )
        start += sum(map(len, pieces))
        window = WINDOW


def split_quotations(sentence: str, language: str) -> list[str]:
    """Return the parts of a sentence, cut where sentences end inside its long quotations; joined,
    they are the sentence.
    """
    cuts = [0]
    for match in QUOTATION.finditer(sentence):
        inside = map(len, split_window(match[1], language)[:-1])
        cuts += [*itertools.accumulate(inside, initial=match.start(1))][1:]
    return [sentence[start:end] for start, end in itertools.pairwise([*cuts, len(sentence)])]


def split_window(text: str, language: str) -> list[str]:
    """Return the sentences that the library finds in a text; joined, they are the text."""
    plain = text
    if not text.isascii():
        for space in WIDE_SPACES:
            plain = plain.replace(space, " ")
    try:
        pieces = sentencex.segment(language, plain)
    except BaseException as error:
        # A panic in Rust is not an Exception and would silently end a worker. Rust has reported it
        # on stderr; the text stays unsplit.
        if type(error).__name__ != "PanicException":
            raise
        return [text]
    if plain is text:
        return pieces
    ends = itertools.accumulate(map(len, pieces), initial=0)
    return [text[start:end] for start, end in itertools.pairwise(ends)]
