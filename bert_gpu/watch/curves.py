"""Reduces curves from logs of any length to a few hundred points, as many as a picture can show.

A raw curve keeps the lowest and the highest value of each bin, so that no spike is lost. The smooth
one is a line fitted around each point with Gaussian weights (local linear regression, Cleveland
1979): unlike a running mean it does not lag behind, nor bend at the ends.
"""

import numpy as np

NUM_BINS = 240  # points of a curve, spread over its own range


def finite(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the points (n,), (n,) of which both coordinates are finite."""
    x = np.asarray(x, np.float64)
    y = np.asarray(y, np.float64)
    is_finite = np.isfinite(x) & np.isfinite(y)
    return x[is_finite], y[is_finite]


def bins_of(x: np.ndarray, num_bins: int) -> np.ndarray:
    """Return the bin of each point, (n,) int, of bins of equal width over the range of x."""
    low = x.min()
    high = x.max()
    if high == low:
        return np.zeros(len(x), int)
    return np.minimum(((x - low) / (high - low) * num_bins).astype(int), num_bins - 1)


def thinned(
    x: np.ndarray, y: np.ndarray, num_bins: int = NUM_BINS
) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y) with at most two points a bin, the lowest and the highest, in their order."""
    if len(x) <= 2 * num_bins:
        return x, y
    bins = bins_of(x, num_bins)
    order = np.lexsort((y, bins))
    first = np.flatnonzero(np.diff(bins[order], prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    indices = np.unique(np.concatenate([order[first], order[last]]))
    return x[indices], y[indices]


def binned(x: np.ndarray, y: np.ndarray, num_bins: int = NUM_BINS) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y), the means of each bin that has points."""
    if len(x) <= num_bins:
        return x, y
    bins = bins_of(x, num_bins)
    counts = np.bincount(bins)
    has_points = counts > 0
    means = [np.bincount(bins, values)[has_points] / counts[has_points] for values in (x, y)]
    return means[0], means[1]


def smoothed(
    x: np.ndarray,
    y: np.ndarray,
    share: float,
    in_logs: bool = False,
    num_bins: int = NUM_BINS,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y) of a local linear fit.

    share: standard deviation of the weights, as a share of the range of x; 0 = the means of bins
    alone. in_logs: fits the logarithms of y, for a logarithmic axis, on which spikes would outweigh
    everything else.
    """
    if in_logs:
        x, logs = smoothed(x, np.log(y), share, num_bins=num_bins)
        return x, np.exp(logs)
    x, y = binned(x, y, num_bins)
    if share == 0 or len(x) < 3 or x[-1] == x[0]:
        return x, y
    apart = (x[None, :] - x[:, None]) / (share * (x[-1] - x[0]))  # (N, N)
    weights = np.exp(-0.5 * apart**2)
    moments = [(weights * apart**power).sum(axis=1) for power in range(3)]
    sums = [weights @ y, (weights * apart) @ y]
    spread = moments[0] * moments[2] - moments[1] ** 2
    is_alone = spread <= 1e-9 * moments[0] ** 2  # no other point within reach
    fitted = (moments[2] * sums[0] - moments[1] * sums[1]) / np.where(is_alone, 1.0, spread)
    return x, np.where(is_alone, sums[0] / moments[0], fitted)
