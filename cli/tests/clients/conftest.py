"""The program under test: served from the demo model, on a free port, for as long as a test needs it."""

import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "models/demo-vlm"
BINARY = Path(os.environ.get("CIDER_BINARY", ROOT / "target/debug/cider"))
PATIENCE = 60


class Server:
    """A program that serves; its address, and its log so far."""

    def __init__(self, *arguments):
        command = [BINARY, "serve", MODEL, "--port", "0", "--cache-tokens", "16384", *map(str, arguments)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CIDER_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.log, self.url = [], None
        listening = threading.Event()
        threading.Thread(target=self._read, args=(listening,), daemon=True).start()
        if not listening.wait(PATIENCE) or self.url is None:
            self.process.kill()
            raise RuntimeError(f"{BINARY} does not listen:\n" + "".join(self.log))

    def _read(self, listening):
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on (http://\S+?),", line):
                self.url = found[1]
                listening.set()
        listening.set()

    def get(self, path, **headers):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=PATIENCE) as answer:
            return json.load(answer)

    def wait_until_idle(self):
        """Waits until nothing is computed, and says how long that took."""
        start = time.monotonic()
        while self.get("/v1/queue")["queue_size"] and time.monotonic() - start < PATIENCE:
            time.sleep(0.01)
        assert self.get("/v1/queue")["queue_size"] == 0
        return time.monotonic() - start

    def end(self):
        self.process.terminate()
        return self.process.wait(PATIENCE)


@contextmanager
def serving(*arguments):
    server = Server(*arguments)
    try:
        yield server
    finally:
        # What ends with an error, or does not end, has failed.
        assert server.end() == 0, "".join(server.log)
        assert "panicked" not in "".join(server.log)


@pytest.fixture(scope="session")
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def examples():
    return json.loads((MODEL / "examples/examples.json").read_text())


def picture(name):
    return MODEL / "examples" / name
