"""Serves a report on 127.0.0.1 while its runs go on; the page asks again every few seconds.

The report is drawn when it is asked for, and only if a file of a run has changed since, or a run
has ended: one that was killed leaves its files as they were.
"""

import http.server
import os
import threading

from bert_gpu.settings import UserError
from bert_gpu.train.run_files import EVAL_RESULTS, LOCK, METRICS, RUN, SAMPLES
from bert_gpu.watch import page, run_data
from bert_gpu.watch.report import make_report, now

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
WATCHED = (RUN, METRICS, SAMPLES, EVAL_RESULTS)


class Served:
    """The newest page of a report, drawn on demand."""

    def __init__(self, paths, config):
        self.paths, self.config = paths, config
        self.lock, self.version, self.html = threading.Lock(), None, ""

    def newest(self):
        """(version, page), drawn anew when a run has changed. What is wrong with a run stands on
        the page, because it may be put right.
        """
        with self.lock:
            version = signature(self.paths)
            if version != self.version:
                self.html, self.version = self._draw(version), version
            return self.version, self.html

    def _draw(self, version):
        seconds = self.config.refresh_seconds
        try:
            report = make_report(
                self.paths, self.config, now(), refresh_seconds=seconds, version=version
            )
            return report.html
        except UserError as problem:
            return page.page(
                "Report",
                f"{now():%Y-%m-%d %H:%M}",
                page.problem_html(problem),
                axes=[],
                axis=self.config.x,
                refresh_seconds=seconds,
                version=version,
            )


def signature(paths):
    """A text that changes when a file of a run does, and when its process begins or ends."""
    found = []
    for path in paths:
        for name in WATCHED:
            try:
                status = os.stat(os.path.join(path, name))
                found.append(f"{status.st_size}.{status.st_mtime_ns}")
            except OSError:
                found.append("")
        found.append(str(run_data.is_held(os.path.join(path, LOCK))))
    return "-".join(found)


def handler_of(served):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            # a page elsewhere that has its name point here may not read the report
            if self.headers.get("Host", "").rpartition(":")[0] not in HOST_NAMES:
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


def open_server(paths, config):
    """A server of the report on the runs in folders; its server_address says where. UserError when
    the port is taken.
    """
    try:
        handler = handler_of(Served(paths, config))
        server = http.server.ThreadingHTTPServer((HOST, config.port), handler)
    except OSError as error:
        raise UserError(
            f"--port={config.port}: cannot be served at ({error.strerror}); "
            "name another, or leave it out for a free one"
        ) from error
    server.daemon_threads = True
    return server
