"""Dynamo's standalone indexer and a kvtide in its place: the same engines publish to both, and both are asked the same."""

import http.client
import json
import subprocess
import sys
import time
from urllib.parse import urlsplit

import msgpack
import zmq
from conftest import BLOCK_SIZE, Process, can_connect, free_port, wait_for
from dynamo._core import compute_block_hash_for_seq

# Of blocks by which an engine shows how far it has been followed: no prompt has their tokens.
MARKS = 1_000_000_000


class Server:
    """Anything that speaks HTTP."""

    def request(self, method, path, body=None, content_type="application/json"):
        """Status and body, which is parsed if it is JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request(method, path, data, {"Content-Type": content_type} if content_type else {})
            response = connection.getresponse()
            text = response.read()
        except ConnectionError:
            # It need not read a body that is too large to the end.
            return None, None
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text.decode()

    def get(self, path):
        status, body = self.request("GET", path)
        assert status == 200, (path, status, body)
        return body

    def post(self, path, **body):
        status, answer = self.request("POST", path, body)
        assert status in (200, 201), (path, status, answer)
        return answer

    def query(self, tokens, **more):
        return self.post("/query", token_ids=tokens, model_name="m", **more)


class DynamoIndexer(Process, Server):
    def __init__(self, *arguments):
        port = free_port()
        command = [sys.executable, "-m", "dynamo.indexer", "--port", str(port), *arguments]
        super().__init__(*command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        wait_for("Dynamo's indexer", lambda: can_connect(port))


class KvtideIndexer(Server):
    """A kvtide that is spoken to as Dynamo's indexer is."""

    def __init__(self, kvtide):
        self.kvtide, self.url = kvtide, kvtide.url


class Publisher:
    """An engine's PUB socket, which numbers its batches."""

    def __init__(self, worker_id, dp_rank=0, block_size=BLOCK_SIZE, port=None, eagle=False):
        self.worker_id, self.dp_rank, self.block_size = worker_id, dp_rank, block_size
        self.eagle = eagle
        self.socket = zmq.Context.instance().socket(zmq.PUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        port = port or free_port()
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.socket.bind(self.endpoint)
        self.sequence = 0
        self.marks = 0
        self.clock = time.time

    def send(self, payload):
        self.socket.send_multipart([b"kv", self.sequence.to_bytes(8, "big"), payload])
        self.sequence += 1

    def replay(self, payload):
        """Sends a recorded batch. What is published later is so by its clock."""
        batch = msgpack.unpackb(payload, strict_map_key=False)
        recorded = batch["ts"] if isinstance(batch, dict) else batch[0]
        self.clock = lambda: recorded
        self.send(payload)

    def publish(self, *events):
        self.send(msgpack.packb([self.clock(), events, self.dp_rank]))

    def registration(self, **more):
        return {
            "instance_id": self.worker_id,
            "endpoint": self.endpoint,
            "model_name": "m",
            "block_size": self.block_size,
            "dp_rank": self.dp_rank,
            **more,
        }

    def mark(self):
        """Publishes a block of which nobody else knows; returns its hash."""
        self.marks += 1
        number = MARKS + 1000 * self.worker_id + self.marks
        tokens = [[number, number] if self.eagle else number] * self.block_size
        self.publish(stored_tokens([number], None, tokens, self.block_size))
        prompt = [number] * (self.block_size + self.eagle)
        return signed(compute_block_hash_for_seq(prompt, self.block_size, is_eagle=self.eagle))

    def close(self):
        self.socket.close()


def stored_tokens(names, parent, tokens, block_size=BLOCK_SIZE, medium="GPU", **more):
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": block_size,
        "lora_id": None,
        "medium": medium,
        "lora_name": None,
        **more,
    }


def signed(hashes):
    """As `/query_by_hash` takes them."""
    return [number - (1 << 64) if number >> 63 else number for number in hashes]


class Both:
    """The two servers. What is asked of both at once gives a pair: Dynamo's answer and kvtide's."""

    def __init__(self, dynamo, kvtide):
        self.dynamo, self.kvtide = dynamo, kvtide
        self.servers = (dynamo, kvtide)

    def ask(self, method, path, body=None, **more):
        return tuple(server.request(method, path, body, **more) for server in self.servers)

    def query(self, tokens, **more):
        return tuple(server.query(tokens, **more) for server in self.servers)

    def register(self, *publishers, **more):
        """Both follow them, and each other has seen that from where they are."""
        for publisher in publishers:
            for server in self.servers:
                server.post("/register", **publisher.registration(**more))
        for server in self.servers:
            wait_for("active listeners", lambda: all(one["status"] == "active" for one in server.get("/workers")))
        # Dynamo's says active before it is connected; a subscription takes a moment to arrive.
        time.sleep(1)

    def catch_up(self, *publishers):
        """Waits until both have applied everything that was published."""
        for publisher in publishers:
            self.wait_for_mark(publisher.mark())

    def wait_for_mark(self, mark, **more):
        for server in self.servers:
            there = lambda: server.post("/query_by_hash", block_hashes=mark, model_name="m", **more)["scores"]
            wait_for("the last batch", there)
