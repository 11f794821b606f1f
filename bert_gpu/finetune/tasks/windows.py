"""Windows over a text that is longer than a row, as in Google's run_squad: each begins `stride`
tokens after the one before it, and a token counts in the window that shows most of its context.

Legend: T tokens of a text, W windows.
"""

import numpy as np

SHORT_BONUS = 0.01  # added to a token's context for each token of the window


def cut_windows(num_tokens: int, room: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts, lengths), int64 (W,), of the windows over `num_tokens` tokens, of at most
    `room` each; an empty text has one window, without tokens.
    """
    if num_tokens <= room:
        return np.zeros(1, np.int64), np.array([num_tokens], np.int64)
    step = min(room, stride)
    starts = np.arange(-(-(num_tokens - room) // step) + 1, dtype=np.int64) * step
    return starts, np.minimum(room, num_tokens - starts)


def best_windows(starts: np.ndarray, lengths: np.ndarray, num_tokens: int) -> np.ndarray:
    """Return the index of the window in which each token has the most context, int64 (T,); of equal
    windows the first.

    Context is the smaller of the numbers of tokens before and behind it in the window, plus
    SHORT_BONUS for each token of the window.
    """
    if len(starts) == 1:
        return np.zeros(num_tokens, np.int64)
    step = starts[1] - starts[0]
    tokens = np.arange(num_tokens)
    last = np.minimum(tokens // step, len(starts) - 1)  # the last window that has the token
    best = np.zeros(num_tokens, np.int64)
    most = np.full(num_tokens, -np.inf)
    for back in range(int(-(-lengths[0] // step)), -1, -1):
        window = np.maximum(last - back, 0)
        before = tokens - starts[window]
        behind = lengths[window] - 1 - before
        context = np.minimum(before, behind) + SHORT_BONUS * lengths[window]
        is_better = (behind >= 0) & (context > most)
        best = np.where(is_better, window, best)
        most = np.where(is_better, context, most)
    return best
