"""The search for a learning rate: over a grid that is extended while its best is at an edge; and
those that a search with one seed cannot tell from the best.
"""

SERIES = (1, 2, 5)  # learning rates: these times powers of ten
TIE = 0.02  # nats: what seeds of a small model differ by, at least


def rates_between(lowest, highest):
    """The learning rates of the grid from one to another: 0.001, 0.002, 0.005, 0.01, ..."""
    grid = [digit * 10.0**power for power in range(-7, 2) for digit in SERIES]
    return [rate for rate in grid if lowest * 0.999 <= rate <= highest * 1.001]


def extended(losses):
    """The learning rate to try next: the neighbour of the best where that is at the edge of those
    tried and better than the next one inside; None elsewhere, and at the ends of the grid.

    losses: {learning rate: loss}.
    """
    grid, tried = rates_between(1e-7, 99), sorted(losses)
    best = min(tried, key=losses.get)
    at = min(range(len(grid)), key=lambda index: abs(grid[index] - best))
    for edge, inner, outer in ((0, 1, at - 1), (-1, -2, at + 1)):
        is_edge = best == tried[edge] and 0 <= outer < len(grid)
        if is_edge and (len(tried) == 1 or losses[best] < losses[tried[inner]]):
            return grid[outer]
    return None


def search(rates, losses_at):
    """{learning rate: loss} of a grid, extended while its best is at an edge. losses_at: learning
    rates -> their losses.
    """
    losses = dict(zip(rates, losses_at(rates), strict=True))
    while (outer := extended(losses)) is not None:
        [losses[outer]] = losses_at([outer])
    return losses


def final_rates(losses):
    """The learning rates that the final runs try: the best of a search with one seed, and those
    that it cannot tell from it. losses: {learning rate: loss}.
    """
    best = min(losses, key=losses.get)
    return [best] + [
        rate for rate in sorted(losses) if rate != best and losses[rate] < losses[best] + TIE
    ]
