"""Recorded streams of real engines, and what the engine itself had cached (tests/captures/README.md)."""

import json
from pathlib import Path

import zstandard

CAPTURES = Path(__file__).parents[1] / "captures"


def _read(path):
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


def _lines(path):
    return [json.loads(line) for line in _read(path).splitlines()]


def _batches(path):
    """The payloads of a worker's messages, whose numbers have no gaps."""
    rest = memoryview(_read(path))[len(b"KVCAP1\n") :]
    batches = []
    while rest:
        frames, rest = int.from_bytes(rest[:4], "big"), rest[4:]
        for _ in range(frames):
            length = int.from_bytes(rest[:4], "big")
            frame, rest = bytes(rest[4 : 4 + length]), rest[4 + length :]
        batches.append(frame)
    return batches


class Capture:
    def __init__(self, name):
        folder = CAPTURES / name
        meta = json.loads((folder / "meta.json").read_text())
        self.block_size = meta["block_size"]
        self.workers = [_batches(path) for path in sorted(folder.glob("w*.kvcap.zst"))]
        self.checkpoints = _lines(folder / "oracle.jsonl.zst")
        self._sequences = {one["id"]: one for one in _lines(folder / "seqs.jsonl.zst")}
        self._tokens = {None: []}

    def tokens(self, identity):
        if identity not in self._tokens:
            one = self._sequences[identity]
            self._tokens[identity] = self.tokens(one["base"])[: one["base_len"]] + one["ext"]
        return self._tokens[identity]

    def prompt(self, question):
        return self.tokens(question["id"])[: question["n"]]
