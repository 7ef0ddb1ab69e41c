"""What becomes of a request where the other side is slow, goes away, or is no service."""

import asyncio
import gc
import os
import resource
import socket
import ssl
import threading
import time
import warnings

import kvtide
import numpy as np
import pytest
import trustme
from conftest import SCOPE, Plain
from kvtide import errors
from peer import Peer, Raw, answering, dripping, reply

ANSWER = kvtide.Indexer("m", 4).overlap([1]).to_json().encode()
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def stand():
    """Puts up what answers, until the test ends."""
    made = []

    def put_up(one):
        made.append(one)
        return one

    yield put_up
    for one in made:
        one.stop()


def timed_out(ask, within_s=1.5):
    started = time.monotonic()
    with pytest.raises(errors.TimedOut) as caught:
        ask()
    assert time.monotonic() - started < within_s
    assert type(caught.value) is errors.TimedOut and isinstance(caught.value, TimeoutError)


def test_connections_are_kept(connect, stand):
    peer = stand(Peer(answering(ANSWER)))
    client = connect(peer.url)
    for _ in range(5):
        client.overlap([1])
    assert (peer.connections, peer.requests) == (1, 5)


def test_a_connection_that_the_service_has_closed_is_made_anew(connect, stand):
    # It says nothing of closing and does.
    peer = stand(Peer(answering(ANSWER, close=True)))
    client = connect(peer.url)
    for _ in range(5):
        client.overlap([1])
        time.sleep(0.02)
    assert peer.requests == 5


def test_an_answer_that_does_not_come_is_not_waited_for(connect, stand):
    silent = stand(Raw(lambda raw, connection, number: time.sleep(5)))
    timed_out(lambda: connect(f"http://{silent.address}", timeout_s=0.2).overlap([1]))


DRIPS = {
    "status line": (b"HTTP/1.1 200 ", b"a"),
    "header": (OK + b"X-A: ", b"a"),
    "headers": (OK, b"X-A: b\r\n"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (OK + b"Content-Length: 100000\r\n\r\n", b" "),
    "body until the end": (OK + b"\r\n", b" "),
    "body before a close": (OK + b"Connection: close\r\nContent-Length: 100000\r\n\r\n", b" "),
    "chunks before a close": (OK + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "body of HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\n", b" "),
    "chunks": (CHUNKED, b"1\r\n \r\n"),
    "a chunk": (CHUNKED + b"ffff\r\n", b" "),
    "size of a chunk": (CHUNKED, b"0"),
    "extension of a chunk": (CHUNKED + b"1;", b"a"),
    "trailers": (CHUNKED + b"0\r\n", b"X-A: b\r\n"),
}


@pytest.mark.parametrize("what", DRIPS)
def test_nothing_that_comes_drop_by_drop_outlasts_a_request(connect, stand, what):
    peer = stand(Raw(dripping(*DRIPS[what])))
    timed_out(lambda: connect(f"http://{peer.address}", timeout_s=0.4).overlap([1]))


@pytest.mark.parametrize("what", ["body", "body before a close", "body until the end", "chunks before a close", "trailers"])
def test_what_begins_late_has_no_more_time(connect, stand, what):
    def late(raw, connection, _number):
        raw.read_request(connection)
        time.sleep(0.9)
        connection.sendall(DRIPS[what][0])
        time.sleep(5)

    peer = stand(Raw(late))
    timed_out(lambda: connect(f"http://{peer.address}", timeout_s=1).overlap([1]))


def test_a_service_that_reads_drop_by_drop_is_not_waited_for(connect, stand):
    def sip(_raw, connection, _number):
        while connection.recv(4096):
            time.sleep(0.02)

    peer = stand(Raw(sip))
    timed_out(lambda: connect(f"http://{peer.address}", timeout_s=0.4).overlap(np.zeros(4 << 20, np.uint32)), 2.5)


def test_a_handshake_is_not_waited_for(connect, stand):
    silent = stand(Raw(lambda raw, connection, number: time.sleep(5)))
    timed_out(lambda: connect(f"https://{silent.address}", timeout_s=0.4).overlap([1]))


def test_what_comes_slowly_and_in_time_is_an_answer(connect, stand):
    def slowly(raw, connection, _number):
        while raw.read_request(connection):
            for place in range(0, len(reply(ANSWER)), 16):
                connection.sendall(reply(ANSWER)[place : place + 16])
                time.sleep(0.002)

    peer = stand(Raw(slowly))
    client = connect(f"http://{peer.address}")
    assert len(client.overlap([1])) == len(client.overlap([1])) == 0
    assert len(peer.connections) == 1


CLOSING = {
    "says so": OK + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER),
    "no length": OK + b"\r\n" + ANSWER,
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\n" + ANSWER,
    "chunks": OK + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(ANSWER), ANSWER),
}


