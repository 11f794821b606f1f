"""Several runs at a time, each on a core of its own. Small models gain little from a second core,
so this gets more runs into an hour, and no run disturbs another.
"""

import concurrent.futures
import os
import queue

from .command import end_scripts


class Cores:
    """Cores of this machine, each for one run at a time. count: how many; None = all."""

    def __init__(self, count=None):
        found = sorted(os.sched_getaffinity(0))
        self.numbers = found[: count or len(found)]

    def each(self, function, items):
        """[function(item, core)] in the order of the items; as many at a time as there are cores.

        When one fails, those that run are waited for, no other begins, and its error is raised. An
        interrupt ends them.
        """
        free = queue.SimpleQueue()
        for number in self.numbers:
            free.put(number)

        def call(item):
            core = free.get()
            try:
                return function(item, core)
            finally:
                free.put(core)

        with concurrent.futures.ThreadPoolExecutor(len(self.numbers)) as pool:
            calls = [pool.submit(call, item) for item in items]
            try:
                return [one.result() for one in calls]
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                if not isinstance(error, Exception):
                    end_scripts()
                raise

    def fill(self, rows, part, cases, measure):
        """Measures the rows of a part that are not there. rows: rows.Rows. cases: of (name, seed).
        measure: (name, seed, core) -> row.
        """

        def row(case, core):
            name, seed = case
            rows.row(part, f"{name}, seed {seed}", lambda: measure(name, seed, core))

        self.each(row, cases)
