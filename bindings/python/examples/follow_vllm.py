"""Follows a real vLLM in process: its events over ZMQ, what was missed from its replay socket, and a prompt's reach as it grows.

Start vLLM with `--block-size 32 --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq",
"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://127.0.0.1:5558", "topic": "kv"}' --enable-prompt-tokens-details`, then

    python examples/follow_vllm.py --http http://127.0.0.1:8000 --model tiny --block-size 32

It sends a prompt three times and prints what the index says before, and what the engine says that it had cached.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
import urllib.request
from typing import Any

import kvtide
import zmq

WORKER = 7
#: The sequence frame behind the last replayed batch.
END = b"\xff" * 8


class Follower:
    """Brings one engine's batches into an index, from a thread of its own."""

    def __init__(self, index: kvtide.Indexer, events: str, replay: str) -> None:
        self.index = index
        self.context = zmq.Context()
        self.live: zmq.Socket[bytes] = self.context.socket(zmq.SUB)
        self.live.connect(events)
        self.live.setsockopt(zmq.SUBSCRIBE, b"")
        self.replay = replay
        # Before the thread: what is published meanwhile waits in the socket, and what comes twice is known as a repeat.
        self.next = self.fetch(0)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def fetch(self, first: int) -> int:
        """Applies what the engine still has from a number on. Returns the number behind it."""
        ask: zmq.Socket[bytes] = self.context.socket(zmq.DEALER)
        ask.connect(self.replay)
        ask.send_multipart([b"", first.to_bytes(8, "big")])
        while ask.poll(5000):
            *_, sequence, payload = ask.recv_multipart()
            if sequence == END:
                break
            first = self.apply(sequence, payload)
        ask.close(linger=0)
        return first

    def apply(self, sequence: bytes, payload: bytes) -> int:
        number = int.from_bytes(sequence, "big")
        self.index.apply_engine_batch(payload, worker_id=WORKER, sequence=number)
        return number + 1

    def run(self) -> None:
        while True:
            _topic, sequence, payload = self.live.recv_multipart()
            number = int.from_bytes(sequence, "big")
            if number > self.next:
                self.fetch(self.next)
            self.next = self.apply(sequence, payload)


def cached_tokens(url: str, model: str, prompt: list[int]) -> int:
    """Has the prompt answered. How many of its tokens the engine had cached."""
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        usage: dict[str, Any] = json.load(reply)["usage"]
    details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", default="http://127.0.0.1:8000")
    parser.add_argument("--events", default="tcp://127.0.0.1:5557")
    parser.add_argument("--replay", default="tcp://127.0.0.1:5558")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--block-size", type=int, default=32)
    arguments = parser.parse_args()

    index = kvtide.Indexer(arguments.model, arguments.block_size)
    index.register_worker(WORKER)
    Follower(index, arguments.events, arguments.replay)
    draw = random.Random()
    prompt = [draw.randrange(1000, 100_000) for _ in range(400)]
    for length in (200, 400, 400):
        rank = index.overlap(prompt[:length]).rank(WORKER)
        assert rank is not None, "a worker that is registered is in every answer"
        # Unknown is not zero: before the first event nobody knows what the engine has.
        predicted = "unknown" if rank.reach is None else str(rank.reach.gpu)
        lag = rank.freshness.lag_ms if rank.freshness else None
        cached = cached_tokens(arguments.http, arguments.model, prompt[:length])
        print(f"{length} tokens: index {predicted} ({rank.knowledge}, lag {lag} ms), engine {cached}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
