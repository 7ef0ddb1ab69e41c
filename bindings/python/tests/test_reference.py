"""Random event sequences, and the same answers as the slow reference after each."""

import kvtide
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TIERS, Reference, block_hashes, sequence_hashes

BLOCK_SIZE = 2
RANKS = [(7, 0), (7, 1), (8, 0)]


def block(content):
    """The tokens of a block with that content."""
    return [content, content + 100]


chains = st.lists(st.integers(0, 2), min_size=1, max_size=6)
ranks = st.sampled_from(RANKS)
tiers = st.sampled_from(TIERS)


@st.composite
def events(draw):
    """An event about part of a chain. Names are those of Dynamo's router, or a rank's own, which may contradict each other."""
    chain = draw(chains)
    tokens = [token for content in chain for token in block(content)]
    contents = block_hashes(tokens, BLOCK_SIZE)
    names = sequence_hashes(contents)
    if draw(st.integers(0, 9)) == 0:
        names = [draw(st.integers(1, 6)) for _ in names]
    first = draw(st.integers(0, len(chain) - 1))
    parent = names[first - 1] if first else None
    names, kind, tier = names[first:], draw(st.integers(0, 9)), draw(tiers)
    if kind == 0:
        return {"type": "cleared"}
    if kind in (1, 2, 3):
        return {"type": "removed", "tier": tier, "sequence_hashes": names}
    if kind == 4:
        return {"type": "stored", "tier": tier, "sequence_hashes": names}
    if kind == 5:
        blocks = [{"sequence_hash": n, "block_hash": c} for n, c in zip(names, contents[first:])]
        return {"type": "stored", "tier": tier, "parent": parent, "blocks": blocks}
    rest = tokens[first * BLOCK_SIZE :]
    return {"type": "stored", "tier": tier, "parent": parent, "sequence_hashes": names, "token_ids": rest}


def reaches(overlap):
    return {
        (rank.worker_id, rank.dp_rank): (rank.reach.gpu, rank.reach.host, rank.reach.disk, rank.reach.external)
        for rank in overlap.ranks
    }


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(ranks, events()), max_size=40), st.lists(chains, min_size=1, max_size=4))
def test_every_answer_is_that_of_the_reference(history, prompts):
    index, reference = kvtide.Indexer("m", BLOCK_SIZE), Reference(BLOCK_SIZE)
    for rank, event in history:
        index.apply_events([event], *rank)
        reference.apply(rank, event)
        for prompt in prompts:
            tokens = [token for content in prompt for token in block(content)]
            expected = reference.reaches(block_hashes(tokens, BLOCK_SIZE))
            assert reaches(index.overlap(tokens)) == expected
        hashes = [block_hashes([t for c in prompt for t in block(c)], BLOCK_SIZE) for prompt in prompts]
        batch = index.overlap_batch(block_hashes=hashes)
        assert [reaches(one) for one in batch] == [reference.reaches(one) for one in hashes]


salts = st.one_of(st.none(), st.just(""), st.text(min_size=1, max_size=5))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=300),
    st.integers(1, 130),
    salts,
    salts,
    st.booleans(),
    st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=3), max_size=3),
)
def test_hashes_are_those_of_the_reference(tokens, block_size, adapter, tenant, eagle, media):
    expected = block_hashes(tokens, block_size, adapter, tenant, eagle, media)
    infos = [{"mm_objects": [{"mm_hash": one} for one in block]} if block else None for block in media]
    salts = {"adapter": adapter, "tenant": tenant, "eagle": eagle}
    assert kvtide.hash_blocks(tokens, block_size, block_mm_infos=infos, **salts) == expected
    assert kvtide.sequence_hashes(expected) == sequence_hashes(expected)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 120)), max_size=8),
    st.integers(1, 9),
    st.booleans(),
)
def test_a_conversation_has_the_hashes_of_its_whole_prompt(turns, block_size, eagle):
    hasher, prompt = kvtide.PromptHasher(block_size, adapter="a", eagle=eagle), []
    for added, cut in turns:
        hasher.extend(added)
        prompt += added
        fork = hasher.copy()
        assert hasher.hashes() == block_hashes(prompt, block_size, "a", eagle=eagle)
        # What is taken back is behind `cut`; tokens of complete blocks have to be given again.
        kept = hasher.truncate(cut)
        prompt = prompt[:cut]
        assert kept <= len(prompt) and hasher.tokens == kept
        assert hasher.hashes() == block_hashes(prompt, block_size, "a", eagle=eagle)
        assert len(fork) >= len(hasher)
        hasher.extend(prompt[kept:])


@pytest.mark.parametrize("tier", TIERS)
def test_a_hole_ends_the_reach_and_filling_it_restores_it(tier):
    index = kvtide.Indexer("m", BLOCK_SIZE)
    tokens = [token for content in range(10) for token in block(content)]
    names = list(range(1, 11))
    store = {"type": "stored", "tier": tier, "sequence_hashes": names, "token_ids": tokens}
    index.apply_events([store], 7)
    last = lambda: index.overlap(tokens).ranks[0].reach.external
    assert last() == 20
    index.apply_events([{"type": "removed", "tier": tier, "sequence_hashes": [6]}], 7)
    assert last() == 10
    again = {"type": "stored", "tier": tier, "parent": 5, "sequence_hashes": [6], "token_ids": tokens[10:12]}
    index.apply_events([again], 7)
    assert last() == 20
