"""Plots how far three workers reach into one prompt, and how far behind each of them the index is.

    python examples/plot_reach_and_lag.py --to reach-and-lag.png

The workers are threads that publish as vLLM does, on ZMQ sockets of their own, and one of them slowly; what is drawn is what the
index says every 20 ms. It needs matplotlib, msgpack and pyzmq.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from typing import cast

import kvtide
import matplotlib
import zmq
from msgpack import packb  # type: ignore[import-untyped]

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

BLOCK_SIZE = 16
BLOCKS = 64
PROMPT = list(range(BLOCKS * BLOCK_SIZE))


class Engine(threading.Thread):
    """Stores the prompt block by block, evicts some from its end again, and tells of it `delay_s` after it has happened."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], worker: int, delay_s: float, until: float) -> None:
        super().__init__(daemon=True)
        self.worker, self.delay_s, self.until = worker, delay_s, until
        self.socket: zmq.Socket[bytes] = context.socket(zmq.PUB)
        self.endpoint = f"inproc://worker-{worker}"
        self.socket.bind(self.endpoint)

    def run(self) -> None:
        draw, held, sequence = random.Random(self.worker), 0, 0
        while time.monotonic() < self.until:
            happened = time.time()
            if held < BLOCKS and (held < 8 or draw.random() < 0.85):
                held += 1
                tokens = PROMPT[(held - 1) * BLOCK_SIZE : held * BLOCK_SIZE]
                event = ["BlockStored", [held], held - 1 or None, tokens, BLOCK_SIZE, None, "GPU"]
            else:
                count = draw.randrange(1, 8)
                event = ["BlockRemoved", list(range(held - count + 1, held + 1)), "GPU"]
                held -= count
            time.sleep(self.delay_s * draw.uniform(0.5, 1.5))
            batch = cast("bytes", packb([happened, [event], 0]))
            self.socket.send_multipart([b"kv", sequence.to_bytes(8, "big"), batch])
            sequence += 1
            time.sleep(draw.uniform(0.005, 0.03))


def follow(index: kvtide.Indexer, socket: zmq.Socket[bytes], worker: int) -> None:
    while True:
        _topic, sequence, batch = socket.recv_multipart()
        index.apply_engine_batch(batch, worker_id=worker, sequence=int.from_bytes(sequence, "big"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", default="reach-and-lag.png")
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    index = kvtide.Indexer("m", BLOCK_SIZE)
    started = time.monotonic()
    engines = [Engine(context, worker, delay, started + arguments.seconds) for worker, delay in ((1, 0.002), (2, 0.005), (3, 0.04))]
    for engine in engines:
        index.register_worker(engine.worker)
        socket: zmq.Socket[bytes] = context.socket(zmq.SUB)
        socket.connect(engine.endpoint)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        threading.Thread(target=follow, args=(index, socket, engine.worker), daemon=True).start()
    time.sleep(0.2)
    for engine in engines:
        engine.start()

    times: dict[int, list[float]] = {engine.worker: [] for engine in engines}
    reaches: dict[int, list[int]] = {engine.worker: [] for engine in engines}
    lags: dict[int, list[int]] = {engine.worker: [] for engine in engines}
    while (now := time.monotonic() - started) < arguments.seconds:
        for rank in index.overlap(PROMPT).ranks:
            # Where nothing is known there is no point: that is not a reach of 0.
            if rank.reach is not None and rank.freshness is not None and rank.freshness.lag_ms is not None:
                times[rank.worker_id].append(now)
                reaches[rank.worker_id].append(rank.reach.gpu)
                lags[rank.worker_id].append(rank.freshness.lag_ms)
        time.sleep(0.02)

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5), layout="constrained")
    for worker in times:
        above.step(times[worker], reaches[worker], where="post", label=f"worker {worker}")
        below.step(times[worker], lags[worker], where="post")
    above.set_ylabel("tokens on the GPU")
    above.set_title(f"Reach into a prompt of {len(PROMPT)} tokens, and lag of the newest event")
    above.legend(loc="upper left")
    below.set_ylabel("lag, ms")
    below.set_xlabel("seconds")
    # Its own types leave the form of a path open.
    figure.savefig(arguments.to, dpi=100)  # pyright: ignore[reportUnknownMemberType]
    print(f"wrote {arguments.to}: {sum(map(len, times.values()))} points of {len(times)} workers")


if __name__ == "__main__":
    main()
