"""Bit flips in every kind of file that a data set, a run and a model consist of. Law: refused with
its name, or of no effect on what is read.

`python -m tests.faults.flips WORLD` prints how many were refused, and how many of no effect, by
file.
"""

import collections
import functools
import pathlib
import random
import sys
import tempfile

from tests.faults import reading
from tests.faults.machines import Case
from tests.faults.world import World

# Of a file, besides one in its first and one in its last byte; each of an unfinished data job's
# takes a second.
FLIPS = collections.defaultdict(lambda: 40, {"unfinished data": 10})


def cases(world, seed, only=None):
    """Parts: those of `reading`; None = all."""
    found = []
    for part, folder in reading.parts(world, only).items():
        for path in reading.files(folder):
            name = str(path.relative_to(folder))
            num_bits = 8 * path.stat().st_size
            generator = random.Random(f"{seed} {name}")
            bits = {generator.randrange(num_bits) for _ in range(FLIPS[part])}
            bits |= {generator.randrange(8), num_bits - 1 - generator.randrange(8)}
            found += [
                Case(f"{part}/{name} bit {bit}", functools.partial(law, part, folder, path, bit))
                for bit in sorted(bits)
            ]
    return found


@functools.cache
def whole(part, folder):
    return reading.READERS[part](folder, lambda text: None)


def flip(part, folder, path, bit, scratch):
    """How reading ended after the flip of one bit."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    changed = reading.copy_with(folder, scratch / "copy", path, bytes(content))
    return reading.outcome(part, scratch / "copy", changed, whole(part, folder))


def law(part, folder, path, bit, scratch):
    ended = flip(part, folder, path, bit, pathlib.Path(scratch))
    return "" if ended in (reading.REFUSED, reading.NO_EFFECT) else ended


def main():
    world, counts = World(sys.argv[1]), collections.defaultdict(collections.Counter)
    for case in cases(world, 1):
        part, folder, path, bit = case.run.args
        with tempfile.TemporaryDirectory() as scratch:
            ended = flip(part, folder, path, bit, pathlib.Path(scratch))
        counts[f"{part}/{path.relative_to(folder)}"][ended] += 1
    for name, ended in counts.items():
        print(f"{name}: {', '.join(f'{count} {how}' for how, count in sorted(ended.items()))}")


if __name__ == "__main__":
    main()
