"""An engine's own publisher, as vLLM and SGLang have it: batches on a PUB socket, and the latest ones on a ROUTER.

Arguments: PUB port, ROUTER port (0: none), batches kept, whether replies carry the topic. Each line on standard input is
{"publish": [events]}, or {"lose": [events]} for a batch that is kept but never reaches a subscriber. Prints a line when it
is ready and one for each line that it has taken.
"""

import collections
import json
import queue
import sys
import threading
import time

import msgpack
import zmq

TOPIC = b"kv"
END = (-1).to_bytes(8, "big", signed=True)


def answer(router, kept, topic):
    client, delimiter, start = router.recv_multipart()
    first = int.from_bytes(start, "big")
    between = [TOPIC] if topic else []
    for sequence, payload in kept:
        if sequence >= first:
            router.send_multipart([client, delimiter, *between, sequence.to_bytes(8, "big"), payload])
    router.send_multipart([client, delimiter, *([b""] if topic else []), END, b""])


def read(orders):
    for line in sys.stdin:
        orders.put(line)
    orders.put("")


def main():
    pub_port, router_port, kept_batches, topic = map(int, sys.argv[1:5])
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.bind(f"tcp://127.0.0.1:{pub_port}")
    router = context.socket(zmq.ROUTER)
    if router_port:
        router.bind(f"tcp://127.0.0.1:{router_port}")
    kept = collections.deque(maxlen=kept_batches)
    orders = queue.Queue()
    threading.Thread(target=read, args=[orders], daemon=True).start()
    print("ready", flush=True)
    sequence = 0
    while True:
        if router.poll(0):
            answer(router, kept, topic)
        try:
            line = orders.get(timeout=0.02)
        except queue.Empty:
            continue
        if not line:
            return
        order = json.loads(line)
        events = order.get("publish", order.get("lose"))
        payload = msgpack.packb([time.time(), events, 0])
        kept.append((sequence, payload))
        if "publish" in order:
            publisher.send_multipart([TOPIC, sequence.to_bytes(8, "big"), payload])
        sequence += 1
        print("taken", flush=True)


main()
