"""Recorded engine streams, relayed by Dynamo's own publishers: what kvtide makes of the frames, beside plain sets of the same
events and Dynamo's own tree."""

import io
import json
import socket
import struct
import threading
import time

import msgpack
import pytest
import zmq
import zstandard
from conftest import HERE, wait_for
from dynamo._core import RadixTree, compute_block_hash_for_seq
from fleet import Fleet

CAPTURES = HERE.parent / "captures"
BLOCK_SIZE = 16
PROMPTS = 250


class Bus:
    """Collects the events of all frames on the bus, by worker, in the order of their numbers."""

    def __init__(self, url):
        self.connection = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        self.connection.sendall(b'CONNECT {"verbose":false}\r\nSUB namespace.> 1\r\nPING\r\n')
        self.stream = self.connection.makefile("rb")
        self.events = {}
        while self.stream.readline().strip() != b"PONG":
            pass
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while line := self.stream.readline():
            if line.startswith(b"PING"):
                self.connection.sendall(b"PONG\r\n")
            elif line.startswith(b"MSG"):
                frame = self.stream.read(int(line.split()[-1]))
                self.stream.readline()
                envelope = msgpack.unpackb(frame, raw=False, strict_map_key=False)
                for event in msgpack.unpackb(envelope["payload"], raw=False, strict_map_key=False):
                    self.events.setdefault(event["worker_id"], []).append(event)


class Sets:
    """What ranks hold, as plain sets: for each worker the content of each name, and which names are on the GPU."""

    def __init__(self):
        self.paths, self.held = {}, {}

    def apply(self, worker, event):
        paths, held = self.paths.setdefault(worker, {}), self.held.setdefault(worker, set())
        data = event["event"]["data"]
        if data == "cleared":
            held.clear()
            paths.clear()
        elif "removed" in data:
            held.difference_update(data["removed"]["block_hashes"])
        else:
            stored = data["stored"]
            parent = stored["parent_hash"]
            path = () if parent is None else paths.get(parent)
            if path is None:
                return
            for block in stored["blocks"]:
                path = hash((path, block["tokens_hash"]))
                paths.setdefault(block["block_hash"], path)
                held.add(block["block_hash"])

    def reach(self, worker, hashes):
        held = {self.paths[worker][name] for name in self.held[worker]}
        path, blocks = (), 0
        for content in hashes:
            path = hash((path, content))
            if path not in held:
                break
            blocks += 1
        return blocks


def applies(tree, worker, event):
    """Whether Dynamo's tree takes an event: it refuses blocks that it has lost, and those behind them."""
    try:
        tree.apply_event(worker, json.dumps(event["event"]).encode())
    except RuntimeError:
        return False
    return True


def records(path):
    """The batches of a capture, as a subscriber received them."""
    data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()
    assert data[:7] == b"KVCAP1\n"
    offset = 7
    while offset < len(data):
        (frames,) = struct.unpack_from(">I", data, offset)
        offset += 4
        record = []
        for _ in range(frames):
            (length,) = struct.unpack_from(">I", data, offset)
            record.append(data[offset + 4 : offset + 4 + length])
            offset += 4 + length
        yield record


def prompts(capture):
    """Token sequences of the workload, plain ones."""
    lines = zstandard.ZstdDecompressor().stream_reader((capture / "seqs.jsonl.zst").open("rb")).read()
    known = {}
    for line in lines.splitlines():
        one = json.loads(line)
        base = known[one["base"]][: one["base_len"]] if one["base"] is not None else []
        known[one["id"]] = base + one["ext"]
    return [known[one] for one in sorted(known, key=str)]


class Engine:
    """Publishes a recorded stream."""

    def __init__(self, context, path):
        self.records = list(records(path))
        self.socket = context.socket(zmq.PUB)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"

    def play(self):
        for record in self.records:
            self.socket.send_multipart(record)


# Those where Dynamo's tree answers as the plain sets do, and others, of which it loses blocks.
@pytest.mark.parametrize(
    ("name", "exact"),
    [("sgl059_radix", True), ("sgl0523_unified", True), ("vllm019_array", True), ("vllm033_int_cbor", False)],
)
def test_a_recorded_stream_through_dynamos_relay(nats_url, tmp_path, name, exact):
    fleet, context = Fleet(nats_url, tmp_path), zmq.Context()
    try:
        bus = Bus(nats_url)
        kvtide = fleet.kvtide()
        engines = [Engine(context, path) for path in sorted((CAPTURES / name).glob("w*.kvcap.zst"))]
        workers = [
            fleet.worker(zmq=[engine.address], block_size=BLOCK_SIZE, declared_block_size=BLOCK_SIZE)
            for engine in engines
        ]
        for worker in workers:
            kvtide.wait_for_state((worker.id, 0), "complete", 0)
        # A subscription is taken note of some time after it was asked for.
        time.sleep(2)
        for engine in engines:
            engine.play()

        def followed():
            before = {worker: len(events) for worker, events in bus.events.items()}
            time.sleep(1)
            now = {worker: len(events) for worker, events in bus.events.items()}
            return now if now == before and len(now) == len(workers) else None

        counts = wait_for("an end of the frames", followed)
        sets, theirs, refused = Sets(), RadixTree(), 0
        for worker, events in bus.events.items():
            assert [event["event"]["event_id"] for event in events] == list(range(1, len(events) + 1))
            for event in events:
                sets.apply(worker, event)
                refused += not applies(theirs, worker, event)
        for worker, count in counts.items():
            kvtide.wait_for_state((worker, 0), "complete", count)

        reached = differs = 0
        for tokens in prompts(CAPTURES / name)[-PROMPTS:]:
            hashes = compute_block_hash_for_seq(tokens, BLOCK_SIZE)
            answer = kvtide.ask("/v1/overlap", {"scope": {"model": "m"}, "token_ids": tokens})
            ours = {rank["worker_id"]: rank["reach_tokens"]["gpu"] // BLOCK_SIZE for rank in answer["ranks"]}
            held = {worker: sets.reach(worker, hashes) for worker in bus.events}
            assert ours == held
            scores = theirs.find_matches(hashes).scores
            dynamos = {worker: scores.get((worker, 0), 0) for worker in bus.events}
            reached += sum(held.values())
            differs += dynamos != held
        assert reached > 0, "prompts that nobody holds show nothing"
        assert not (exact and differs), f"Dynamo's tree differs in {differs} answers"
        print(f"{name}: {reached} blocks reached; Dynamo's tree refuses {refused} events and differs in {differs} answers")
    finally:
        fleet.stop()
        context.destroy(linger=0)
