"""An index in process: what goes in, what comes out, and what is refused."""

import array
import copy
import json
import pickle
import time
from collections import deque
from pathlib import Path

import kvtide
import msgpack
import numpy as np
import pytest
from kvtide import errors

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"


def rows(name):
    return [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()]


def stored(tokens, names, **more):
    return {"type": "stored", "sequence_hashes": names, "token_ids": tokens, **more}


@pytest.fixture
def index():
    """Worker 7 holds three blocks of four tokens: two on the GPU, the third in host memory."""
    index = kvtide.Indexer(model="m", block_size=4)
    index.apply_events([stored(list(range(8)), [1, 2])], 7, first_event_id=1)
    index.apply_events([stored([8, 9, 10, 11], [3], parent=2, tier="host")], 7, first_event_id=2)
    return index


PROMPT = list(range(14))

FORMS = {
    "list": PROMPT,
    "tuple": tuple(PROMPT),
    "range": range(14),
    "deque": deque(PROMPT),
    "array": array.array("I", PROMPT),
    "list of numpy integers": [np.int64(token) for token in PROMPT],
    "uint32": np.array(PROMPT, np.uint32),
    "int64": np.array(PROMPT, np.int64),
    "uint8": np.array(PROMPT, np.uint8),
    "big-endian": np.array(PROMPT, ">u4"),
    "every other": np.repeat(np.array(PROMPT, np.uint32), 2)[::2],
    "unaligned": np.frombuffer(b"x" + np.array(PROMPT, np.uint32).tobytes(), np.uint8)[1:].view(np.uint32),
    "read-only": np.frombuffer(np.array(PROMPT, np.uint32).tobytes(), np.uint32),
}


@pytest.mark.parametrize("form", FORMS)
def test_tokens_may_have_any_form(index, form):
    overlap = index.overlap(FORMS[form])
    assert (overlap.prompt_tokens, overlap.prompt_blocks) == (14, 3)
    assert overlap.ranks[0].reach == kvtide.Reach(gpu=8, host=12, disk=12, external=12)
    assert kvtide.hash_blocks(FORMS[form], 4) == kvtide.hash_blocks(PROMPT, 4)


HASHES = kvtide.hash_blocks(PROMPT, 4)
SIGNED = [one - 2**64 if one >= 2**63 else one for one in HASHES]
HASH_FORMS = {
    "integers": HASHES,
    "signed": SIGNED,
    "digits": [f"{one:x}" for one in HASHES],
    "0x": [f"0x{one:x}" for one in HASHES],
    "bytes": [one.to_bytes(8, "big") for one in HASHES],
    "longer bytes": [b"\1" * 24 + one.to_bytes(8, "big") for one in HASHES],
    "uint64": np.array(HASHES, np.uint64),
    "int64": np.array(SIGNED, np.int64),
}


@pytest.mark.parametrize("form", HASH_FORMS)
def test_hashes_may_have_any_form(index, form):
    assert index.overlap(block_hashes=HASH_FORMS[form]).ranks[0].reach.host == 12


def test_a_conversation_is_taken_as_it_is(index):
    hasher = kvtide.PromptHasher(4)
    hasher.extend(PROMPT[:5])
    assert index.overlap(block_hashes=hasher).ranks[0].reach.gpu == 4
    hasher.extend(np.array(PROMPT[5:], np.uint32))
    assert (len(hasher), hasher.tokens) == (3, 14)
    assert index.overlap(block_hashes=hasher).ranks[0].reach.host == 12


