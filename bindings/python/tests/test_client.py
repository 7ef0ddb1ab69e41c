"""Both clients against a running service: the same answers as an index in process, the same errors, and what becomes of connections."""

import asyncio
import http.server
import inspect
import re
import socket
import subprocess
import threading
import time

import kvtide
import numpy as np
import pytest
from conftest import KVTIDE
from kvtide import errors

SCOPE = {"model": "m", "block_size": 4}
PROMPT = list(range(14))
EVENTS = [
    {"type": "stored", "sequence_hashes": [1, "2"], "token_ids": np.arange(8, dtype=np.uint32)},
    {"type": "stored", "tier": "host", "parent": -(2**63), "blocks": [{"sequence_hash": 9, "block_hash": "0xff"}]},
    {"type": "stored", "tier": "host", "parent": 2, "sequence_hashes": [3], "token_ids": [8, 9, 10, 11]},
]


class Waiting:
    """An `AsyncClient` whose methods wait, so that one table of tests is for both."""

    def __init__(self, *arguments, **options):
        self.client = kvtide.AsyncClient(*arguments, **options)
        self.loop = asyncio.new_event_loop()

    def __getattr__(self, name):
        if name not in vars(kvtide.AsyncClient):
            raise AttributeError(name)
        method = getattr(self.client, name)
        return lambda *arguments, **options: self.loop.run_until_complete(method(*arguments, **options))

    def close(self):
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


@pytest.fixture(params=[kvtide.Client, Waiting], ids=["Client", "AsyncClient"])
def connect(request):
    """Makes clients of both kinds, which are closed with the test."""
    made = []

    def client(url, **options):
        made.append(request.param(url, **{"scope": SCOPE, **options}))
        return made[-1]

    yield client
    for one in made:
        one.close()


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


class Peer(http.server.ThreadingHTTPServer):
    """Something else at an address, which counts connections and answers as it is told."""

    def __init__(self, answer):
        self.connections, self.requests = 0, 0
        peer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                peer.connections += 1
                super().setup()

            def do_POST(self):
                peer.requests += 1
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                answer(self)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


def answering(body, close=False):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = close

    return answer


ANSWER = kvtide.Indexer("m", 4).overlap([1]).to_json().encode()


def test_connections_are_kept(connect):
    peer = Peer(answering(ANSWER))
    client = connect(peer.url)
    for _ in range(5):
        client.overlap([1])
    assert (peer.connections, peer.requests) == (1, 5)
    peer.shutdown()


def test_a_connection_that_the_service_has_closed_is_made_anew(connect):
    # It says nothing of closing and does.
    peer = Peer(answering(ANSWER, close=True))
    client = connect(peer.url)
    for _ in range(5):
        client.overlap([1])
        time.sleep(0.02)
    assert peer.requests == 5
    peer.shutdown()


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


def test_an_answer_that_does_not_come_is_not_waited_for(connect):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        client = connect(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        started = time.monotonic()
        with pytest.raises(errors.TimedOut) as caught:
            client.overlap([1])
        assert time.monotonic() - started < 2
        assert isinstance(caught.value, TimeoutError)


def test_an_answer_that_comes_drop_by_drop_is_not_waited_for(connect):
    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        try:
            for _ in range(100):
                handler.wfile.write(b" ")
                time.sleep(0.05)
        except OSError:
            pass

    peer = Peer(drip)
    started = time.monotonic()
    with pytest.raises(errors.TimedOut):
        connect(peer.url, timeout_s=0.3).overlap([1])
    assert time.monotonic() - started < 2
    peer.shutdown()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"ranks": 3}', ANSWER[:-5]])
def test_what_is_no_answer_is_an_error(connect, body):
    peer = Peer(answering(body))
    client = connect(peer.url)
    for ask in (lambda: client.overlap([1]), client.workers, lambda: client.register_worker(1)):
        with pytest.raises(errors.BadReply):
            ask()
    peer.shutdown()


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://h", "http://", "http://h:x", "http://u:p@h/", "http://h/?a"])
def test_what_is_no_address_is_refused(connect, url):
    with pytest.raises(errors.InvalidArgument):
        connect(url)
    with pytest.raises(errors.InvalidArgument):
        connect("http://127.0.0.1:1", timeout_s=0)


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
