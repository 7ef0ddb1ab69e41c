"""`kvtide.compat.dynamo` beside Dynamo's own package: the same signatures, and the same answers where Dynamo's are right."""

import inspect
import json
import random

import pytest
from dynamo import _core as dynamo
from kvtide.compat import dynamo as compat
from reference import Reference, block_hashes, sequence_hashes


def event(data, event_id=1, dp_rank=0):
    return json.dumps({"event_id": event_id, "data": data, "dp_rank": dp_rank}).encode()


def stored(chain, first=0):
    """An event that stores what is behind the first blocks of a chain of contents, under the names of Dynamo's router."""
    names = sequence_hashes(chain)
    blocks = [{"block_hash": n, "tokens_hash": c, "mm_extra_info": None} for n, c in zip(names, chain)][first:]
    return {"stored": {"parent_hash": names[first - 1] if first else None, "start_position": None, "blocks": blocks}}


def removed(*names):
    return {"removed": {"block_hashes": list(names)}}


@pytest.mark.parametrize("name", ["compute_block_hash_for_seq", "find_matches", "apply_event"])
def test_signatures_are_those_of_dynamo(name):
    ours = getattr(compat, name, None) or getattr(compat.RadixTree, name)
    theirs = getattr(dynamo, name, None) or getattr(dynamo.RadixTree, name)
    parameters = lambda one: [(p.name, p.default) for p in inspect.signature(one).parameters.values()]
    assert parameters(ours) == parameters(theirs)


def test_all_names_are_there():
    public = lambda kind: {name for name in dir(kind) if not name.startswith("_")}
    for kind in ("RadixTree", "OverlapScores"):
        assert public(getattr(compat, kind)) == public(getattr(dynamo, kind))


@pytest.mark.parametrize("seed", range(200))
def test_block_hashes_are_those_of_dynamo(seed):
    draw = random.Random(seed)
    tokens = [draw.randrange(2**32) for _ in range(draw.randrange(400))]
    size = draw.choice([1, 2, 7, 16, 64, 130])
    media = [None, {"mm_objects": [{"mm_hash": draw.randrange(2**64), "offsets": [[0, 1]]}]}, {"mm_objects": []}]
    options = {
        "block_mm_infos": draw.choice([None, [], [draw.choice(media) for _ in range(draw.randrange(5))]]),
        "lora_name": draw.choice([None, "", "adapter"]),
        "is_eagle": draw.choice([None, True, False]),
        "cache_namespace": draw.choice([None, "", "tenant"]),
    }
    ours = compat.compute_block_hash_for_seq(tokens, size, **options)
    assert ours == dynamo.compute_block_hash_for_seq(tokens, size, **options)


@pytest.mark.parametrize("seed", range(100))
def test_scores_are_those_of_dynamo_where_nothing_is_removed_from_the_middle(seed):
    """Chains are stored and taken away from their ends, which Dynamo's tree does right; each answer is the reference's too."""
    draw = random.Random(seed)
    ours, theirs, reference = compat.RadixTree(), dynamo.RadixTree(), Reference(1)
    lengths = {}
    chains = [block_hashes([draw.randrange(3) for _ in range(8)], 1) for _ in range(6)]
    for number in range(1, 60):
        worker, rank, chain = draw.randrange(3), draw.randrange(2), draw.choice(chains)
        held = lengths.setdefault((worker, rank), {})
        path = tuple(chain)
        if draw.random() < 0.6:
            data = stored(chain)
            held[path] = len(chain)
            told = {"type": "stored", "blocks": [{"sequence_hash": b["block_hash"], "block_hash": b["tokens_hash"]} for b in data["stored"]["blocks"]]}
        elif draw.random() < 0.9 and held:
            # The last block of a chain that is no part of another that is held.
            path = draw.choice(sorted(held))
            end = path[: held[path]]
            if not end or any(other[: len(end)] == end and (other != path) and length >= len(end) for other, length in held.items()):
                continue
            held[path] -= 1
            name = sequence_hashes(end)[-1]
            data, told = removed(name), {"type": "removed", "sequence_hashes": [name]}
            if not held[path]:
                del held[path]
        else:
            for one in ((worker, 0), (worker, 1)):
                lengths.pop(one, None)
                if one in reference.ranks:
                    reference.apply(one, {"type": "cleared"})
            ours.clear_all_blocks(worker)
            theirs.clear_all_blocks(worker)
            continue
        for tree in (ours, theirs):
            tree.apply_event(worker, event(data, number, rank))
        reference.apply((worker, rank), told)
        for prompt in chains:
            expected = {key: reach[0] for key, reach in reference.reaches(prompt).items() if reach[0]}
            assert ours.find_matches(prompt).scores == expected
            assert theirs.find_matches(prompt).scores == expected


