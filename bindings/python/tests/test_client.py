"""Both clients against a running service: the same answers as an index in process, the same errors."""

import asyncio
import inspect
import re
import subprocess
import threading

import kvtide
import numpy as np
import pytest
from conftest import KVTIDE, SCOPE
from kvtide import errors

PROMPT = list(range(14))
EVENTS = [
    {"type": "stored", "sequence_hashes": [1, "2"], "token_ids": np.arange(8, dtype=np.uint32)},
    {"type": "stored", "tier": "host", "parent": -(2**63), "blocks": [{"sequence_hash": 9, "block_hash": "0xff"}]},
    {"type": "stored", "tier": "host", "parent": 2, "sequence_hashes": [3], "token_ids": [8, 9, 10, 11]},
]


@pytest.fixture
def client(connect, service):
    client = connect(service.url)
    client.apply_events(EVENTS, 7, first_event_id=1)
    return client


def test_a_service_answers_as_an_index_in_process(client):
    index = kvtide.Indexer("m", 4)
    index.apply_events(EVENTS, 7, first_event_id=1)
    hasher = kvtide.PromptHasher(4)
    hasher.extend(PROMPT)
    infos = [None, {"mm_objects": [{"mm_hash": 42}]}]
    for question in (
        {"token_ids": PROMPT},
        {"token_ids": np.array(PROMPT, np.uint32)},
        {"token_ids": np.array(PROMPT)},
        {"token_ids": []},
        {"token_ids": PROMPT, "ranks": [(7, 0), (8, 0)]},
        {"token_ids": PROMPT, "ranks": [(8, 0)]},
        {"token_ids": PROMPT, "min_reach_tokens": 13},
        {"token_ids": PROMPT, "limit": 1, "freshness": False},
        {"token_ids": PROMPT, "adapter": "a & b", "tenant": "t"},
        {"token_ids": PROMPT, "block_mm_infos": infos},
        {"token_ids": PROMPT, "mm_objects": [{"mm_hash": 42, "offsets": [[5, 7]]}]},
        {"block_hashes": hasher},
        {"block_hashes": [f"{one:x}" for one in hasher.hashes()]},
    ):
        there, here = client.overlap(**question), index.overlap(**question)
        assert type(there) is type(here) is kvtide.Overlap
        assert (there.model, there.block_size, there.prompt_blocks) == (here.model, here.block_size, here.prompt_blocks)
        rows = lambda answer: [
            (rank.worker_id, rank.dp_rank, rank.reach, rank.knowledge, rank.freshness and rank.freshness.last_event_id)
            for rank in answer.ranks
        ]
        assert rows(there) == rows(here), question
    assert client.overlap(PROMPT).ranks[0].reach == kvtide.Reach(8, 12, 12, 12)


def test_a_batch_goes_in_one_request(client):
    answers = client.overlap_batch([PROMPT, np.array(PROMPT[:4], np.uint32), []])
    assert [answer.ranks[0].reach.host for answer in answers] == [12, 4, 0]
    hashes = kvtide.hash_blocks(PROMPT, 4)
    assert client.overlap_batch(block_hashes=[hashes])[0].ranks[0].reach.gpu == 8
    assert client.overlap_batch([]) == []


def test_the_other_routes(client):
    assert client.ready() is True
    assert client.register_worker(8, [0, 1]) == 2
    assert client.overlap(PROMPT).rank(8, 1).reach is None
    assert [(worker["worker_id"], worker["dp_rank"]) for worker in client.workers()] == [(7, 0), (8, 0), (8, 1)]
    assert client.scopes()[0]["scope"]["model"] == "m"
    assert client.feedback(7, 0, predicted_tokens=8, cached_tokens=8)["observations"] == 1
    assert client.remove_worker(8) == 2


def problems(client):
    return [
        (lambda: client.overlap(), errors.InvalidArgument, None),
        (lambda: client.overlap([1], block_hashes=[1]), errors.InvalidArgument, None),
        (lambda: client.overlap("12"), errors.WrongType, None),
        (lambda: client.overlap([-1]), errors.InvalidArgument, None),
        (lambda: client.overlap_batch(), errors.InvalidArgument, None),
        (lambda: client.remove_worker(99), errors.NotFound, 404),
        (lambda: client.apply_dynamo_frame(b"x", "nowhere"), errors.NotFound, 404),
        (lambda: client.apply_engine_batch(b"x", "nowhere", sequence=1), errors.NotFound, 404),
        (lambda: client.apply_events([{"type": "moved"}], 7), errors.InvalidArgument, 400),
        (lambda: client.overlap([0] * ((4 << 20) + 1)), errors.TooLarge, 413),
    ]