BAD_PROMPTS = [
    ({}, errors.InvalidArgument),
    ({"token_ids": [1], "block_hashes": [1]}, errors.InvalidArgument),
    ({"token_ids": "1234"}, errors.WrongType),
    ({"token_ids": b"1234"}, errors.WrongType),
    ({"token_ids": {1: 2}}, errors.WrongType),
    ({"token_ids": 5}, errors.WrongType),
    ({"token_ids": [1.5]}, errors.WrongType),
    ({"token_ids": ["1"]}, errors.WrongType),
    ({"token_ids": [None]}, errors.WrongType),
    ({"token_ids": [-1]}, errors.InvalidArgument),
    ({"token_ids": [2**32]}, errors.InvalidArgument),
    ({"token_ids": [2**70]}, errors.InvalidArgument),
    ({"token_ids": np.array([1.5])}, errors.WrongType),
    ({"token_ids": np.array([True])}, errors.WrongType),
    ({"token_ids": np.array([-1])}, errors.InvalidArgument),
    ({"token_ids": np.array([2**32])}, errors.InvalidArgument),
    ({"token_ids": np.array([[1]], np.uint32)}, errors.InvalidArgument),
    ({"token_ids": np.array(1, np.uint32)}, errors.InvalidArgument),
    ({"block_hashes": [2**64]}, errors.InvalidArgument),
    ({"block_hashes": [-(2**63) - 1]}, errors.InvalidArgument),
    ({"block_hashes": [""]}, errors.InvalidArgument),
    ({"block_hashes": ["xyz"]}, errors.InvalidArgument),
    ({"block_hashes": ["1" * 17]}, errors.InvalidArgument),
    ({"block_hashes": [b"short"]}, errors.InvalidArgument),
    ({"block_hashes": [1.5]}, errors.WrongType),
    ({"block_hashes": "1a"}, errors.WrongType),
    ({"block_hashes": [1], "mm_objects": []}, errors.InvalidArgument),
    ({"token_ids": [1], "mm_objects": [], "block_mm_infos": []}, errors.InvalidArgument),
    ({"token_ids": [1], "block_mm_infos": [{}]}, errors.InvalidArgument),
    ({"token_ids": [1], "block_mm_infos": [3]}, errors.WrongType),
    ({"token_ids": [1], "mm_objects": [{"mm_hash": 1, "offsets": [[2, 1]]}]}, errors.InvalidArgument),
    ({"token_ids": [1], "mm_objects": [{"mm_hash": 1, "offsets": [3]}]}, errors.WrongType),
]


@pytest.mark.parametrize("prompt, kind", BAD_PROMPTS, ids=[str(row[0])[:60] for row in BAD_PROMPTS])
def test_what_is_no_prompt_is_refused_with_both_sides(index, prompt, kind):
    with pytest.raises(errors.KvtideError) as caught:
        index.overlap(**prompt)
    assert type(caught.value) is kind
    assert caught.value.got and caught.value.expected
    assert caught.value.expected in str(caught.value)


def test_no_error_repeats_a_token():
    for prompt in ([777_777_777_777], [-777_777_777], np.array([777_777_777_777])):
        with pytest.raises(errors.KvtideError) as caught:
            kvtide.hash_blocks(prompt, 4)
        assert "777" not in str(caught.value)


def test_a_prompt_may_be_too_long():
    with pytest.raises(errors.TooLarge) as caught:
        kvtide.Indexer("m", 4).overlap(np.zeros((4 << 20) + 1, np.uint32))
    assert (caught.value.got, caught.value.expected) == ("4194305 tokens", "at most 4194304")


BAD_EVENTS = [
    ([3], errors.WrongType),
    ({}, errors.WrongType),
    ([{}], errors.InvalidArgument),
    ([{"type": "moved"}], errors.InvalidArgument),
    ([{"type": 3}], errors.WrongType),
    ([{"type": "stored"}], errors.InvalidArgument),
    ([{"type": "cleared", "tier": "gpu"}], errors.InvalidArgument),
    ([{"type": "removed"}], errors.InvalidArgument),
    ([{"type": "removed", "sequence_hashes": [1], "token_ids": [1]}], errors.InvalidArgument),
    ([stored([1, 2, 3], [1])], errors.InvalidArgument),
    ([stored([1, 2, 3, 4], [1], tier="tape")], errors.InvalidArgument),
    ([stored([1, 2, 3, 4], [1], group=16)], errors.InvalidArgument),
    ([stored([1, 2, 3, 4], [1], extra=1)], errors.InvalidArgument),
    ([{"type": "stored", "blocks": [{"sequence_hash": 1}]}], errors.InvalidArgument),
    ([{"type": "stored", "blocks": [1]}], errors.WrongType),
]