@pytest.mark.parametrize("how", CLOSING)
def test_an_answer_may_be_a_connections_last(connect, stand, how):
    def once(raw, connection, _number):
        raw.read_request(connection)
        connection.sendall(CLOSING[how])

    peer = stand(Raw(once))
    client = connect(f"http://{peer.address}")
    for _ in range(3):
        assert client.overlap([1]).model == "m"
    assert (peer.requests, len(peer.connections)) == (3, 3)


EVENT = [{"type": "cleared"}]


def test_a_fresh_connection_that_breaks_is_not_asked_again(connect, stand):
    peer = stand(Raw(lambda raw, connection, number: raw.read_request(connection)))
    client = connect(f"http://{peer.address}")
    for asked, ask in enumerate((lambda: client.overlap([1]), client.workers, lambda: client.apply_events(EVENT, 7)), 1):
        with pytest.raises(errors.ConnectionFailed):
            ask()
        assert peer.requests == asked


def breaking(second):
    """Its first connection answers one request, and with the second one does this. All others answer."""

    def serve(raw, connection, number):
        while raw.read_request(connection):
            if number == 0 and raw.requests > 1:
                connection.sendall(second)
                return
            connection.sendall(reply(ANSWER))

    return serve


def test_a_kept_connection_that_breaks_is_asked_again_unless_it_would_count_twice(connect, stand):
    for ask, requests in (
        (lambda client: client.overlap([1]), 3),
        (lambda client: client.apply_events(EVENT, 7, first_event_id=1), 3),
        (lambda client: client.apply_events(EVENT, 7), 2),
        (lambda client: client.feedback(7, 0, predicted_tokens=1, cached_tokens=1), 2),
        (lambda client: client.apply_dynamo_frame(b"", "s"), 2),
        (lambda client: client.apply_engine_batch(b"", "s"), 2),
        (lambda client: client.remove_worker(7), 2),
    ):
        peer = stand(Raw(breaking(b"")))
        client = connect(f"http://{peer.address}")
        client.overlap([1])
        if requests == 3:
            ask(client)
        else:
            with pytest.raises(errors.ConnectionFailed):
                ask(client)
        assert peer.requests == requests


def test_what_breaks_after_an_answer_has_begun_is_not_asked_again(connect, stand):
    peer = stand(Raw(breaking(OK + b"Content-Length: 1000\r\n\r\n{")))
    client = connect(f"http://{peer.address}")
    client.overlap([1])
    with pytest.raises(errors.ConnectionFailed):
        client.overlap([1])
    assert peer.requests == 2


