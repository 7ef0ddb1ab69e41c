"""A nats-server and a kvtide of each test's own, on free ports, stopped with it."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

# What Dynamo's own trees have to say would fill the screen.
os.environ.setdefault("DYN_LOG", "off")

HERE = Path(__file__).parent
PATIENCE_S = 20
BLOCK_SIZE = 4
KVTIDE = os.environ.get("KVTIDE_BIN", HERE.parents[1] / "target" / "debug" / "kvtide")


def wait_for(what, poll):
    """Polls until something true comes back."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := poll():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {PATIENCE_S} s")


def wait_until_saved(snapshot):
    """Waits for a snapshot of what is known now."""
    now = time.time()
    wait_for("a snapshot of that", lambda: snapshot.exists() and snapshot.stat().st_mtime > now + 0.1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def can_connect(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Process:
    """A child that is ended with the test."""

    def __init__(self, *command, **options):
        self.child = subprocess.Popen(command, text=True, **options)

    def stop(self):
        self.child.kill()
        self.child.wait()


class Kvtide(Process):
    def __init__(self, *arguments):
        self.start(KVTIDE, "serve", *arguments)

    def start(self, *command, **options):
        Process.__init__(self, *command, "--listen", "127.0.0.1:0", stderr=subprocess.PIPE, **options)
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.child.stderr), daemon=True).start()
        self.url = self.log_line(r"listening on (\S+)")[1]

    def log_line(self, pattern):
        return wait_for(f"a line with {pattern!r}", lambda: re.search(pattern, "".join(self.log)))

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response)

    def workers(self):
        return {(w["worker_id"], w["dp_rank"]): w for w in self.ask("/v1/workers")["workers"]}

    def wait_for_event(self, rank, event_id, generation=1, knowledge=None):
        """Waits until an event of a rank's life is visible, and returns the rank's state."""

        def visible():
            worker = self.workers().get(rank, {"freshness": {}})
            fresh = worker["freshness"]
            there = (fresh.get("generation"), fresh.get("last_event_id")) == (generation, event_id)
            return there and knowledge in (None, worker["knowledge"]) and worker

        return wait_for(f"event {event_id} of {rank}", visible)

    def reach(self, tokens, rank, **salts):
        """Leading tokens of a prompt on a rank's GPU."""
        answer = self.ask("/v1/overlap", {"scope": {"model": "m", **salts}, "token_ids": tokens})
        found = {(r["worker_id"], r["dp_rank"]): r for r in answer["ranks"]}
        return found[rank]["reach_tokens"]["gpu"]


