"""`python -m tests.golden BASE` compares what this tree's commands do with what those of another
revision do: bytes of data and models, metrics, XLA's programs, help and messages.

The results of BASE are made once on this machine, from a git worktree, and kept under build/golden;
weights differ between instruction sets, so nothing is stored in the repository. Exit code 1: there
are differences, which are printed.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

from tests.golden.files import write_files
from tests.golden.jobs import TIERS
from tests.golden.results import compare

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="a revision")
    parser.add_argument("--tier", choices=list(TIERS), default="quick")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "golden")
    options = parser.parse_args()
    commit = git("rev-parse", "--verify", f"{options.base}^{{commit}}")
    stored = options.folder / commit / f"{options.tier}-{conditions()}.json"
    if not stored.exists():
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps(collect(commit, options)))
    base, ours = json.loads(stored.read_text()), collect(None, options)
    differences = compare(base, ours)
    print("\n\n".join(differences), end="\n\n" if differences else "")
    print(f"{len(differences)} of {len(base)} items differ from {options.base} ({commit[:10]})")
    return 1 if differences else 0


def git(*arguments):
    call = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def conditions():
    """A key of what results depend on beside the tree: the processor, Python, this package."""
    cpu = pathlib.Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    parts = [line for line in cpu if line.startswith(("model name", "flags"))]
    parts += [platform.python_version(), str(os.cpu_count())]
    parts += [path.read_text() for path in sorted(HERE.glob("[!t]*.py"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@contextlib.contextmanager
def tree_of(commit, folder):
    """Yields the folder with the files of a commit, or of this tree without one: always the same,
    because messages contain paths, and are cut and wrapped by their lengths.
    """
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    git("worktree", "prune")
    git("worktree", "add", "--quiet", "--detach", str(tree), commit or "HEAD")
    try:
        if commit is None:
            listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
            for name in filter(None, listed.split("\0")):
                if (ROOT / name).is_file():
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, tree / name)
                else:
                    (tree / name).unlink(missing_ok=True)
        yield tree
    finally:
        shutil.rmtree(tree, ignore_errors=True)
        git("worktree", "prune")


def collect(commit, options):
    """{item: text} of all jobs of a tier, with the files of a commit or of this tree."""
    work, started = options.folder / "work", time.monotonic()
    shutil.rmtree(work, ignore_errors=True)
    (work / "logs").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "sample_text.txt", work / "text.txt")
    write_files(work)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    with tree_of(commit, options.folder) as tree:
        environment |= dict(PYTHONPATH=str(tree), CUDA_VISIBLE_DEVICES="-1", COLUMNS="100")
        subprocess.run(
            [sys.executable, str(HERE / "collect.py")],
            input=json.dumps(TIERS[options.tier]()),
            text=True,
            cwd=work,
            env=environment,
            check=True,
        )
    seconds = time.monotonic() - started
    print(f"{'this tree' if commit is None else commit[:10]}: {seconds:.0f} s", file=sys.stderr)
    return json.loads((work / "items.json").read_text())


if __name__ == "__main__":
    sys.exit(main())
