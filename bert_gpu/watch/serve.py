"""Serves a report on 127.0.0.1 while its runs go on; the page asks again every few seconds.

The report is drawn when it is asked for, and only if a file of a run has changed since, a run has
come or gone, or one has ended: one that was killed leaves its files as they were.
"""

import hashlib
import http.server
import os
import threading

from bert_gpu.lock_holder import state_of_holder
from bert_gpu.settings import UserError
from bert_gpu.train.run_files import EVAL_RESULTS, LOCK, METRICS, RUN, SAMPLES
from bert_gpu.watch import page, run_data
from bert_gpu.watch.report import make_report, now

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost", "::1")
WATCHED = (RUN, METRICS, SAMPLES, EVAL_RESULTS)


class Served:
    """The newest page of a report, drawn on demand."""

    def __init__(self, paths, config, logs=None):
        """paths: of runs or folders of runs. logs: as for run_data.try_runs."""
        self.paths, self.config, self.logs = paths, config, {} if logs is None else logs
        self.lock, self.version, self.html = threading.Lock(), None, ""

    def newest(self):
        """(version, page), drawn anew when a run has changed, come or gone. What is wrong with a
        run stands on the page, because it may be put right.
        """
        with self.lock:
            version = signature(self.paths)
            if version != self.version:
                self.html, self.version = self._draw(version), version
            return self.version, self.html

    def _draw(self, version):
        runs, problems = run_data.try_runs(self.paths, self.logs)
        served = dict(refresh_seconds=self.config.refresh_seconds, version=version)
        if runs:
            texts = map(run_data.left_out, problems.values())
            return make_report(runs, self.config, now(), texts, **served).html
        return page.page(
            "Report",
            f"{now():%Y-%m-%d %H:%M}",
            "\n".join(map(page.problem_html, problems.values())),
            axes=[],
            axis=self.config.x,
            **served,
        )


def signature(paths):
    """A text that changes when a run comes or goes, when a file of one changes, and when its
    process begins or ends.
    """
    found = []
    for path in (run for folder in paths for run in run_data.find_below(folder)):
        found.append(path)
        for name in WATCHED:
            try:
                status = os.stat(os.path.join(path, name))
                found.append(f"{status.st_size}.{status.st_mtime_ns}")
            except OSError:
                found.append("")
        found.append(state_of_holder(os.path.join(path, LOCK)))
    return hashlib.sha256("-".join(found).encode("utf-8", "surrogateescape")).hexdigest()


def host_of(header):
    """The name in a Host header, which may have a port, and brackets around an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def handler_of(served):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            # a page elsewhere that has its name point here may not read the report
            if host_of(self.headers.get("Host", "")) not in HOST_NAMES:
                self.send_error(403)
                return
            if self.path.split("?")[0] != "/":
                self.send_error(404)
                return
            version, html = served.newest()
            if self.headers.get("If-None-Match") == version:
                self.send_response(304)
                self.end_headers()
                return
            content = html.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    return Handler


def open_server(paths, config, logs=None):
    """A server of the report on runs, as for `Served`; its server_address says where. UserError
    when the port is taken.
    """
    try:
        handler = handler_of(Served(paths, config, logs))
        server = http.server.ThreadingHTTPServer((HOST, config.port), handler)
    except OSError as error:
        raise UserError(
            f"--port={config.port}: cannot be served at ({error.strerror}); "
            "name another, or leave it out for a free one"
        ) from error
    server.daemon_threads = True
    return server
