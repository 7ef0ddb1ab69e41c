"""Prompts with media, adapters, salts and EAGLE hash as Dynamo's own function has it: what is stored under its hashes is reached."""

import random

import pytest
from conftest import BLOCK_SIZE
from dropin import KvtideIndexer
from dynamo._core import compute_block_hash_for_seq


def media_of(numbers, tokens):
    """A prompt's media: as ranges of its tokens, and by block as Dynamo's function takes them."""
    objects = [{"mm_hash": numbers.getrandbits(64), "offsets": []} for _ in range(numbers.randrange(4))]
    infos = [None] * (len(tokens) // BLOCK_SIZE + 1)
    for one in objects:
        for _ in range(numbers.randrange(3)):
            start = numbers.randrange(len(tokens))
            end = start + numbers.randrange(12)
            one["offsets"].append([start, end])
            for block in range(start // BLOCK_SIZE, min(-(-end // BLOCK_SIZE), len(infos)) if end > start else 0):
                info = infos[block] = infos[block] or {"mm_objects": []}
                if all(there["mm_hash"] != one["mm_hash"] for there in info["mm_objects"]):
                    info["mm_objects"].append({"mm_hash": one["mm_hash"], "offsets": []})
    return objects, infos


@pytest.mark.parametrize("eagle", [False, True])
def test_prompts_hash_as_dynamos_own_function_has_it(both, eagle):
    kvtide = KvtideIndexer(both.kvtide.kvtide)
    kvtide.post(
        "/register",
        instance_id=1,
        endpoint="tcp://127.0.0.1:1",
        model_name="m",
        block_size=BLOCK_SIZE,
        is_eagle=eagle,
    )
    numbers = random.Random(5)
    with_media = 0
    for worker_id in range(100, 160):
        tokens = [numbers.getrandbits(32) for _ in range(numbers.randrange(1, 60))]
        objects, infos = media_of(numbers, tokens)
        adapter, tenant = (numbers.choice([None, "", "a", "b"]) for _ in range(2))
        hashes = compute_block_hash_for_seq(
            tokens, BLOCK_SIZE, block_mm_infos=infos, lora_name=adapter, is_eagle=eagle, cache_namespace=tenant
        )
        names = [numbers.getrandbits(63) for _ in hashes]
        blocks = [{"sequence_hash": name, "block_hash": one} for name, one in zip(names, hashes, strict=True)]
        scope = {"model": "m", "block_size": BLOCK_SIZE}
        events = [{"type": "stored", "blocks": blocks}] if blocks else []
        kvtide.post("/v1/events", scope=scope, worker_id=worker_id, events=events)
        held = len(hashes) * BLOCK_SIZE
        salts = {"adapter": adapter, "tenant": tenant}
        for media in [{"mm_objects": objects}, {"block_mm_infos": infos}]:
            query = {"scope": salts, "token_ids": tokens, "is_eagle": eagle, "ranks": [[worker_id, 0]], **media}
            (rank,) = kvtide.post("/v1/overlap", **query)["ranks"]
            assert rank["reach_tokens"]["gpu"] == held, (tokens, media)
        scores = kvtide.query(tokens, block_mm_infos=infos, is_eagle=eagle, lora_name=adapter, cache_salt=tenant)["scores"]
        assert scores.get(str(worker_id), {"0": 0})["0"] == held, (tokens, infos)
        with_media += any(infos[: len(hashes)])
    assert with_media > 20
