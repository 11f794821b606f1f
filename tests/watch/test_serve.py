"""A served report follows its runs."""

import http.client
import os
import signal
import subprocess
import sys
import threading

import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.settings import UserError
from bert_gpu.watch import serve
from bert_gpu.watch.config import ReportConfig
from tests.watch.runs import line, make_run, write_lines


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", [line(1), line(2)])


@pytest.fixture
def server(run):
    config = ReportConfig(watch=True, refresh_seconds=2.0)
    with serve.open_server([str(run)], config) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path="/", host=None, **headers):
    """(status, text) of a request."""
    address, port = server.server_address
    connection = http.client.HTTPConnection(address, port, timeout=60)
    connection.request("GET", path, headers=dict(Host=host or f"{address}:{port}") | headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def version_of(text):
    return text.split('data-version="')[1].split('"')[0]


def test_the_page_follows_the_run(server, run):
    status, text = ask(server)
    assert status == 200 and "2 of 100" in text and 'data-refresh="2"' in text
    same = {"If-None-Match": version_of(text)}
    assert ask(server, **same) == (304, "")
    write_lines(run / "metrics.jsonl", [line(1), line(2), line(3), '{"step'])
    status, text = ask(server, **same)
    assert status == 200 and "3 of 100" in text
    write_lines(run / "metrics.jsonl", [line(1), "damage\n", line(3)])
    status, text = ask(server)
    assert status == 200 and "metrics.jsonl, line 2" in text and "svg data-axis" not in text
    write_lines(run / "metrics.jsonl", [line(1), line(2), line(3), line(4)])
    assert "4 of 100" in ask(server)[1]


def test_runs_come_go_and_break_and_the_others_stay(tmp_path):
    for name in ("one", "two"):
        make_run(tmp_path / "runs" / name, [line(1), line(2)])
    served = serve.Served([str(tmp_path / "runs")], ReportConfig(watch=True))
    version, html = served.newest()
    assert served.newest() == (version, html)
    make_run(tmp_path / "runs" / "third", [line(1)])
    assert ">third<" in served.newest()[1]
    write_lines(tmp_path / "runs" / "one" / "metrics.jsonl", ["damage\n"])
    html = served.newest()[1]
    assert "left out, because it is damaged:" in html and "one/metrics.jsonl, line 1" in html
    assert ">two<" in html and ">third<" in html and ">one<" not in html
    (tmp_path / "runs" / "two").rename(tmp_path / "away")
    assert ">two<" not in (html := served.newest()[1]) and ">third<" in html
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert "runs: no such folder" in served.newest()[1]
    (tmp_path / "gone").rename(tmp_path / "runs")
    assert ">third<" in served.newest()[1]


def test_only_the_page_is_served_and_only_here(server, run):
    assert server.server_address[0] == "127.0.0.1"
    for path in ("/run.json", "/../run/run.json", "/etc/passwd"):
        assert ask(server, path)[0] == 404
    assert ask(server, host="evil.example:80")[0] == 403
    assert ask(server, host="evil.example")[0] == 403
    assert ask(server, host="[::2]:80")[0] == ask(server, host="::1")[0] == 403
    # with the port 80, browsers name none
    for host in (f"localhost:{server.server_address[1]}", "localhost", "127.0.0.1", "[::1]:80"):
        assert ask(server, host=host)[0] == 200


def test_a_run_that_is_killed_is_shown_as_stopped(server, run):
    """No file changes; an answer of 304 would leave it running on the page."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (run / ".run.lock").write_text(f"{process.pid}\n")
        _, text = ask(server)
        assert ">running<" in text
        same = {"If-None-Match": version_of(text)}
        assert ask(server, **same) == (304, "")
        process.kill()
        process.wait()
    status, text = ask(server, **same)
    assert status == 200 and ">stopped<" in text and ">running<" not in text


def test_a_port_that_is_taken_is_refused(server, run):
    port = server.server_address[1]
    with pytest.raises(UserError, match=f"--port={port}: cannot be served at"):
        serve.open_server([str(run)], ReportConfig(watch=True, port=port))


def test_ctrl_c_ends_the_command_cleanly(run, capsys, monkeypatch):
    """The page is asked for while it is served, then the interrupt comes."""
    found = []
    serve_forever = serve.http.server.ThreadingHTTPServer.serve_forever

    def interrupted(server):
        def act():
            found.append(ask(server))
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=act).start()
        serve_forever(server)

    monkeypatch.setattr(serve.http.server.ThreadingHTTPServer, "serve_forever", interrupted)
    monkeypatch.setenv("SSH_CONNECTION", "x")
    assert command(["bert-gpu", "report", str(run), "--watch", "--port=0"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("http://127.0.0.1:") and "shows 1 run;" in printed.out
    assert "ssh -L" in printed.out and printed.err == ""
    assert found[0][0] == 200
    assert not list(run.parent.glob("report*"))
