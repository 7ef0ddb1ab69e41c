"""What kvtide costs in Python: over its Rust, on two threads, and beside Dynamo's `RadixTree`.

    pip install ./bindings/python numpy msgpack ai-dynamo-runtime==1.6.1
    python bindings/python/benches/figures.py

Every figure is the best of interleaved rounds in one process. It ends with 1 if one is not what docs/python.md promises.
"""

import json
import os
import sys
import threading
import time

os.environ.setdefault("DYN_LOG", "off")

import kvtide
import msgpack
import numpy as np
from dynamo import _core as dynamo
from kvtide.compat.dynamo import RadixTree

BLOCK_SIZE = 64
WORKERS = 64
ROUNDS = 7
SPAN = 8
misses = []


def promise(what, got, limit, is_least):
    held = got >= limit if is_least else got <= limit
    print(f"{'  ' if held else '! '}{what}: {got:.2f} ({'at least' if is_least else 'at most'} {limit})")
    if not held:
        misses.append(what)


def seconds(work, calls):
    started = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - started) / calls


def best(works, calls):
    """The best of interleaved rounds, each."""
    found = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for place, work in enumerate(works):
            found[place] = min(found[place], seconds(work, calls))
    return found


def fleet(workers=WORKERS, prompts=400, seed=7):
    """Prompts that share system prompts, and the events of workers that hold them: `(worker, names, hashes, parent)`."""
    draw = np.random.default_rng(seed)
    systems = [draw.integers(0, 128_000, 16 * BLOCK_SIZE, dtype=np.uint32) for _ in range(16)]
    asked, events = [], []
    held = [set() for _ in range(workers)]
    for _ in range(prompts):
        tail = draw.integers(0, 128_000, int(draw.integers(8, 64)) * BLOCK_SIZE, dtype=np.uint32)
        prompt = np.concatenate([systems[draw.integers(16)], tail])
        asked.append(prompt)
        hashes = kvtide.hash_blocks(prompt, BLOCK_SIZE)
        names = kvtide.sequence_hashes(hashes)
        for worker in draw.choice(workers, 4, replace=False):
            first = next((place for place, name in enumerate(names) if name not in held[worker]), len(names))
            held[worker].update(names)
            # A few blocks an event, as engines announce them.
            for start in range(first, len(names), SPAN):
                part = slice(start, start + SPAN)
                events.append((int(worker), names[part], hashes[part], names[start - 1] if start else None))
    return asked, events


def as_json(events):
    def one(number, names, hashes, parent):
        blocks = [{"block_hash": n, "tokens_hash": h, "mm_extra_info": None} for n, h in zip(names, hashes)]
        data = {"stored": {"parent_hash": parent, "start_position": None, "blocks": blocks}}
        return json.dumps({"event_id": number, "data": data, "dp_rank": 0}).encode()

    return [(worker, one(number, *rest)) for number, (worker, *rest) in enumerate(events, 1)]


def as_frames(events, most=128):
    """The same as frames of Dynamo's event plane: one publisher a worker, at most 128 events a frame."""
    by_worker = {}
    for worker, names, hashes, parent in events:
        blocks = [{"block_hash": n, "tokens_hash": h, "mm_extra_info": None} for n, h in zip(names, hashes)]
        data = {"stored": {"parent_hash": parent, "start_position": None, "blocks": blocks}}
        by_worker.setdefault(worker, []).append(data)
    frames = []
    for worker, rows in by_worker.items():
        told = [
            {"worker_id": worker, "storage_tier": "device", "event": {"event_id": number, "data": data, "dp_rank": 0}}
            for number, data in enumerate(rows, 1)
        ]
        for sequence, start in enumerate(range(0, len(told), most)):
            payload = msgpack.packb(told[start : start + most])
            frame = {"publisher_id": worker + 1, "sequence": sequence, "published_at": 0, "topic": "kv-events"}
            frames.append(msgpack.packb({**frame, "payload": payload}))
    return frames


def timed(found, name, work):
    started = time.perf_counter()
    result = work()
    took = time.perf_counter() - started
    found[name] = min(found.get(name, took), took)
    return result