@pytest.mark.parametrize("row", range(10))
def test_every_kind_of_error_is_an_exception_of_its_own(client, row):
    wrong, kind, status = problems(client)[row]
    with pytest.raises(errors.KvtideError) as caught:
        wrong()
    assert type(caught.value) is kind and caught.value.status == status
    assert caught.value.got and caught.value.expected
    assert (caught.value.problem is None) == (status is None)


def test_scopes_may_be_unknown_or_several(connect, client, service):
    unknown = connect(service.url, scope={"model": "other"})
    with pytest.raises(errors.UnknownScope) as caught:
        unknown.overlap(PROMPT)
    assert caught.value.status == 404
    connect(service.url, scope={**SCOPE, "revision": "r"}).register_worker(1)
    with pytest.raises(errors.SeveralScopes) as caught:
        client.overlap(PROMPT)
    assert caught.value.problem["differences"]
    assert connect(service.url, scope={**SCOPE, "revision": None}).overlap(PROMPT).ranks[0].reach.gpu == 8


def test_tokens_open_what_their_role_may(connect, start, tmp_path):
    made = subprocess.run([KVTIDE, "token", "new", "--roles", "query"], capture_output=True, text=True, check=True)
    token = re.search(r"^kvt_\w+$", made.stdout + made.stderr, re.MULTILINE)[0]
    row = re.search(r"^{.*}$", made.stdout + made.stderr, re.MULTILINE)[0]
    file = tmp_path / "tokens"
    file.write_text(row + "\n")
    file.chmod(0o600)
    service = start("--tokens", file)
    for options, kind in (({}, errors.Unauthorized), ({"token": "wrong"}, errors.Unauthorized)):
        with pytest.raises(kind):
            connect(service.url, **options).overlap(PROMPT)
    known = connect(service.url, token=token)
    with pytest.raises(errors.UnknownScope):
        known.overlap(PROMPT)
    with pytest.raises(errors.Forbidden) as caught:
        known.workers()
    assert caught.value.expected == "admin"


def test_a_service_that_is_restarted_is_found_again(connect, start):
    first = start()
    client = connect(first.url)
    client.apply_events(EVENTS, 7, first_event_id=1)
    client.overlap(PROMPT)
    first.stop()
    with pytest.raises(errors.ConnectionFailed) as caught:
        client.overlap(PROMPT)
    assert isinstance(caught.value, ConnectionError) and caught.value.got
    second = start(listen=first.url.removeprefix("http://"))
    client.apply_events(EVENTS, 7, first_event_id=1)
    assert client.overlap(PROMPT).ranks[0].reach.gpu == 8
    second.stop()


def test_threads_share_a_client(service):
    with kvtide.Client(service.url, scope=SCOPE, connections=2) as client:
        client.apply_events(EVENTS, 7, first_event_id=1)
        failures = []

        def ask():
            for _ in range(50):
                reach = client.overlap(PROMPT).ranks[0].reach
                if reach.gpu != 8:
                    failures.append(reach)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures and len(client._idle) <= 2


def test_tasks_share_a_client(service):
    async def ask():
        async with kvtide.AsyncClient(service.url, scope=SCOPE) as client:
            await client.apply_events(EVENTS, 7, first_event_id=1)
            answers = await asyncio.gather(*[client.overlap(PROMPT) for _ in range(100)])
            return {answer.ranks[0].reach.gpu for answer in answers}

    assert asyncio.run(ask()) == {8}


def test_both_clients_have_the_same_methods():
    public = lambda kind: {name: one for name, one in vars(kind).items() if not name.startswith("_")}
    sync, tasks = public(kvtide.Client), public(kvtide.AsyncClient)
    assert sync.keys() == tasks.keys()
    for name, method in sync.items():
        assert str(inspect.signature(method)) == str(inspect.signature(tasks[name])), name