NO_HTTP = [b"SSH-2.0-OpenSSH\r\n", b"\0" * 100, b"HTTP/1.1 abc\r\n\r\n", OK + b"Content-Length: x\r\n\r\n", OK + b"X: y\r\n" * 500 + b"\r\n"]
NO_HTTP += [CHUNKED + size + b"\r\n" for size in (b"zz", b"-5", b"", b"9" * 100, "٣".encode())]
NO_HTTP += [OK + b"X" * 70_000, b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n"]


@pytest.mark.parametrize("sent", NO_HTTP, ids=lambda sent: ascii(sent)[2:40])
def test_what_is_no_http_is_an_error(connect, stand, sent):
    def serve(raw, connection, _number):
        raw.read_request(connection)
        connection.sendall(sent)

    peer = stand(Raw(serve))
    client = connect(f"http://{peer.address}", timeout_s=2)
    for ask in (lambda: client.overlap([1]), lambda: client.register_worker(1)):
        with pytest.raises(errors.ServiceError) as caught:
            ask()
        assert caught.value.got and caught.value.expected


DEEP = b"[" * 100_000
NO_REPLIES = [b"", b"<html>", b"[]", b"{}", b"null", b"3", b'"x"', b"\xff\xfe\x00", b'{"ranks": 3}', ANSWER[:-5], DEEP, DEEP + b"]" * len(DEEP)]
NO_REPLIES += [
    b'{"new_ranks": %s, "removed_ranks": %s, "workers": %s, "scopes": %s, "answers": %s}' % ((value,) * 5)
    for value in (b"Infinity", b"-Infinity", b"NaN", b"1.5", b"1e999", b"true", b"null", b'"3"', b'"abc"', b"[3]", b'["a"]', b'{"a": 1}', b"9" * 5000 + b".5", DEEP)
]


@pytest.mark.parametrize("body", NO_REPLIES, ids=lambda body: ascii(body)[2:40])
def test_what_is_no_answer_is_an_error(connect, stand, body):
    peer = stand(Peer(answering(body)))
    client = connect(peer.url)
    for ask in (
        lambda: client.overlap([1]),
        lambda: client.overlap_batch([[1]]),
        lambda: client.register_worker(1),
        lambda: client.remove_worker(1),
        client.workers,
        client.scopes,
    ):
        with pytest.raises(errors.BadReply) as caught:
            ask()
        assert type(caught.value) is errors.BadReply and caught.value.got and caught.value.expected
    assert peer.connections == 1


@pytest.mark.parametrize("body", NO_REPLIES + [b'{"type": [[1]], "detail": {"a": 1}, "got": 3}'], ids=lambda body: ascii(body)[2:40])
def test_a_refusal_may_have_any_body(connect, stand, body):
    peer = stand(Peer(answering(body, status=418)))
    with pytest.raises(errors.ServiceError) as caught:
        connect(peer.url).overlap([1])
    assert caught.value.status == 418 and str(caught.value)


def test_what_is_not_encoded_as_it_says_is_no_answer(connect, stand):
    peer = stand(Peer(answering(b"no gzip", Content_Encoding="gzip")))
    client = connect(peer.url)
    for ask in (lambda: client.overlap([1]), client.workers):
        with pytest.raises(errors.BadReply):
            ask()
    assert peer.requests == 2


def test_descriptors_may_be_many(connect, stand):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1400
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"no more than {hard} descriptors are allowed")
    peer = stand(Peer(answering(ANSWER)))
    client = connect(peer.url)
    held = []
    try:
        if soft != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        while not held or held[-1] < 1100:
            held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(3):
            client.overlap([1])
        assert peer.connections == 1
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_failure_leaves_a_socket_open(stand):
    serving = [dripping(*DRIPS["body before a close"]), dripping(*DRIPS["trailers"]), breaking(b""), breaking(OK)]
    serving += [breaking(OK + b"Content-Length: 9\r\n\r\n{"), lambda raw, connection, number: None]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for serve in serving:
            peer = stand(Raw(serve))
            client = kvtide.Client(f"http://{peer.address}", scope=SCOPE, timeout_s=0.2)
            for _ in range(3):
                try:
                    client.overlap([1])
                except errors.ServiceError:
                    pass
            assert len(client._idle) <= 1
            client.close()
            del client
        gc.collect()
    assert [str(one.message) for one in caught if f"raddr=('{peer.address.split(':')[0]}'" in str(one.message)] == []


