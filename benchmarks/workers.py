"""What the exchange of gradients costs two workers on this machine, and how much of it hides behind
the backward pass when it goes in packs, each of which leaves as soon as its gradients are there.

    python benchmarks/workers.py --model=mini --rounds=20

Starts --workers processes on loopback, which train one model without XLA (which gives all gradients
at once) in all variants in turns. Prints the median seconds of a step, its ratio to one exchange
after the backward pass, and the share of that exchange that is hidden: 100 % would cost no more
than a step without an exchange.
"""

import json
import os
import statistics
import subprocess
import sys

from helpers import ROOT
from helpers.command import Failed, benchmark_parser
from helpers.report import origin, print_origin, print_table, read_results, write_results
from helpers.shapes import shape_of


def measure(arguments):
    """What helpers/workers_step.py prints."""
    from bert_gpu.devices.launch import environments

    settings = dict(
        shape=shape_of(arguments.model),
        length=arguments.length,
        batch_size=arguments.batch_size,
        rounds=arguments.rounds,
        packs=arguments.packs,
    )
    script = ROOT / "benchmarks" / "helpers" / "workers_step.py"
    environ = dict(os.environ, CUDA_VISIBLE_DEVICES="-1", PYTHONPATH=str(ROOT))
    processes = [
        subprocess.Popen(
            [sys.executable, script, json.dumps(settings)],
            env=own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in environments(arguments.workers, 0, environ)
    ]
    outputs = [process.communicate() for process in processes]
    for process, (_, error) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise Failed(f"a worker ended with {process.returncode}: {error.strip()[-300:]}")
    return json.loads(outputs[0][0])


def rows_of(seconds):
    """Rows of the table. seconds: {variant: those of each step}; packs of 0 MB are one exchange."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    none, one = medians["none"], medians["0"]
    names = {"none": "no exchange", "0": "one, after the backward pass"}
    return [
        [
            names.get(name, f"packs of {name} MB"),
            f"{median:.3f}",
            f"{median / one:.2f}",
            "" if name in names else f"{(one - median) / (one - none):.0%}",
        ]
        for name, median in medians.items()
    ]


def make_parser():
    parser = benchmark_parser(__doc__, "json")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=8, help="rows of one worker")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20, help="steps of each variant")
    parser.add_argument(
        "--packs",
        type=lambda text: [0, *map(int, text.split(","))],
        default=[0, 1, 4, 16],
        help="megabytes, such as 1,4,16; 0 = one exchange is always among them",
    )
    return parser


def main():
    arguments = make_parser().parse_args()
    print_origin(origin())
    found = measure(arguments)
    write_results(arguments.json, read_results(arguments.json) | found | origin())
    print(f"{arguments.workers} workers, {found['gradient_bytes'] / 1e6:.1f} MB of gradients")
    print_table(["exchange", "seconds a step", "ratio", "hidden"], rows_of(found["seconds"]))


if __name__ == "__main__":
    main()
