"""Serves a report on 127.0.0.1 while its runs go on; the page asks again every few seconds.

The report is drawn when it is asked for, and only if a file of a run has changed since.
"""

import http.server
import os
import threading
import time

from bert_gpu.settings import UserError
from bert_gpu.train.checkpoint import METRICS, RUN, SAMPLES
from bert_gpu.watch import page, reading
from bert_gpu.watch.report import make_report, now

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
WATCHED = (RUN, METRICS, SAMPLES, reading.RESULTS)
STATE_SECONDS = 30  # after which the page is drawn again, because a run may have ended silently


class Served:
    """The newest page of a report, drawn on demand.

    clock: () -> seconds.
    """

    def __init__(self, paths, config, clock=time.monotonic):
        self.paths, self.config, self.clock = paths, config, clock
        self.lock, self.version, self.html, self.drawn = threading.Lock(), None, "", -1e9

    def newest(self):
        """(version, page), drawn anew when a run has changed. What is wrong with a run stands on
        the page, because it may be put right.
        """
        with self.lock:
            version = signature(self.paths)
            if version != self.version or self.clock() - self.drawn > STATE_SECONDS:
                self.html, self.version, self.drawn = self._draw(version), version, self.clock()
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
    """A text that changes when a file of a run does."""
    found = []
    for path in paths:
        for name in WATCHED:
            try:
                status = os.stat(os.path.join(path, name))
                found.append(f"{status.st_size}.{status.st_mtime_ns}")
            except OSError:
                found.append("")
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
