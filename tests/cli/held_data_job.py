"""The data job, whose workers write shards 0 and 1, stop in the middle of the next ones, and wait
there until they are killed.

    python held_data_job.py THREADS_BYTES FLAGS

Workers are threads in a job of fewer bytes than THREADS_BYTES; with 0 they are processes.
"""

import os
import sys
import threading

import bert_gpu.__main__  # noqa: F401, as a command: it prepares the process
from bert_gpu.cli import data, flags
from bert_gpu.data import build, workers
from bert_gpu.text import parallel


class HeldWorker(build.ShardBuilder):
    def write_shard(self, shard, report):
        def hold(num_bytes, num_tokens):
            threading.Event().wait()

        super().write_shard(shard, report if shard.index < 2 else hold)


if __name__ == "__main__":
    parent = threading.Thread(target=parallel.end_with_parent, args=(os.getppid(),), daemon=True)
    parent.start()
    build.ShardBuilder, workers.THREADS_BYTES = HeldWorker, int(sys.argv[1])
    sys.exit(flags.exit_code(data.main, ["data", *sys.argv[2:]]))
