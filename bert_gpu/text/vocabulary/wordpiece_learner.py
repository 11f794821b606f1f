"""Learns a WordPiece vocabulary: text -> counts of words -> pieces -> vocab.txt.

The learner is that of tensorflow-text (the algorithm of BERT's own vocabularies). It takes a
threshold and gives every piece that occurs at least that often, so a search for the threshold
reaches the requested size. Everything is sorted, by count and then by text: the same text gives the
same vocabulary, however it was divided. Counters of parts of a text can be added.
"""

import collections
import itertools
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf
from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file
from bert_gpu.text.tokenizers import basic, wordpiece

LINES_PER_BATCH = 4096
# The learner is Python and takes about a second for every 15,000 words in each of two to six
# rounds, so it gets the most frequent words only. 71 MB of English has 100,000 different words
# (32,768 pieces are learnt in 13 seconds); the further words of a larger text are rare names and
# typing errors.
MAX_WORDS = 100_000
WORDS_PER_PIECE = 3  # a large vocabulary needs more than MAX_WORDS words
# The learner's time grows with the square of a word's length; longer "words" are mostly addresses
# and parts of tables.
MAX_WORD_CHARACTERS = 30
MIN_PIECE_COUNT = 2  # a piece that occurs once teaches nothing
# Share of the text, in characters, that consists of characters with a piece. A word with a rarer
# character becomes [UNK], unless that character is ASCII.
CHARACTER_COVERAGE = 0.9999
ROUNDS = 4  # the learner's default number of rounds
# The search for the threshold may end with this share more pieces than requested; the rarest pieces
# are then dropped.
SIZE_SLACK = 0.05

PUNCTUATION_CODES = [ord(mark) for mark in basic.ASCII_PUNCTUATION]
CONTROLS = bytes(code for code in (*range(32), 127) if code not in b"\t\n\r")
SPACED = bytes(32 if code in PUNCTUATION_CODES else code for code in range(256))


def count_words(
    documents: Iterable[Iterable[str | bytes]], do_lower_case: bool, strip_accents: bool = True
) -> collections.Counter[str]:
    """Count the words of a text, split and normalised as by the tokenizer.

    Args:
      documents: each an iterable of sentences (bytes in UTF-8, or str); read once.
      do_lower_case, strip_accents: as in the tokenizer.

    Returns:
      {word: count}, which grows with the number of distinct words, not with the text.
    """
    plain_counts: collections.Counter[bytes] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    mark_counts = np.zeros(256, np.int64)
    sentences = itertools.chain.from_iterable(documents)
    while batch := list(itertools.islice(sentences, LINES_PER_BATCH)):
        lines = [
            sentence.encode("utf-8", "ignore") if isinstance(sentence, str) else sentence
            for sentence in batch
        ]
        # In plain ASCII every rule is a map of bytes: punctuation marks end words and are counted
        # separately, control characters are removed.
        plain = b"\n".join(line for line in lines if line.isascii())
        mark_counts += np.bincount(np.frombuffer(plain, np.uint8), minlength=256)
        plain = plain.lower() if do_lower_case else plain
        plain_counts.update(plain.translate(SPACED, CONTROLS).split())
        others = [line.decode("utf-8", "ignore") for line in lines if not line.isascii()]
        counts.update(
            itertools.chain.from_iterable(basic.split_words(others, do_lower_case, strip_accents))
        )
    for word, count in plain_counts.items():
        counts[word.decode()] += count
    for code in PUNCTUATION_CODES:
        if mark_counts[code]:
            counts[chr(code)] += int(mark_counts[code])
    return counts