def test_a_connection_in_use_while_its_client_is_closed_is_not_kept(stand):
    asked, may_answer, has_ended = threading.Event(), threading.Event(), threading.Event()

    def serve(raw, connection, _number):
        while raw.read_request(connection):
            asked.set()
            may_answer.wait(10)
            connection.sendall(reply(ANSWER))
        has_ended.set()

    peer = stand(Raw(serve))
    client = kvtide.Client(f"http://{peer.address}", scope=SCOPE)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(client.overlap([1])))
    thread.start()
    assert asked.wait(10)
    client.close()
    may_answer.set()
    thread.join(10)
    assert len(answers) == 1 and has_ended.wait(10)
    client.overlap([1])
    client.overlap([1])
    assert len(peer.connections) == 2
    client.close()


def test_a_task_whose_client_is_closed_has_an_answer_or_an_error(stand):
    asked = threading.Event()

    def serve(raw, connection, _number):
        while raw.read_request(connection):
            asked.set()
            time.sleep(0.3)
            connection.sendall(reply(ANSWER))

    peer = stand(Raw(serve))

    async def close_meanwhile():
        client = kvtide.AsyncClient(f"http://{peer.address}", scope=SCOPE)
        task = asyncio.ensure_future(client.overlap([1]))
        while not asked.is_set():
            await asyncio.sleep(0.01)
        await client.close()
        try:
            await task
        except errors.ConnectionFailed:
            pass
        assert (await client.overlap([1])).model == "m"
        await client.close()

    asyncio.run(close_meanwhile())


def test_a_closed_client_opens_again(connect, stand):
    peer = stand(Peer(answering(ANSWER)))
    client = connect(peer.url)
    for asked in range(1, 4):
        client.overlap([1])
        client.close()
        client.close()
        assert (peer.requests, peer.connections) == (asked, asked)


def test_a_client_goes_from_one_event_loop_to_another_when_it_is_closed(stand):
    peer = stand(Peer(answering(ANSWER)))
    client = kvtide.AsyncClient(peer.url, scope=SCOPE)

    async def ask(is_last):
        assert (await client.overlap([1])).model == "m"
        if is_last:
            await client.close()

    for _ in range(3):
        asyncio.run(ask(True))
    asyncio.run(ask(False))
    try:
        asyncio.run(ask(True))
    except errors.ConnectionFailed as error:
        assert error.got


@pytest.fixture
def secure(start, tmp_path):
    """A service with a certificate of an authority of its own, and a context that trusts it."""
    authority = trustme.CA()
    certificate, key, context = tmp_path / "cert.pem", tmp_path / "key.pem", ssl.create_default_context()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    certificate.write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    key.chmod(0o600)
    authority.configure_trust(context)
    return start("--tls-cert", certificate, "--tls-key", key), context


def test_a_service_may_be_secure(connect, secure):
    service, context = secure
    url = service.url.replace("http://", "https://")
    client = connect(url, ssl_context=context)
    client.apply_events([{"type": "stored", "sequence_hashes": [1], "token_ids": [1, 2, 3, 4]}], 7, first_event_id=1)
    for _ in range(3):
        assert client.overlap([1, 2, 3, 4]).rank(7).reach.gpu == 4
    if isinstance(client, Plain):
        assert len(client._idle) == 1 and not client._idle[0].has_ended()
    long = np.zeros(2 << 20, np.uint32)
    assert client.overlap(long).prompt_tokens == 2 << 20
    with pytest.raises(errors.ConnectionFailed) as caught:
        connect(url).overlap([1])
    assert caught.value.got
    service.stop()
    with pytest.raises(errors.ConnectionFailed):
        client.overlap([1])


def test_a_service_may_have_a_longer_address(connect, start):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")
    service = start(listen="[::1]:0")
    assert service.url.startswith("http://[::1]:")
    assert connect(service.url).ready() is True


def test_a_name_may_have_an_address_where_nothing_listens(connect, stand):
    # `localhost` is ::1 first, on most machines.
    peer = stand(Peer(answering(ANSWER)))
    assert connect(peer.url.replace("127.0.0.1", "localhost")).ready() is True
