"""Windows over a text that is longer than a row, as Google's run_squad has them: each begins
`stride` tokens after the one before it, and a token counts in the window that shows the most of
what stands around it.

Legend: T tokens of a text, W windows.
"""

import numpy as np

SHORT_BONUS = 0.01  # a token of a window counts so much as context on its shorter side


def cut_windows(num_tokens, room, stride):
    """(starts, lengths), int64 (W,), of the windows over `num_tokens` tokens, of at most `room`
    each; one of no tokens for an empty text.
    """
    if num_tokens <= room:
        return np.zeros(1, np.int64), np.array([num_tokens], np.int64)
    step = min(room, stride)
    starts = np.arange(-(-(num_tokens - room) // step) + 1, dtype=np.int64) * step
    return starts, np.minimum(room, num_tokens - starts)


def best_windows(starts, lengths, num_tokens):
    """int64 (T,): the window in which each token has the most context, the first one of equals.

    Context is the smaller number of tokens before and behind it in the window, plus SHORT_BONUS for
    each token of the window.
    """
    if len(starts) == 1:
        return np.zeros(num_tokens, np.int64)
    step = starts[1] - starts[0]
    tokens = np.arange(num_tokens)
    last = np.minimum(tokens // step, len(starts) - 1)  # that has the token
    found, most = np.zeros(num_tokens, np.int64), np.full(num_tokens, -np.inf)
    for back in range(int(-(-lengths[0] // step)), -1, -1):
        window = np.maximum(last - back, 0)
        before = tokens - starts[window]
        behind = lengths[window] - 1 - before
        context = np.minimum(before, behind) + SHORT_BONUS * lengths[window]
        is_better = (behind >= 0) & (context > most)
        found, most = np.where(is_better, window, found), np.where(is_better, context, most)
    return found