@pytest.mark.parametrize("events, kind", BAD_EVENTS, ids=[str(row[0])[:60] for row in BAD_EVENTS])
def test_what_is_no_event_is_refused_and_changes_nothing(index, events, kind):
    before = index.overlap(PROMPT).version
    with pytest.raises(errors.KvtideError) as caught:
        index.apply_events(events, 9)
    assert type(caught.value) is kind and caught.value.got and caught.value.expected
    assert index.overlap(PROMPT).version == before and index.overlap(PROMPT).rank(9) is None


HUGE = range(2**40)
BAD_ARGUMENTS = [
    (lambda ix: kvtide.Indexer("m", -1), errors.InvalidArgument),
    (lambda ix: kvtide.Indexer("m", "4"), errors.WrongType),
    (lambda ix: kvtide.Indexer(5, 4), errors.WrongType),
    (lambda ix: kvtide.Indexer("\ud800", 4), errors.InvalidArgument),
    (lambda ix: kvtide.Indexer("m", 4, gap_policy="perhaps"), errors.InvalidArgument),
    (lambda ix: kvtide.Indexer("m", 4, layout=4), errors.WrongType),
    (lambda ix: ix.overlap([1], limit=-1), errors.InvalidArgument),
    (lambda ix: ix.overlap([1], limit=1.5), errors.WrongType),
    (lambda ix: ix.overlap([1], min_reach_tokens=2**40), errors.InvalidArgument),
    (lambda ix: ix.overlap([1], ranks=5), errors.WrongType),
    (lambda ix: ix.overlap([1], ranks=[5]), errors.WrongType),
    (lambda ix: ix.overlap([1], ranks=[(1,)]), errors.InvalidArgument),
    (lambda ix: ix.overlap([1], ranks=[(-1, 0)]), errors.InvalidArgument),
    (lambda ix: ix.overlap([1], ranks=HUGE), errors.TooLarge),
    (lambda ix: ix.overlap([1], tenant=5), errors.WrongType),
    (lambda ix: ix.overlap([1], tenant="secret \ud800"), errors.InvalidArgument),
    (lambda ix: ix.overlap(HUGE), errors.TooLarge),
    (lambda ix: ix.overlap(block_hashes=HUGE), errors.TooLarge),
    (lambda ix: ix.overlap([1], block_mm_infos=HUGE), errors.TooLarge),
    (lambda ix: ix.overlap([1], mm_objects=HUGE), errors.TooLarge),
    (lambda ix: ix.overlap_batch(HUGE), errors.TooLarge),
    (lambda ix: ix.overlap_batch([HUGE]), errors.TooLarge),
    (lambda ix: ix.overlap_batch(5), errors.WrongType),
    (lambda ix: ix.apply_dynamo_frame(bytearray(b"x")), errors.WrongType),
    (lambda ix: ix.apply_dynamo_frame(memoryview(b"x")), errors.WrongType),
    (lambda ix: ix.apply_engine_batch("text", 7), errors.WrongType),
    (lambda ix: ix.apply_engine_batch(b"", -1), errors.InvalidArgument),
    (lambda ix: ix.apply_engine_batch(b"", 7, sequence=2**64), errors.InvalidArgument),
    (lambda ix: ix.apply_events(HUGE, 7), errors.TooLarge),
    (lambda ix: ix.apply_events([], "7"), errors.WrongType),
    (lambda ix: ix.apply_events([], 7, first_event_id=0), errors.InvalidArgument),
    (lambda ix: ix.apply_events([], 7, tenant="secret \ud800"), errors.InvalidArgument),
    (lambda ix: ix.add_engine(7, copies="some"), errors.InvalidArgument),
    (lambda ix: ix.register_worker(-1), errors.InvalidArgument),
    (lambda ix: ix.register_worker(7, 5), errors.WrongType),
    (lambda ix: ix.register_worker(7, HUGE), errors.TooLarge),
    (lambda ix: ix.remove_worker(7, -1), errors.InvalidArgument),
    (lambda ix: ix.overlap([1]).rank(-1), errors.InvalidArgument),
    (lambda ix: kvtide.Reach(-1, 0, 0, 0), errors.InvalidArgument),
    (lambda ix: kvtide.Reach(0, 0, 0, 2**32), errors.InvalidArgument),
    (lambda ix: kvtide.FreshnessLimits(missing_events=-1), errors.InvalidArgument),
    (lambda ix: kvtide.FreshnessLimits(knowledge="complete"), errors.WrongType),
    (lambda ix: kvtide.FreshnessLimits(knowledge=[3]), errors.WrongType),
    (lambda ix: kvtide.hash_blocks([1], 2**32), errors.InvalidArgument),
    (lambda ix: kvtide.hash_blocks(HUGE, 4), errors.TooLarge),
    (lambda ix: kvtide.hash_blocks(range(2**62), 4), errors.TooLarge),
    (lambda ix: kvtide.hash_blocks([1], 4, tenant="secret \ud800"), errors.InvalidArgument),
    (lambda ix: kvtide.sequence_hashes(HUGE), errors.TooLarge),
    (lambda ix: kvtide.PromptHasher(0), errors.InvalidArgument),
    (lambda ix: kvtide.PromptHasher(4).truncate(-1), errors.InvalidArgument),
    (lambda ix: kvtide.PromptHasher(4).extend(HUGE), errors.TooLarge),
]