def test_what_dynamos_tree_gets_wrong_is_right_here():
    chain = block_hashes(list(range(5)), 1)
    names = sequence_hashes(chain)
    ours, theirs = compat.RadixTree(), dynamo.RadixTree()
    for tree in (ours, theirs):
        tree.apply_event(1, event(stored(chain)))
        tree.apply_event(3, event(stored(chain)))
        tree.apply_event(1, event(removed(names[2])))
        # The block comes back, and what is behind it was never gone.
        tree.apply_event(1, event(stored(chain[:3], 2)))
    assert ours.find_matches(chain).scores == {(1, 0): 5, (3, 0): 5}
    assert theirs.find_matches(chain).scores != ours.find_matches(chain).scores, "then this page can go"


def test_a_block_whose_parent_is_not_known_waits_for_it():
    chain = block_hashes(list(range(4)), 1)
    tree = compat.RadixTree()
    tree.apply_event(1, event(stored(chain, 2)))
    assert tree.find_matches(chain).scores == {}
    tree.apply_event(1, event(stored(chain[:2])))
    assert tree.find_matches(chain, early_exit=True).scores == {(1, 0): 4}
    tree.apply_event(1, event(removed(12345)))
    assert tree.find_matches(chain).frequencies == []


def test_workers_go_and_are_cleared():
    chain = block_hashes(list(range(4)), 1)
    tree = compat.RadixTree()
    for worker in (1, 2):
        for rank in (0, 1):
            tree.apply_event(worker, event(stored(chain), dp_rank=rank))
    tree.clear_all_blocks(1)
    tree.remove_worker(2)
    assert tree.find_matches(chain).scores == {}
    tree.clear_all_blocks(99)
    tree.remove_worker(99)
    tree.apply_event(2, event("cleared"))
    tree.apply_event(2, event(stored(chain)))
    assert tree.find_matches(chain).scores == {(2, 0): 4}


def test_a_dump_makes_either_tree_again():
    chain, other = block_hashes(list(range(6)), 1), block_hashes([0, 1, 9, 9], 1)
    tree = compat.RadixTree()
    tree.apply_event(1, event(stored(chain)))
    tree.apply_event(1, event(stored(other, 2), 2))
    tree.apply_event(2, event(stored(chain[:3]), dp_rank=1))
    scores = tree.find_matches(chain).scores, tree.find_matches(other).scores
    assert scores == ({(1, 0): 6, (2, 1): 3}, {(1, 0): 4, (2, 1): 2})
    for again in (compat.RadixTree(), dynamo.RadixTree()):
        for line in tree.dump_tree_as_events():
            told = json.loads(line)
            assert (told["storage_tier"], told["residency_domain"]) == ("device", "worker")
            again.apply_event(told["worker_id"], json.dumps(told["event"]).encode())
        assert (again.find_matches(chain).scores, again.find_matches(other).scores) == scores


BAD = [b"", b"x", b"{}", b"[]", event({"moved": {}}), event({"stored": {}}), event(removed(-1)), event(removed("a"))]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_is_no_event_is_an_error_of_the_same_kind_in_both(number):
    for tree in (compat.RadixTree(), dynamo.RadixTree()):
        with pytest.raises(ValueError, match="Failed to deserialize KvCacheEvent"):
            tree.apply_event(1, BAD[number])
        assert tree.find_matches([1]).scores == {}
    with pytest.raises(ValueError):
        compat.compute_block_hash_for_seq([1], 0)