class Told(Process):
    """A child that does what lines of JSON tell it, and says a word when it has."""

    def __init__(self, script, *arguments, **options):
        command = [sys.executable, HERE / script, *map(str, arguments)]
        super().__init__(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
        self._greet()

    def _greet(self):
        self._expect("ready")

    def _expect(self, word):
        assert self._read() == word

    def _read(self):
        return self.child.stdout.readline().strip()

    def _send(self, **order):
        self.child.stdin.write(json.dumps(order) + "\n")
        self.child.stdin.flush()

    def _order(self, **order):
        self._send(**order)
        self._expect("taken")


class Publisher(Told):
    def __init__(self, nats_url, worker_id, dp_rank=0):
        environment = {**os.environ, "NATS_SERVER": nats_url, "DYN_EVENT_PLANE": "nats"}
        super().__init__("publisher.py", worker_id, dp_rank, BLOCK_SIZE, env=environment)

    def stored(self, tokens, names, parent=None, **salts):
        sizes = [BLOCK_SIZE] * len(names)
        arguments = {"token_ids": tokens, "num_block_tokens": sizes, "block_hashes": names, "parent_hash": parent}
        self._order(stored={**arguments, **salts})

    def removed(self, names):
        self._order(removed=names)


class Engine(Told):
    """An engine of worker 7, whose block n has 4 tokens n and stands behind block n - 1."""

    def __init__(self, ports, kept=10_000, topic=True):
        super().__init__("engine.py", *ports, kept, int(topic))

    def publish(self, *events):
        self._order(publish=events)

    def lose(self, *events):
        """Publishes a batch that reaches nobody."""
        self._order(lose=events)


def stored(first, last=None):
    """Blocks are stored on the GPU."""
    numbers = range(first, (last or first) + 1)
    return {
        "type": "BlockStored",
        "block_hashes": [*numbers],
        "parent_block_hash": first - 1 if first > 1 else None,
        "token_ids": prompt(*numbers),
        "block_size": BLOCK_SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def removed(*numbers):
    return {"type": "BlockRemoved", "block_hashes": numbers, "medium": "GPU"}


def prompt(*numbers):
    """The tokens of blocks."""
    return [number for number in numbers for _ in range(BLOCK_SIZE)]


@contextlib.contextmanager
def nats_server():
    """A nats-server that ends with the block; its address."""
    program = shutil.which("nats-server", path=os.environ["PATH"] + ":/usr/sbin")
    assert program, "nats-server is missing; `make test` installs it"
    port = free_port()
    server = Process(program, "--addr", "127.0.0.1", "--port", str(port), stderr=subprocess.DEVNULL)
    wait_for("a nats-server that listens", lambda: can_connect(port))
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.stop()


@pytest.fixture
def nats_url():
    with nats_server() as url:
        yield url


@pytest.fixture
def start_kvtide():
    """Starts kvtides that follow a bus, with a configuration file if there is one; they end with the test."""
    started = []

    def start(nats_url, config=None):
        file = ["--config", config] if config else []
        started.append(Kvtide(*file, "--nats", nats_url, "--model", "m", "--block-size", str(BLOCK_SIZE)))
        started[-1].log_line("connected to NATS")
        # The subscription is sent right behind the connection; core NATS keeps nothing for late subscribers.
        time.sleep(0.3)
        return started[-1]

    yield start
    for process in started:
        process.stop()


@pytest.fixture
def kvtide(nats_url, start_kvtide):
    return start_kvtide(nats_url)


@pytest.fixture
def follow(tmp_path):
    """Starts a kvtide that follows engines: data-parallel ranks 0, 1, ... of worker 7, each with its two ports."""
    started = []

    def start(*engines, snapshot=None):
        streams = f'snapshot = {{ path = "{snapshot}", every_s = 1 }}\n' if snapshot else ""
        for rank, (pub_port, router_port) in enumerate(engines):
            streams += f"""
                [[stream]]
                name = "rank-{rank}"
                model = "m"
                block_size = {BLOCK_SIZE}
                worker_id = 7
                dp_rank = {rank}
                zmq = "tcp://127.0.0.1:{pub_port}"
                zmq_replay = "tcp://127.0.0.1:{router_port}"
            """
        config = tmp_path / "kvtide.toml"
        config.write_text(streams)
        started.append(Kvtide("--config", config))
        return started[-1]

    yield start
    for process in started:
        process.stop()


@pytest.fixture
def engine():
    """Starts engines, which end with the test."""
    started = []

    def start(ports, **options):
        started.append(Engine(ports, **options))
        return started[-1]

    yield start
    for process in started:
        process.stop()


@pytest.fixture
def ports():
    return free_port(), free_port()


@pytest.fixture
def publish(nats_url):
    """Starts publishers, which end with the test."""
    started = []

    def start(worker_id, dp_rank=0):
        started.append(Publisher(nats_url, worker_id, dp_rank))
        return started[-1]

    yield start
    for publisher in started:
        publisher.stop()


@pytest.fixture
def both():
    """Dynamo's standalone indexer, and a kvtide in its place."""
    from dropin import Both, DynamoIndexer, KvtideIndexer

    dynamo, kvtide = DynamoIndexer(), Kvtide()
    yield Both(dynamo, KvtideIndexer(kvtide))
    dynamo.stop()
    kvtide.stop()


@pytest.fixture
def fleet(nats_url, tmp_path):
    """A Dynamo fleet of the test's own, which ends with it."""
    from fleet import Fleet

    folder = tmp_path / "discovery"
    folder.mkdir()
    fleet = Fleet(nats_url, folder)
    yield fleet
    fleet.stop()