@pytest.mark.parametrize("row", range(len(BAD_ARGUMENTS)))
def test_what_is_no_argument_is_refused_with_both_sides(index, row):
    call, kind = BAD_ARGUMENTS[row]
    with pytest.raises(errors.KvtideError) as caught:
        call(index)
    assert type(caught.value) is kind
    assert caught.value.got and caught.value.expected
    assert "secret" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"


def test_arrays_of_hashes_may_lie_as_they_like(index):
    """With gaps, at odd addresses, of other sizes and byte orders: what is read is what numpy would."""
    fields = np.zeros(3, [("hash", "u8"), ("other", "u4")])
    fields["hash"] = HASHES
    signed = np.zeros(3, [("other", "u1"), ("hash", "i8")])
    signed["hash"] = SIGNED
    for form in (fields["hash"], signed["hash"], np.repeat(np.array(HASHES, np.uint64), 3)[::3], np.array(HASHES, ">u8"), np.array(SIGNED, ">i8")):
        assert index.overlap(block_hashes=form).ranks[0].reach.host == 12
    assert index.overlap(block_hashes=np.array(HASHES, np.uint64)[::-1][::-1]).ranks[0].reach.host == 12
    small = np.array([-1, 5], np.int32)
    assert kvtide.sequence_hashes(small) == kvtide.sequence_hashes([-1, 5])


def test_a_conversation_is_copied(index):
    hasher = kvtide.PromptHasher(4)
    hasher.extend(PROMPT)
    for twin in (hasher.copy(), copy.copy(hasher)):
        twin.extend([1, 2, 3, 4])
        assert (len(twin), len(hasher)) == (4, 3)


