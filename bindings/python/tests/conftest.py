"""A kvtide service of each test's own, on a free port, and clients of both kinds, all of which end with it."""

import asyncio
import os
import queue
import re
import subprocess
import threading
import time
from pathlib import Path

import kvtide
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


SCOPE = {"model": "m", "block_size": 4}


class Waiting:
    """An `AsyncClient` whose methods wait, so that one table of tests is for both."""

    def __init__(self, *arguments, **options):
        self.client = kvtide.AsyncClient(*arguments, **options)
        self.loop = asyncio.new_event_loop()

    def __getattr__(self, name):
        if name not in vars(kvtide.AsyncClient):
            raise AttributeError(name)
        method = getattr(self.client, name)
        return lambda *arguments, **options: self.loop.run_until_complete(method(*arguments, **options))

    def end(self):
        self.close()
        self.loop.close()


class Plain(kvtide.Client):
    """A `Client`, which needs no more at its end."""

    end = kvtide.Client.close


@pytest.fixture(params=[Plain, Waiting], ids=["Client", "AsyncClient"])
def connect(request):
    """Makes clients of both kinds, which are closed with the test."""
    made = []

    def client(url, **options):
        made.append(request.param(url, **{"scope": SCOPE, **options}))
        return made[-1]

    yield client
    for one in made:
        one.end()
