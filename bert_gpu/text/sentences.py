"""Running text in, sentences out.

The rules are those of sentencex (Wikimedia), in Rust, with the abbreviations and marks of many
languages. In doubt it joins two sentences rather than break one. This module adds three things: a
line break always ends a sentence; a paragraph is split in windows, because the library's time grows
with the square of its length; and long quotations, which the library never splits, are split too,
because an unclosed quotation mark would otherwise join a whole page.
"""

import itertools
import re

import sentencex

WINDOW = 8192  # characters; far more than a paragraph usually has
LONGEST_SENTENCE = 1 << 18  # characters; a longer one is cut at a space
# characters. On English prose this finds 2.3 % more sentence ends at equal precision
LONG_QUOTATION = 200
QUOTATION = re.compile(f'[“"«„]([^“”"«»„]{{{LONG_QUOTATION},}})')
# Languages that the library (sentencex 1.0, src/lib.rs and languages/fallbacks.rs) has rules for,
# and those that take the rules of one of these; for others it takes those of English. Marks such as
# 。 end sentences in all languages, which is all that Chinese needs.
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
# The library panics on a letter, a space of more than one byte, and a full stop ("A\u2003."), so it
# gets plain spaces.
WIDE_SPACES = [chr(code) for code in range(0x80, 0x10000) if chr(code).isspace()]


def split_sentences(text, language="en"):
    """The sentences of a text (str without lone surrogates): list of str, without space at the
    ends, never empty.

    Args:
      language: ISO 639 code. For an unknown one the library uses the nearest language it knows, or
        English.

    Only space between sentences is lost, and a text that is not all space has at least one
    sentence.
    """
    pieces = (piece.strip() for line in text.splitlines() for piece in split_line(line, language))
    return [piece for piece in pieces if piece]


def split_line(line, language):
    """Yields the sentences of a line, each with the space after it; joined, they are the line."""
    start, window = 0, WINDOW
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
        start, window = start + sum(map(len, pieces)), WINDOW


def split_quotations(sentence, language):
    """Also splits the text inside long quotations."""
    cuts = [0]
    for match in QUOTATION.finditer(sentence):
        inside = map(len, split_window(match[1], language)[:-1])
        cuts += [*itertools.accumulate(inside, initial=match.start(1))][1:]
    return [sentence[start:end] for start, end in itertools.pairwise([*cuts, len(sentence)])]


def split_window(text, language):
    """The library's sentences (list of str that make up the text)."""
    plain = text
    if not text.isascii():
        for space in WIDE_SPACES:
            plain = plain.replace(space, " ")
    try:
        pieces = sentencex.segment(language, plain)
    except BaseException as error:
        # A panic in Rust is not an Exception and would silently end a worker. Rust has reported it
        # on stderr; the text is kept unsplit.
        if type(error).__name__ != "PanicException":
            raise
        return [text]
    if plain is text:
        return pieces
    ends = itertools.accumulate(map(len, pieces), initial=0)
    return [text[start:end] for start, end in itertools.pairwise(ends)]
