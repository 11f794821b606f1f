"""The data job on a Ray cluster, whose workers write shards 0 and 1 and stop in the middle of each
later one until FOLDER/go exists.

    python -m tests.cli.held_ray_job FOLDER FLAGS

For each shard that is begun there is FOLDER/begun-SPLIT-INDEX-PID. Ray sends the worker's code to
the nodes, because it belongs to the program itself.
"""

import os
import pathlib
import sys
import time

import bert_gpu.__main__  # noqa: F401, as a command: it prepares the process
from bert_gpu.cli import data, flags
from bert_gpu.data import build


class HeldWorker(build.ShardBuilder):
    folder = pathlib.Path(sys.argv[1])

    def write_shard(self, shard, report):
        begun = f"begun-{shard.split}-{shard.index}-{os.getpid()}"
        (self.folder / begun).touch()

        def hold(num_bytes, num_tokens):
            while not (self.folder / "go").exists():
                time.sleep(0.05)
            report(num_bytes, num_tokens)

        is_held = shard.split == "train" and shard.index >= 2
        super().write_shard(shard, hold if is_held else report)


if __name__ == "__main__":
    build.ShardBuilder = HeldWorker
    sys.exit(flags.exit_code(data.main, ["data", *sys.argv[2:]]))
