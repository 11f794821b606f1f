"""The letters that an uncased WordPiece vocabulary loses: a sample of a text -> warnings.

Google's rules for uncased models do more than lower-case: they decompose each character (NFD) and
drop non-spacing marks. That removes accents, but also the vowels of Hindi and Thai and the voicing
marks of kana; it turns й into и and cuts Korean syllables into jamo. The rules of the tokenizer
itself decide which letters change; SentencePiece has other rules, which change none.
"""

import collections
import re
import unicodedata
from typing import Any

from bert_gpu.text.tokenizers.basic import uncase

# the greatest shares of letters that may change without a warning
ACCENTS_SHARE = 0.15  # French has 9 %, Czech and Greek 14 %, Vietnamese 27 %
LETTERS_SHARE = 0.003  # the limit for letters of all other scripts
# Beginnings of the Unicode names of letters in scripts whose marks are accents. Names of marks that
# belong to no script begin with COMBINING; after composition (NFC) few of these marks are left.
ACCENTED = ("LATIN ", "GREEK ", "COMBINING ")
WORD = re.compile(r"\S{1,12}")  # a longer word is shown in part


def lower_case_warnings(documents: list[list[bytes]], config: Any) -> list[str]:
    """Return warnings if lower-casing changes many letters beyond their case, at most one for
    accents and one for other changes.

    Args:
      documents: from `quality.sample`.
      config: VocabConfig or DataConfig.
    """
    if not (config.do_lower_case and config.strip_accents) or config.tokenization != "WordPiece":
        return []
    content = b"\n".join(sentence for document in documents for sentence in document)
    text = unicodedata.normalize("NFC", content.decode("utf-8", "ignore").lower())
    counts = collections.Counter(text)
    num_letters = sum(count for letter, count in counts.items() if is_letter(letter))
    changed = {letter for letter in counts if is_letter(letter) and uncase(letter) != letter}
    names = {
        letter: unicodedata.name(unicodedata.normalize("NFD", letter)[0], "") for letter in changed
    }
    accented = {letter for letter, name in names.items() if name.startswith(ACCENTED)}
    warnings = []
    for letters, limit, what in (
        (changed - accented, LETTERS_SHARE, "deletes or cuts up"),
        (accented, ACCENTS_SHARE, "strips the accents of"),
    ):
        share = sum(counts[letter] for letter in letters) / max(1, num_letters)
        if share > limit:
            warnings.append(
                f"lower-casing {what} {share:.1%} of the letters, such as "
                f"{describe_change(text, letters)}; give --nostrip_accents, with a "
                "vocabulary that has them where you name one"
            )
    return warnings


def is_letter(character: str) -> bool:
    """Return whether a character is a letter or a mark on a letter, such as a vowel sign. A
    variation selector, which may follow an emoji, is neither.
    """
    is_selector = "VARIATION SELECTOR" in unicodedata.name(character, "")
    return unicodedata.category(character)[0] in "LM" and not is_selector


def describe_change(text: str, letters: set[str]) -> str:
    """Return, as "'before' -> 'after'", how lower-casing changes the commonest word with one of the
    letters.
    """
    ((word, _),) = collections.Counter(
        word for word in WORD.findall(text) if not letters.isdisjoint(word)
    ).most_common(1)
    after = "".join(uncase(word).split())
    if unicodedata.normalize("NFC", after) == word:
        after = " ".join(after)  # without spaces, jamo look like the syllable that they came from
    return f"{word!r} -> {after!r}"
