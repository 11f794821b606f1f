"""python -m bert_gpu report: pictures of runs, in one HTML file or served while they go on."""

import contextlib
import os

from bert_gpu import console
from bert_gpu.cli import flags
from bert_gpu.environment import quick_imports
from bert_gpu.settings import UserError
from bert_gpu.watch.config import ReportConfig

SUMMARY = (
    "Draws runs of pretraining and fine-tuning, several of them over each other: losses, learning "
    "rate, speed, GPUs, validation, settings and what differs between them. Writes one HTML file "
    "that opens without a network, and a picture of each chart. A folder of runs stands for all "
    "of them."
)
EXAMPLE = (
    "python -m bert_gpu report runs/pretrain",
    "python -m bert_gpu report runs/pretrain runs/other --output=compared.html --x=tokens",
    "python -m bert_gpu report runs/pretrain --watch",
)


def main(argv):
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, [ReportConfig], positionals="RUN [RUN ...]")
    config = parsed.make(ReportConfig)
    if not parsed.positionals:
        raise UserError("report: needs the folder of a run; name one, such as runs/pretrain")
    with quick_imports():
        from bert_gpu.watch import report, run_data, serve
    logs = {}
    # also before anything is served: what is damaged is told here
    runs = run_data.read_whole_runs(parsed.positionals, console.warn, logs)
    report.import_drawing()
    if not config.watch:
        num_pictures = report.write_report(runs, config, report.now())
        console.answer(f"{config.output}, and {num_pictures} pictures beside it")
        return 0
    with serve.open_server(parsed.positionals, config, logs) as server:
        host, port = server.server_address
        console.answer(f"http://{host}:{port}/ shows {len(runs)} run{'s'[: len(runs) > 1]}; "
                       f"Ctrl-C ends it{tunnel_hint(port)}")  # fmt: skip
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def tunnel_hint(port):
    """For someone who is logged in to another machine: how to see the page at home."""
    if "SSH_CONNECTION" not in os.environ:
        return ""
    return f"; from your own machine: ssh -L {port}:127.0.0.1:{port} HOST"