def learn_wordpiece(word_counts: Mapping[str, int], vocab_size: int) -> list[str]:
    """Learn a WordPiece vocabulary from counts of words.

    Args:
      word_counts: from `count_words`.
      vocab_size: largest number of pieces; fewer if too few pieces occur MIN_PIECE_COUNT times.

    Returns:
      Special pieces, characters, "##" characters, then the other pieces, most frequent first.

    Raises:
      UserError: there are no words, or vocab_size leaves no room for characters.
    """
    words = sorted(word_counts.items(), key=lambda item: (-item[1], item[0]))
    max_characters = (vocab_size - len(wordpiece.SPECIAL_PIECES)) // 2
    alphabet = frequent_characters(words, max_characters)
    short = [(word, count) for word, count in words if len(word) <= MAX_WORD_CHARACTERS]
    words = [(word, count) for word, count in short if alphabet.issuperset(word)]
    words = words[: max(MAX_WORDS, WORDS_PER_PIECE * vocab_size)]
    if not words and short and len(alphabet) == max_characters:
        raise UserError(
            "is too small",
            f"it leaves room for {max_characters} of the text's characters, and "
            "no word has these alone; give a larger one",
            setting="vocab_size",
            value=vocab_size,
        )
    if not words:
        raise UserError(
            f"the text has no words of at most {MAX_WORD_CHARACTERS} characters "
            f"to learn from, and one of more than {wordpiece.MAX_WORD_CHARACTERS} "
            "is [UNK]",
            "text without spaces, such as Thai or DNA, needs --tokenization=SentencePiece",
        )
    inside = {character for word, _ in words for character in word[1:]}
    single = [*sorted(alphabet), *("##" + character for character in sorted(inside))]
    # The learner also makes a piece of "##" and each character. For a character that is always a
    # word by itself (punctuation, CJK) that piece would never be used.
    idle = {"##" + character for character in alphabet - inside}
    vocab = dict.fromkeys([*wordpiece.SPECIAL_PIECES, *single])
    vocab.update(
        dict.fromkeys(
            piece for piece in pieces_for_size(words, vocab_size + len(idle)) if piece not in idle
        )
    )
    return list(vocab)[:vocab_size]


def frequent_characters(words: list[tuple[str, int]], limit: int) -> set[str]:
    """Return at most `limit` characters: the most frequent ones, which together make up
    CHARACTER_COVERAGE of the text, and ASCII characters that occur MIN_PIECE_COUNT times. words:
    (word, count).
    """
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words:
        for character in word:
            counts[character] += count
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    before = itertools.accumulate((count for _, count in ranked), initial=0)
    covered = CHARACTER_COVERAGE * counts.total()
    characters = [
        character
        for (character, count), num_before in zip(ranked, before, strict=False)
        if num_before < covered or (character.isascii() and count >= MIN_PIECE_COUNT)
    ]
    return set(characters[:limit])


def pieces_for_size(words: list[tuple[str, int]], size: int) -> list[str]:
    """Return the learner's pieces for the largest threshold (least count of a piece) that gives at
    least `size` pieces, or all pieces if there are fewer.

    Args:
      words: (word, count), most frequent first.
      size: up to SIZE_SLACK more is close enough.

    Returns:
      Pieces in the learner's order: special pieces, characters, then the most frequent first.
    """
    low = MIN_PIECE_COUNT
    high = max(MIN_PIECE_COUNT, words[0][1])
    # first guess: there are about as many pieces as words with at least this count
    threshold = words[min(size, len(words)) - 1][1]
    enough: list[str] = []
    fewer: list[str] = []
    params = learner.Params(
        upper_thresh=None,
        lower_thresh=None,
        num_iterations=ROUNDS,
        max_input_tokens=-1,
        max_token_length=MAX_WORD_CHARACTERS,
        max_unique_chars=None,
        vocab_size=size,
        slack_ratio=SIZE_SLACK,
        include_joiner_token=True,
        joiner="##",
        reserved_tokens=list(wordpiece.SPECIAL_PIECES),
    )
    for attempt in itertools.count():
        threshold = min(max(threshold, low), high)
        pieces = learner.learn_with_thresh(words, threshold, params)
        if len(pieces) >= size:
            enough = pieces
            low = threshold + 1
        else:
            high = threshold - 1
            fewer = pieces if len(pieces) > len(fewer) else fewer
        if low > high or size <= len(pieces) <= (1 + SIZE_SLACK) * size:
            break
        # The number of pieces is about proportional to 1 / sqrt(threshold); after five attempts,
        # bisection.
        aim = (1 + SIZE_SLACK / 2) * size
        threshold = (
            round(threshold * (len(pieces) / aim) ** 2)
            if attempt < 5
            else round((low * high) ** 0.5)
        )
    return enough or fewer


def write_vocab(path: str, vocab: Iterable[str]) -> None:
    """Write a vocabulary to a file, one piece a line. The file gets its name when it is
    complete.
    """
    write_whole_file(path, file_content(vocab), "the vocabulary")


def file_content(vocab: Iterable[str]) -> bytes:
    """Return the bytes of a vocab.txt with these pieces."""
    return "".join(f"{piece}\n" for piece in vocab).encode()


def write_whole_file(path: str, content: bytes, what: str) -> None:
    """Write a file as a whole or not at all. Raises UserError, in which `what` names the
    content.
    """
    try:
        with atomic_file(path, "wb") as file:
            file.write(content)
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"{what} cannot be written ({type(error).__name__})",
            "check the folder and its permissions",
            where=path,
        ) from None
