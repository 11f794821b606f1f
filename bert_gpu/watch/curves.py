"""Reduces curves from logs of any length to a few hundred points, as many as a picture can show.

A raw curve keeps the lowest and the highest value of each bin, so that no spike is lost. A smooth
curve takes, at each point, the value of a line fitted to the points around it with Gaussian weights
(local linear regression, Cleveland 1979): unlike a running mean it does not lag behind, nor bend at
the ends.
"""

import numpy as np

NUM_BINS = 240  # number of intervals into which the range of a curve is divided


def finite(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y), without the points of which a coordinate is not finite."""
    x = np.asarray(x, np.float64)
    y = np.asarray(y, np.float64)
    is_finite = np.isfinite(x) & np.isfinite(y)
    return x[is_finite], y[is_finite]


def bins_of(x: np.ndarray, num_bins: int) -> np.ndarray:
    """Return the index of each point's bin, (n,) int, where num_bins bins of equal width cover the
    range of x.
    """
    low = x.min()
    high = x.max()
    if high == low:
        return np.zeros(len(x), int)
    return np.minimum(((x - low) / (high - low) * num_bins).astype(int), num_bins - 1)


def thinned(
    x: np.ndarray, y: np.ndarray, num_bins: int = NUM_BINS
) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y) with at most two points of each bin, those with the lowest and the highest y,
    in their old order.
    """
    if len(x) <= 2 * num_bins:
        return x, y
    bins = bins_of(x, num_bins)
    order = np.lexsort((y, bins))
    first = np.flatnonzero(np.diff(bins[order], prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    indices = np.unique(np.concatenate([order[first], order[last]]))
    return x[indices], y[indices]


def binned(x: np.ndarray, y: np.ndarray, num_bins: int = NUM_BINS) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y) with one point for each bin that has points: the mean of its points."""
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
    """Return (x, y) of a smooth curve: a local linear fit to the means of bins.

    share: standard deviation of the Gaussian weights, as a share of the range of x; 0 = no fit,
    only the means of bins. in_logs: whether the logarithms of y are fitted, for a logarithmic axis;
    in a fit of y itself, spikes would outweigh everything else there.
    """
    if in_logs:
        x, logs = smoothed(x, np.log(y), share, num_bins=num_bins)
        return x, np.exp(logs)
    x, y = binned(x, y, num_bins)
    if share == 0 or len(x) < 3 or x[-1] == x[0]:
        return x, y
    apart = (x[None, :] - x[:, None]) / (share * (x[-1] - x[0]))  # (n, n), for each pair
    weights = np.exp(-0.5 * apart**2)
    moments = [(weights * apart**power).sum(axis=1) for power in range(3)]
    sums = [weights @ y, (weights * apart) @ y]
    spread = moments[0] * moments[2] - moments[1] ** 2
    is_alone = spread <= 1e-9 * moments[0] ** 2  # the weights reach no other point
    fitted = (moments[2] * sums[0] - moments[1] * sums[1]) / np.where(is_alone, 1.0, spread)
    return x, np.where(is_alone, sums[0] / moments[0], fitted)