def test_what_waits_is_given_up_by_the_next_call(index):
    """Frame 2 waits 200 ms for frame 1; then worker 8 has a hole."""

    def frame(number):
        block = {"block_hash": number + 1, "tokens_hash": 1, "mm_extra_info": None}
        data = {"stored": {"parent_hash": None, "start_position": None, "blocks": [block]}}
        event = {"worker_id": 8, "storage_tier": "device", "event": {"event_id": number + 1, "data": data, "dp_rank": 0}}
        about = {"publisher_id": 1, "sequence": number, "published_at": 0, "topic": "kv-events"}
        return msgpack.packb({**about, "payload": msgpack.packb([event])})

    for number in (0, 2):
        index.apply_dynamo_frame(frame(number))
    known = [(row["worker_id"], row["knowledge"]) for row in index.workers()]
    assert known == [(7, "complete"), (8, "complete")]
    time.sleep(0.3)
    assert index.workers()[1]["knowledge"] == "partial"


def test_unknown_is_not_zero(index):
    assert index.register_worker(8, [0, 1]) == 2
    unknown, known = index.overlap(PROMPT).rank(8, 1), index.overlap([99] * 8).rank(7)
    assert (unknown.reach, unknown.knowledge) == (None, "unknown")
    assert (known.reach.gpu, known.knowledge) == (0, "complete")
    assert unknown.unusable(kvtide.FreshnessLimits(knowledge=["partial"])) == "knowledge is Unknown"
    assert known.unusable(kvtide.FreshnessLimits()) is None
    with pytest.raises(errors.InvalidArgument, match="complete, partial"):
        kvtide.FreshnessLimits(knowledge=["perhaps"])


def test_reaches_are_never_added_and_are_no_numbers():
    reach, further = kvtide.Reach(4, 8, 8, 8), kvtide.Reach(8, 8, 8, 8)
    for wrong in (
        lambda: reach + further,
        lambda: reach + 1,
        lambda: 1 + reach,
        lambda: sum([reach, further]),
        lambda: reach < 5,
        lambda: 5 < reach,
        lambda: reach >= 0.5,
        lambda: max(reach, None),
        lambda: int(reach),
        lambda: float(reach),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError, match="already contains"):
        sum([reach])
    assert "cumulative" in kvtide.Reach.__doc__ and "refuses" in kvtide.Reach.__doc__
    assert reach < further and max(reach, further) is further and reach != 4 and reach == kvtide.Reach(4, 8, 8, 8)
    assert len({reach, kvtide.Reach(4, 8, 8, 8)}) == 1 and pickle.loads(pickle.dumps(reach)) == reach
    with pytest.raises(errors.InvalidArgument):
        kvtide.Reach(8, 4, 4, 4)


def test_errors_survive_being_sent_to_another_process():
    try:
        kvtide.Indexer("m", 0)
    except errors.KvtideError as error:
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.what, copy.got, copy.expected) == (
            errors.InvalidArgument,
            "block_size",
            "0",
            "1 token or more",
        )
        assert isinstance(copy, ValueError)
    else:
        raise AssertionError("a block size of 0 was taken")


def test_an_answer_may_be_narrowed(index):
    index.apply_events([stored(list(range(4)), [1])], 9)
    ranks = lambda **wanted: [rank.worker_id for rank in index.overlap(PROMPT, **wanted).ranks]
    assert ranks() == [7, 9]
    assert ranks(ranks=[(9, 0), (10, 0)]) == [9]
    assert ranks(min_reach_tokens=5) == [7]
    assert ranks(limit=1) == [7]
    assert index.overlap(PROMPT, freshness=False).ranks[0].freshness is None
    with pytest.raises(errors.InvalidArgument):
        index.overlap(PROMPT, freshness=False).ranks[0].unusable(kvtide.FreshnessLimits())


def test_adapter_and_tenant_keep_prompts_apart(index):
    index.apply_events([stored(list(range(4)), [1])], 9, adapter="a", tenant="t")
    reach = lambda **salts: index.overlap(PROMPT, **salts).rank(9).reach.gpu
    assert [reach(), reach(adapter="a"), reach(tenant="t"), reach(adapter="a", tenant="t")] == [0, 0, 0, 4]


