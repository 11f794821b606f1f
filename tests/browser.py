"""A headless Chromium that tests drive by its DevTools protocol over a pipe; needs no driver."""

import base64
import json
import os
import shutil
import subprocess
import threading

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
    "--disable-background-networking --window-size=1400,4000 --remote-debugging-pipe"
).split()


def find_browser():
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page. A context manager, which ends the browser. errors: texts of the console's errors
    and of uncaught exceptions so far.
    """

    def __init__(self, browser, profile, seconds=600):
        self.errors, self.number, self.pending, self.session = [], 0, b"", None
        theirs, self.out = os.pipe()
        self.inward, back = os.pipe()
        words = [browser, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        # Chromium reads commands from 3 and writes answers to 4
        shell = ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{back}', "browser", *words]
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.process = subprocess.Popen(shell, pass_fds=(theirs, back), **quiet)
        os.close(theirs)
        os.close(back)
        self.limit = threading.Timer(seconds, self.process.kill)  # ends a hang
        self.limit.start()
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **parameters):
        """The result of a DevTools command."""
        self.number += 1
        message = dict(id=self.number, method=method, params=parameters)
        message |= {} if self.session is None else dict(sessionId=self.session)
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.pending:
                block = os.read(self.inward, 1 << 16)
                assert block, "the browser has ended"
                self.pending += block
            text, self.pending = self.pending.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.note(answer)

    def note(self, event):
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(values["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "assert"):
            self.errors.append(str([part.get("value") for part in values["args"]]))
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")

    def open(self, address):
        self.ask("Page.navigate", url=address)

    def evaluate(self, expression):
        """The value of a JavaScript expression, or of what it promises."""
        result = self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def show_as(self, width, scheme, height=1400):
        """Gives the page a width in pixels (below 600: as a phone) and the scheme "light" or
        "dark".
        """
        size = dict(width=width, height=height, deviceScaleFactor=2 if width < 600 else 1)
        self.ask("Emulation.setDeviceMetricsOverride", mobile=width < 600, **size)
        feature = dict(name="prefers-color-scheme", value=scheme)
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self):
        """The bytes of a PNG of what is shown."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.limit.cancel()
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.inward)
