"""Routes a batch of prompts in process: to whoever has most of each in its GPU's memory, and to no one whose numbers are stale.

    python examples/route_batch.py
"""

from __future__ import annotations

import random
from typing import Optional

import kvtide
import numpy as np

BLOCK_SIZE = 64
WORKERS = range(1, 5)
LIMITS = kvtide.FreshnessLimits(missing_events=0, lag_over_best_ms=500, knowledge=["partial"])


def best(overlap: kvtide.Overlap) -> Optional[kvtide.RankOverlap]:
    """Of the ranks whose numbers may be gone by, the one that reaches furthest: on the GPU, then in host memory."""
    usable = [rank for rank in overlap.ranks if rank.reach is not None and rank.unusable(LIMITS) is None]
    # Reaches compare by their GPU first. There is no sum of them: each tier's number contains that of the faster ones.
    return max(usable, key=lambda rank: rank.reach or kvtide.Reach(0, 0, 0, 0), default=None)


def main() -> None:
    draw = random.Random(7)
    index = kvtide.Indexer(model="llama-3.1-70b", block_size=BLOCK_SIZE)
    conversations = [np.array([draw.randrange(128_000) for _ in range(4096)], np.uint32) for _ in range(8)]
    events = dict.fromkeys(WORKERS, 1)
    for conversation in conversations:
        # What a worker would publish: which blocks it has stored, under names of its own.
        worker, blocks = draw.choice(WORKERS), draw.randrange(8, 64)
        tokens = conversation[: blocks * BLOCK_SIZE]
        names = kvtide.sequence_hashes(kvtide.hash_blocks(tokens, BLOCK_SIZE))
        stored: kvtide.Event = {"type": "stored", "sequence_hashes": names, "token_ids": tokens}
        index.apply_events([stored], worker, first_event_id=events[worker])
        events[worker] += 1

    # One call, one version of the index, and no copy of the tokens.
    for number, overlap in enumerate(index.overlap_batch(conversations)):
        rank = best(overlap)
        if rank is None or rank.reach is None or rank.reach.external == 0:
            print(f"prompt {number}: nobody has any of it")
            continue
        share = rank.reach.gpu / overlap.prompt_tokens
        print(f"prompt {number}: worker {rank.worker_id} has {rank.reach.gpu} tokens on its GPU ({share:.0%}), {rank.knowledge}")


if __name__ == "__main__":
    main()