def test_media_are_part_of_their_blocks(index):
    infos = [None, {"mm_objects": [{"mm_hash": 42}]}]
    objects = [{"mm_hash": 42, "offsets": [[5, 7]]}]
    assert kvtide.hash_blocks(PROMPT, 4, block_mm_infos=infos) == kvtide.hash_blocks(PROMPT, 4, mm_objects=objects)
    assert index.overlap(PROMPT, block_mm_infos=infos).ranks[0].reach.gpu == 4
    assert index.overlap(PROMPT, mm_objects=objects).ranks[0].reach.gpu == 4


def test_a_batch_is_answered_in_order_and_of_one_version(index):
    prompts = [PROMPT, np.array(PROMPT[:4], np.uint32), [5] * 8, []]
    answers = index.overlap_batch(prompts)
    assert [answer.ranks[0].reach.host for answer in answers] == [12, 4, 0, 0]
    assert len({answer.version for answer in answers}) == 1
    assert index.overlap_batch([]) == []
    for wrong in ({}, {"token_ids": [[1]], "block_hashes": [[1]]}, {"token_ids": [1]}):
        with pytest.raises(errors.KvtideError):
            index.overlap_batch(**wrong)


def test_events_are_counted_and_repeats_ignored(index):
    again = index.apply_events([stored(list(range(8)), [1, 2])], 7, first_event_id=1)
    assert (again.repeated_events, again.applied_events) == (1, 0)
    removed = index.apply_events([{"type": "removed", "sequence_hashes": [2, 99]}], 7, first_event_id=3)
    assert (removed.removed_blocks, removed.unknown_blocks) == (1, 1)
    assert index.overlap(PROMPT).ranks[0].freshness.last_event_id == 3
    waiting = index.apply_events([stored([1, 2, 3, 4], [50], parent=49)], 7, first_event_id=4)
    assert waiting.parked_blocks == 1 and index.workers()[0]["parked_blocks"] == 1
    lost = index.apply_events([{"type": "cleared"}], 7, first_event_id=6)
    assert lost.missing_events == 1
    with pytest.raises(errors.InvalidArgument):
        index.apply_events([], 7, first_event_id=0)


def test_workers_come_and_go(index):
    assert index.workers() == [
        {
            "worker_id": 7,
            "dp_rank": 0,
            "knowledge": "complete",
            "held_blocks": {"gpu": 2, "host": 1, "disk": 0, "external": 0},
            "parked_blocks": 0,
        }
    ]
    assert (index.remove_worker(7), index.remove_worker(7)) == (1, 0)
    assert len(index.overlap(PROMPT)) == 0


def test_engines_come_and_go():
    index = kvtide.Indexer("m", 16)
    root = next(row for row in rows("engine_batches.jsonl") if row["case"] == "stored_root_no_parent")
    reach = lambda rank: index.overlap(list(range(100, 140))).rank(7, rank).reach.gpu
    for rank in (0, 1):
        index.apply_engine_batch(bytes.fromhex(root["hex"]), 7, rank, sequence=0)
        assert reach(rank) == 32
    assert (index.remove_worker(7, 1), index.remove_worker(7), index.remove_worker(7)) == (1, 1, 0)
    # What was said of an engine is forgotten with it.
    index.add_engine(7, 1, copies="set")
    index.apply_engine_batch(bytes.fromhex(root["hex"]), 7, 1, sequence=0)
    assert reach(1) == 32 and index.remove_worker(7) == 1


@pytest.mark.parametrize("row", rows("dynamo_hashes.jsonl"), ids=lambda row: f"{row['block_size']}-{row['eagle']}")
def test_hashes_are_those_of_dynamo(row):
    salts = {"adapter": row["adapter"], "tenant": row["tenant"], "eagle": row["eagle"]}
    hashes = kvtide.hash_blocks(row["tokens"], row["block_size"], **salts)
    assert hashes == [int(one, 16) for one in row["block_hashes"]]
    assert kvtide.sequence_hashes(hashes) == [int(one, 16) for one in row["sequence_hashes"]]