def beside_dynamo(asked, events):
    """The same events and prompts: Dynamo's tree, the tree with its names, and an index that is fed with frames."""
    told, frames = as_json(events), as_frames(events)
    hashes = [kvtide.hash_blocks(prompt, BLOCK_SIZE) for prompt in asked]
    lists = [prompt.tolist() for prompt in asked]
    applied, found, answered = {}, {}, {}

    def feed(tree):
        for worker, event in told:
            tree.apply_event(worker, event)
        # Dynamo's applies behind the call, in a thread of its own: an answer ends the work.
        tree.find_matches(hashes[0])

    def feed_index():
        for frame in frames:
            index.apply_dynamo_frame(frame)
        index.overlap(block_hashes=hashes[0])

    def best_of(tree, tokens):
        scores = tree.find_matches(dynamo.compute_block_hash_for_seq(tokens, BLOCK_SIZE)).scores
        return max(scores.values())

    for _ in range(ROUNDS):
        index, ours, theirs = kvtide.Indexer("m", BLOCK_SIZE), RadixTree(), dynamo.RadixTree()
        timed(applied, "frames", feed_index)
        timed(applied, "compat", lambda: feed(ours))
        timed(applied, "dynamo", lambda: feed(theirs))
        scores = timed(found, "compat", lambda: [ours.find_matches(one).scores for one in hashes])
        same = timed(found, "dynamo", lambda: [theirs.find_matches(one).scores for one in hashes])
        assert scores == same, "the answers differ"
        reached = timed(answered, "index", lambda: [one.ranks[0].reach.gpu for one in index.overlap_batch(asked, limit=1)])
        depths = timed(answered, "dynamo", lambda: [best_of(theirs, tokens) for tokens in lists])
        assert reached == [depth * BLOCK_SIZE for depth in depths], "the answers differ"
    each = lambda took, count: ", ".join(f"{name} {one / count * 1e6:.2f}" for name, one in took.items())
    print(f"   {sum(len(names) for _, names, *_ in events)} blocks in {len(told)} events, {len(asked)} prompts")
    print(f"   us an event: {each(applied, len(told))}")
    print(f"   us from hashes to all scores: {each(found, len(asked))}")
    print(f"   us from tokens to the best worker: {each(answered, len(asked))}")
    print(f"   in place of RadixTree: apply_event {applied['dynamo'] / applied['compat']:.1f} times as fast, find_matches {found['dynamo'] / found['compat']:.1f}")
    promise("apply, times as fast as Dynamo's RadixTree", applied["dynamo"] / applied["frames"], 5, True)
    promise("overlap, times as fast as Dynamo's RadixTree", answered["dynamo"] / answered["index"], 5, True)
    return index


def threads(index, asked):
    """Prompts a second by one thread and by two."""
    batches = [asked[start : start + 50] for start in range(0, len(asked), 50)]

    def run(count):
        def work():
            for _ in range(6):
                for batch in batches:
                    index.overlap_batch(batch, limit=4)

        workers = [threading.Thread(target=work) for _ in range(count)]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return count * 6 * len(asked) / (time.perf_counter() - started)

    rates = {1: 0.0, 2: 0.0}
    for _ in range(ROUNDS):
        for count in rates:
            rates[count] = max(rates[count], run(count))
    print(f"   overlap_batch: {rates[1]:,.0f} prompts/s by one thread, {rates[2]:,.0f} by two")
    promise("two threads, times one", rates[2] / rates[1], 1.5, True)


def overhead(index, asked):
    """A call from Python against the same lookup within Rust, which `took_us` cannot tell finely: many in one batch."""
    prompt = asked[0]
    empty = np.zeros(0, np.uint32)
    few = kvtide.Indexer("m", BLOCK_SIZE)
    few.apply_events([{"type": "stored", "sequence_hashes": [1], "token_ids": prompt[:BLOCK_SIZE]}], 1)
    for name, one, tokens in (("one worker, no block", few, empty), ("one worker, a prompt", few, prompt), ("64 workers, a prompt", index, prompt)):
        batch = [tokens] * 1000
        call, in_rust = best([lambda: one.overlap(tokens), lambda: one.overlap_batch(batch)], 20 if len(tokens) else 50)
        calls = min(seconds(lambda: one.overlap(tokens), 2000) for _ in range(ROUNDS))
        call = min(call, calls)
        print(f"   overlap, {name}: {call * 1e6:.2f} us a call, {in_rust * 1e3:.2f} us each in a batch of 1000")
        promise(f"us a call over its Rust: {name}", call * 1e6 - in_rust * 1e3, 1.0, False)
    large = np.arange(1 << 20, dtype=np.uint32)
    apart = large.astype(np.int64)
    shared, copied = best([lambda: few.overlap(large, limit=0), lambda: few.overlap(apart, limit=0)], 20)
    print(f"   a prompt of 1,048,576 tokens that nobody has: {shared * 1e6:.1f} us as uint32, {copied * 1e6:.1f} us as int64")
    promise("us for a uint32 array that need not be read: no copy", shared * 1e6, 20, False)


def main():
    asked, events = fleet()
    index = beside_dynamo(asked, events)
    threads(index, asked)
    overhead(index, asked)
    print("all as promised" if not misses else f"not as promised: {', '.join(misses)}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
