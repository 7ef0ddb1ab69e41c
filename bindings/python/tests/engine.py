"""An engine as vLLM is one, as far as a follower sees it: a prefix cache, its events over ZMQ, a replay socket, and answers over HTTP."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgpack
import zmq

END = b"\xff" * 8


class Engine:
    """Caches every block of every prompt, and announces each prompt's new ones in batches of one block."""

    def __init__(self, block_size, lost=()):
        self.block_size = block_size
        self.names = {}
        self.batches = []
        # Numbers of batches that are published and do not arrive.
        self.lost = set(lost)
        self.asked_from = []
        self.over = threading.Event()
        self.context = zmq.Context()
        self.publisher, self.replayer = self.context.socket(zmq.XPUB), self.context.socket(zmq.ROUTER)
        self.events, self.replay = (self.bind(one) for one in (self.publisher, self.replayer))
        engine = self

        class Completions(BaseHTTPRequestHandler):
            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                cached = engine.serve(asked["prompt"])
                reply = json.dumps({"usage": {"prompt_tokens_details": {"cached_tokens": cached}}}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.threads = [threading.Thread(target=work) for work in (self.server.serve_forever, self.answer_replays)]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def bind(socket):
        return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"

    def serve(self, prompt):
        """Answers a prompt. How many of its tokens were cached."""
        if not self.names:
            assert self.publisher.poll(10_000), "nobody has subscribed"
        blocks = [tuple(prompt[: (n + 1) * self.block_size]) for n in range(len(prompt) // self.block_size)]
        cached = sum(block in self.names for block in blocks)
        for place in range(cached, len(blocks)):
            name = self.names[blocks[place]] = len(self.names) + 1
            parent = self.names[blocks[place - 1]] if place else None
            tokens = blocks[place][-self.block_size :]
            stored = ["BlockStored", [name], parent, list(tokens), self.block_size, None, "GPU"]
            self.publish([time.time(), [stored], 0])
        return cached * self.block_size

    def publish(self, batch):
        number, payload = len(self.batches), msgpack.packb(batch)
        self.batches.append(payload)
        if number not in self.lost:
            self.publisher.send_multipart([b"kv", number.to_bytes(8, "big"), payload])

    def answer_replays(self):
        while not self.over.is_set():
            if not self.replayer.poll(20):
                continue
            who, empty, first = self.replayer.recv_multipart()
            first = int.from_bytes(first, "big")
            self.asked_from.append(first)
            for number, payload in enumerate(self.batches[first:], first):
                self.replayer.send_multipart([who, empty, number.to_bytes(8, "big"), payload])
            self.replayer.send_multipart([who, empty, END, b""])

    def stop(self):
        self.over.set()
        self.server.shutdown()
        for thread in self.threads:
            thread.join()
        self.server.server_close()
        self.context.destroy(linger=0)