@pytest.mark.parametrize("row", rows("dynamo_frames.jsonl"), ids=lambda row: row["case"])
def test_frames_of_dynamos_event_plane_are_taken(row):
    """Each recorded frame by itself. One that is not the first waits for those in front of it before it counts."""
    index = kvtide.Indexer("m", 4)
    index.apply_dynamo_frame(bytes.fromhex(row["hex"]))
    if row["sequence"] > 0:
        assert all(state["knowledge"] == "unknown" for state in index.workers())
        time.sleep(0.25)
    by_rank = {}
    for event in row["events"]:
        by_rank.setdefault((event["worker_id"], event["event"]["dp_rank"]), []).append(event)
    for rank, events in by_rank.items():
        answer = index.overlap([1]).rank(*rank)
        # From its first event on, or since a clear, all is known.
        is_complete = row["sequence"] == 0 or any(event["event"]["data"] == "cleared" for event in events)
        assert answer.knowledge == ("complete" if is_complete else "partial")
        assert answer.freshness.last_event_id == events[-1]["event"]["event_id"]
        assert answer.freshness.lag_ms > 0
        known = [event for event in events if event["storage_tier"] in ("device", "host_pinned", "disk", "external")]
        roots = [event["event"]["data"]["stored"] for event in known if "stored" in event["event"]["data"]]
        for root in roots:
            if root["parent_hash"] is None and not root["start_position"]:
                hashes = [block["tokens_hash"] for block in root["blocks"]]
                assert index.overlap(block_hashes=hashes).rank(*rank).reach.external == 4 * len(hashes)


def test_a_frame_that_does_not_decode_is_refused_whole():
    frame = bytes.fromhex(rows("dynamo_frames.jsonl")[0]["hex"])
    index = kvtide.Indexer("m", 4)
    index.apply_dynamo_frame(frame)
    for damaged in (b"", b"\xc1", frame[:-1], frame[:20]):
        with pytest.raises(errors.Undecodable) as caught:
            index.apply_dynamo_frame(damaged)
        assert caught.value.got and caught.value.expected


@pytest.mark.parametrize("row", rows("engine_batches.jsonl"), ids=lambda row: f"{row['engine']}-{row['version']}-{row['case']}")
def test_batches_of_engines_are_taken(row):
    index = kvtide.Indexer("m", 16, eagle=row["case"] == "stored_bigram")
    applied = index.apply_engine_batch(bytes.fromhex(row["hex"]), worker_id=7, dp_rank=0, sequence=0)
    events = row["json"][1]
    assert applied.applied_events + applied.ignored_events == len(events)
    if row["case"] in ("stored_min", "stored_GPU", "stored_bytes_hash"):
        assert applied.parked_blocks == 2
    elif row["case"] == "stored_root_no_parent":
        rank = index.overlap(list(range(100, 140))).rank(7)
        assert (rank.reach.gpu, rank.knowledge, rank.freshness.last_event_id) == (32, "complete", 0)
    elif row["case"] == "stored_bigram":
        assert index.overlap(list(range(17))).rank(7).reach.gpu == 16
    elif row["case"] in ("removed", "removed_no_medium"):
        assert applied.unknown_blocks == 2


def test_what_contradicts_is_refused():
    index = kvtide.Indexer("m", 4)
    index.add_engine(7, host_chunk_blocks=4)
    index.add_engine(7, host_chunk_blocks=4)
    with pytest.raises(errors.Conflict):
        index.add_engine(7, host_chunk_blocks=2)
    with pytest.raises(errors.InvalidArgument):
        index.add_engine(8, copies="many")
    with pytest.raises(errors.InvalidArgument):
        kvtide.Indexer("m", 4, gap_policy="guess")
    index.apply_events([stored([1, 2, 3, 4], [1])], 5)
    batch = bytes.fromhex(next(row for row in rows("engine_batches.jsonl") if row["case"] == "cleared")["hex"])
    with pytest.raises(errors.Refused):
        index.apply_engine_batch(batch, 5, 0, sequence=0)
