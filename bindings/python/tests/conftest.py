"""A kvtide service of each test's own, on a free port, stopped with it."""

import os
import queue
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest

# What Dynamo's own tree has to say would fill the screen.
os.environ.setdefault("DYN_LOG", "off")

KVTIDE = os.environ.get("KVTIDE_BIN", Path(__file__).parents[3] / "target" / "debug" / "kvtide")
PATIENCE_S = 20


class Service:
    """`kvtide serve`, and where it listens."""

    def __init__(self, *arguments, listen="127.0.0.1:0"):
        command = [str(KVTIDE), "serve", *map(str, arguments), "--listen", listen]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines = queue.Queue()
        threading.Thread(target=lambda: [lines.put(line) for line in self.child.stderr], daemon=True).start()
        until, log = time.monotonic() + PATIENCE_S, ""
        while not (found := re.search(r"listening on (\S+)", log)):
            assert time.monotonic() < until, f"kvtide does not listen:\n{log}"
            try:
                log += lines.get(timeout=0.1)
            except queue.Empty:
                assert self.child.poll() is None, f"kvtide has ended:\n{log}"
        self.url = found[1]

    def stop(self):
        self.child.kill()
        self.child.wait()


@pytest.fixture
def start():
    """Starts services, which end with the test."""
    started = []

    def serve(*arguments, **options):
        started.append(Service(*arguments, **options))
        return started[-1]

    yield serve
    for service in started:
        service.stop()


@pytest.fixture
def service(start):
    return start()
