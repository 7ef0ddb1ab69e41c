"""A Dynamo fleet of each test's own: discovery in a folder, a nats-server, workers, and kvtides that follow them."""

import json
import os
import socket
import threading
import urllib.error
import urllib.request

from conftest import BLOCK_SIZE, HERE, PATIENCE_S, Kvtide, Told, wait_for

GAP_S = 0.5


class Worker(Told):
    """A worker with a publisher for each data-parallel rank. Its id is that of its runtime."""

    def __init__(self, environment, **settings):
        default = {
            "model": "m",
            "block_size": BLOCK_SIZE,
            "declared_block_size": BLOCK_SIZE,
            "ranks": 1,
            "keeps_index": True,
            "zmq": None,
        }
        super().__init__("fleet_worker.py", json.dumps(default | settings), env=environment)

    def _greet(self):
        self.id = int(self._read())

    def stored(self, tokens, names, parent=None, rank=0):
        sizes = [BLOCK_SIZE] * len(names)
        stored = {"token_ids": tokens, "num_block_tokens": sizes, "block_hashes": names, "parent_hash": parent}
        self._order(rank=rank, stored=stored)

    def removed(self, names, rank=0):
        self._order(rank=rank, removed=names)

    def chain(self, first, last, rank=0):
        """Stores blocks of one prompt, an event each: block n is called n and has 4 tokens n."""
        self._order(rank=rank, chain=[first, last])

    def restart(self, rank=0):
        self._order(rank=rank, restart=True)

    def end(self):
        """Ends in order: discovery is told."""
        self.child.stdin.close()
        self.child.wait(PATIENCE_S)


class Mocker(Told):
    """A worker whose ranks run Dynamo's simulated engine."""

    def __init__(self, environment, folder, block_size, blocks, ranks):
        model = folder / "model"
        model.mkdir(exist_ok=True)
        # As much of a model as a card needs.
        (model / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 131072}')
        super().__init__("fleet_mocker.py", "m", model, block_size, blocks, ranks, env=environment)

    def _greet(self):
        self.id = int(self._read())


class DynamoRouter(Told):
    """Dynamo's own router, with an index of its own."""

    def __init__(self, environment, folder, block_size):
        # It has something to say of each prompt.
        with open(folder / "router.log", "w") as log:
            super().__init__("fleet_router.py", block_size, env=environment, stderr=log)

    def _told(self, **order):
        self._send(**order)
        return json.loads(self._read())

    def wait_for_workers(self, ids):
        wait_for(f"workers {ids}", lambda: set(self._told(workers=None)) == set(ids))

    def held(self, prompt):
        """Blocks of a prompt that each rank holds."""
        return {(worker_id, dp_rank): blocks for worker_id, dp_rank, blocks in self._told(held=prompt)}

    def complete(self, *requests):
        """Sends prompts to ranks, all at once. Returns the tokens of each answer, and how many of its prompt's were cached."""
        fields = [
            {"token_ids": prompt, "worker_id": worker_id, "dp_rank": dp_rank, "max_tokens": max_tokens}
            for prompt, (worker_id, dp_rank), max_tokens in requests
        ]
        return [(answer["token_ids"], answer["cached_tokens"]) for answer in self._told(complete=fields)]


class KvtideDynamo(Kvtide):
    def __init__(self, environment, nats_url, *arguments):
        built = HERE.parents[1] / "bindings" / "dynamo" / "target" / "debug" / "kvtide-dynamo"
        binary = os.environ.get("KVTIDE_DYNAMO_BIN", built)
        self.start(binary, "--nats", nats_url, *map(str, arguments), env=environment | {"KVTIDE_LOG": "kvtide=debug,info"})

    def ready(self):
        """Whether it is ready, or what it still waits for."""
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=PATIENCE_S):
                return True
        except urllib.error.HTTPError as error:
            return json.load(error)

    def wait_until_ready(self):
        wait_for("readiness", lambda: self.ready() is True)

    def wait_for_state(self, rank, knowledge, last=None, generation=None):
        def reached():
            worker = self.workers().get(rank)
            if not worker or worker["knowledge"] != knowledge:
                return None
            fresh = worker["freshness"]
            fits = last in (None, fresh["last_event_id"]) and generation in (None, fresh["generation"])
            return worker if fits else None

        try:
            return wait_for(f"{rank} {knowledge} at {last}", reached)
        except AssertionError as error:
            log = "".join(self.log)[-3000:]
            raise AssertionError(f"{error}: {self.workers().get(rank)}\n{log}") from None

    def blocks(self, blocks, rank):
        """Leading blocks of the prompt 1, 2, ... on a rank's GPU."""
        return self.reach([n % 65_536 for n in range(1, blocks + 1) for _ in range(BLOCK_SIZE)], rank) // BLOCK_SIZE


class Line:
    """The way to the bus, which can be cut: what is published meanwhile is lost."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self.listener.getsockname()[1]}"
        self.open, self.ends = True, []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if not self.open:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.to))
            self.ends += [client, server]
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source, target):
        try:
            while data := source.recv(65_536):
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            end.close()

    def cut(self):
        self.open = False
        for end in self.ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.ends = []

    def mend(self):
        self.open = True

    def stop(self):
        self.cut()
        self.listener.close()


class Fleet:
    def __init__(self, nats_url, folder):
        self.nats_url, self.folder = nats_url, folder
        self.environment = os.environ | {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(folder),
            "DYN_EVENT_PLANE": "nats",
            "DYN_REQUEST_PLANE": "tcp",
            "NATS_SERVER": nats_url,
            "DYN_LOG": "error",
        }
        self.started = []

    def worker(self, **settings):
        self.started.append(Worker(self.environment, **settings))
        return self.started[-1]

    def mocker(self, block_size, blocks, ranks):
        self.started.append(Mocker(self.environment, self.folder.parent, block_size, blocks, ranks))
        return self.started[-1]

    def router(self, block_size):
        self.started.append(DynamoRouter(self.environment, self.folder.parent, block_size))
        return self.started[-1]

    def kvtide(self, *arguments, line=None):
        self.started.append(KvtideDynamo(self.environment, line.url if line else self.nats_url, *arguments))
        return self.started[-1]

    def line(self):
        self.started.append(Line(int(self.nats_url.rsplit(":", 1)[1])))
        return self.started[-1]

    def stop(self):
        for one in self.started:
            one.stop()
