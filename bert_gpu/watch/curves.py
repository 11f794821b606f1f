"""Reduces curves from logs of any length to a few hundred points, as many as a page can hold.

A raw curve keeps the lowest and the highest value of each bin, so that no spike is lost. A smooth
curve is a line fitted to the points around each point (Savitzky & Golay 1964, of degree 1): unlike
a running mean it does not lag behind, nor bend at the ends.
"""

import numpy as np
import scipy.signal

SMOOTHING = 0.07  # width over which a line is fitted, as a share of a curve


def starts_of_bins(x: np.ndarray, num_bins: int) -> np.ndarray:
    """Return the index of the first point in each bin that has points, (n,) int, where num_bins
    bins of equal width cover the range of x, which rises.
    """
    return np.unique(np.searchsorted(x, np.linspace(x[0], x[-1], num_bins, endpoint=False)))


def thinned(x: np.ndarray, y: np.ndarray, num_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y) with at most two points of each bin, those with the lowest and the highest y,
    if there are more points than that. x rises.
    """
    if len(x) <= 2 * num_bins:
        return x, y
    bins = np.split(np.arange(len(x)), starts_of_bins(x, num_bins)[1:])
    indices = np.unique([bin[edge(y[bin])] for bin in bins for edge in (np.argmin, np.argmax)])
    return x[indices], y[indices]


def smoothed(
    x: np.ndarray, y: np.ndarray, num_bins: int, in_logs: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y) of a smooth curve through at least three points, whose x rises. It has at most
    num_bins points.

    in_logs: whether the logarithms of y are fitted, for a logarithmic axis; in a fit of y itself,
    spikes would outweigh everything else there.
    """
    if in_logs:
        x, logs = smoothed(x, np.log(y), num_bins)
        return x, np.exp(logs)
    if len(x) > num_bins:
        starts = starts_of_bins(x, num_bins)
        counts = np.diff(starts, append=len(x))
        x, y = (np.add.reduceat(values, starts) / counts for values in (x, y))
    even_x = np.linspace(x[0], x[-1], len(x))
    window = max(3, 2 * int(SMOOTHING * len(x) / 2) + 1)
    return even_x, scipy.signal.savgol_filter(np.interp(even_x, x, y), window, 1)
