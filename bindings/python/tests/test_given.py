"""What is handed to clients: they take what an index in process takes, refuse what it refuses, and repeat nothing of it."""

import traceback
from decimal import Decimal
from fractions import Fraction

import kvtide
import numpy as np
import pytest
from kvtide import errors
from peer import Peer, answering
from test_indexer import BAD_EVENTS, BAD_PROMPTS, FORMS, HASH_FORMS, PROMPT, stored

SECRET = "hunter2"


def everything_of(error):
    """All that a log could show of an exception, those behind it included."""
    shown, behind = "", error
    while behind is not None:
        shown += repr(behind.args) + "".join(traceback.format_exception_only(type(behind), behind))
        behind = behind.__cause__ or behind.__context__
    return shown + "".join(traceback.format_exception(type(error), error, error.__traceback__))


def refused(wrong, kind=errors.KvtideError):
    with pytest.raises(kind) as caught:
        wrong()
    assert caught.value.got and caught.value.expected
    assert SECRET not in everything_of(caught.value)
    return caught.value


@pytest.fixture
def client(connect, service):
    client = connect(service.url)
    client.apply_events([stored(list(range(8)), [1, 2])], 7, first_event_id=1)
    client.apply_events([stored([8, 9, 10, 11], [3], parent=2, tier="host")], 7, first_event_id=2)
    return client


@pytest.mark.parametrize("form", FORMS)
def test_tokens_may_have_any_form(client, form):
    assert client.overlap(FORMS[form]).ranks[0].reach == kvtide.Reach(gpu=8, host=12, disk=12, external=12)
    assert client.overlap(FORMS[form], ranks=[(7, 0)]).ranks[0].reach.host == 12
    assert client.overlap_batch([FORMS[form]])[0].ranks[0].reach.host == 12


@pytest.mark.parametrize("form", HASH_FORMS)
def test_hashes_may_have_any_form(client, form):
    assert client.overlap(block_hashes=HASH_FORMS[form]).ranks[0].reach.host == 12
    assert client.overlap_batch(block_hashes=(HASH_FORMS[form],))[0].ranks[0].reach.host == 12


@pytest.mark.parametrize("kind", [list, tuple, lambda rows: np.array(rows, np.uint64)], ids=["list", "tuple", "numpy"])
def test_batches_may_have_any_form(client, kind):
    tokens, hashes = kind([PROMPT[:8], PROMPT[4:12]]), kind([kvtide.hash_blocks(PROMPT[:8], 4)] * 2)
    assert [one.ranks[0].reach.gpu for one in client.overlap_batch(tokens)] == [8, 0]
    assert [one.ranks[0].reach.gpu for one in client.overlap_batch(block_hashes=hashes)] == [8, 8]


@pytest.mark.parametrize("number", [int, np.int64, np.uint64, np.uint8], ids=lambda number: number.__name__)
def test_integers_of_any_type_are_taken(connect, client, number):
    media = {"mm_hash": number(42), "offsets": [[number(5), number(7)]]}
    asked = {"ranks": [(number(7), number(0))], "min_reach_tokens": number(1), "limit": number(1)}
    for answer in (
        client.overlap(PROMPT, **asked),
        client.overlap(PROMPT, limit=number(1), min_reach_tokens=number(1), freshness=np.True_),
        client.overlap(PROMPT, ranks=np.array([[7, 0]])),
        client.overlap_batch([PROMPT], **asked)[0],
        client.overlap(PROMPT, mm_objects=[media]),
        client.overlap(PROMPT, block_mm_infos=[None, {"mm_objects": [media]}]),
    ):
        assert [rank.worker_id for rank in answer.ranks] == [7]
    other = connect(client_url(client), scope={"model": "m", "block_size": number(4)})
    assert other.register_worker(number(8), [number(0), number(1)]) == 2
    assert other.feedback(number(7), number(0), predicted_tokens=number(8), cached_tokens=number(8))["observations"] == 1
    event = stored([number(token) for token in range(4)], [number(1)], group=number(0))
    assert other.apply_events([event], number(8), number(1), first_event_id=number(1))["applied_events"] == 1
    assert (other.remove_worker(number(8), number(1)), other.remove_worker(number(8))) == (1, 1)


def client_url(client):
    return getattr(client, "client", client)._address.url


@pytest.mark.parametrize("mm_hash", [42, np.uint64(42), "2a", "0x2A", (42).to_bytes(8, "big")], ids=repr)
def test_hashes_of_media_may_have_any_form(client, mm_hash):
    index = kvtide.Indexer("m", 4)
    infos, objects = [None, {"mm_objects": [{"mm_hash": mm_hash}]}], [{"mm_hash": mm_hash, "offsets": [(5, 7)]}]
    hashes = kvtide.hash_blocks(PROMPT, 4, block_mm_infos=[None, {"mm_objects": [{"mm_hash": 42}]}])
    for one in (index, client):
        one.apply_events([{"type": "stored", "blocks": [{"sequence_hash": 90 + n, "block_hash": h} for n, h in enumerate(hashes)]}], 9)
        assert one.overlap(PROMPT, block_mm_infos=infos).rank(9).reach.gpu == 12
        assert one.overlap(PROMPT, mm_objects=objects).rank(9).reach.gpu == 12


@pytest.mark.parametrize("prompt, kind", BAD_PROMPTS, ids=[str(row[0])[:60] for row in BAD_PROMPTS])
def test_what_is_no_prompt_is_refused(client, prompt, kind):
    error = refused(lambda: client.overlap(**prompt))
    # Of what only the service can tell the type is not another exception's.
    assert type(error) is kind or (error.status and type(error) is errors.InvalidArgument)


@pytest.mark.parametrize("events, kind", BAD_EVENTS, ids=[str(row[0])[:60] for row in BAD_EVENTS])
def test_what_is_no_event_is_refused_and_changes_nothing(client, events, kind):
    before = client.overlap(PROMPT).version
    error = refused(lambda: client.apply_events(events, 9))
    assert type(error) is kind or (error.status and type(error) is errors.InvalidArgument)
    assert client.overlap(PROMPT).version == before and client.overlap(PROMPT).rank(9) is None


NO_NUMBERS = [None, 1.5, "7", "7/../x", b"7", [7], {}, np.float32(7), np.array([7, 7]), -1, 2**64, 10**5000, object()]
NO_LISTS = [5, "text", b"bytes", {1: 2}, None, object(), iter([]), np.array(5), range(2**40), range(2**70)]
NO_TEXTS = [3, b"text", ["text"], object(), f"{SECRET}\ud800"]


@pytest.mark.parametrize("number", NO_NUMBERS, ids=lambda number: type(number).__name__)
def test_what_is_no_number_is_refused(client, number):
    calls = [
        lambda: client.overlap(PROMPT, ranks=[(number, 0)]),
        lambda: client.overlap(PROMPT, ranks=[(0, number)]),
        lambda: client.overlap(PROMPT, min_reach_tokens=number),
        lambda: client.overlap_batch([PROMPT], ranks=[(number, 0)]),
        lambda: client.apply_events([], number),
        lambda: client.apply_events([], 7, number),
        lambda: client.register_worker(number),
        lambda: client.register_worker(7, [number]),
        lambda: client.remove_worker(number),
        lambda: client.feedback(number, 0, predicted_tokens=1, cached_tokens=1),
        lambda: client.feedback(7, number, predicted_tokens=1, cached_tokens=1),
        lambda: client.feedback(7, 0, predicted_tokens=number, cached_tokens=1),
        lambda: client.feedback(7, 0, predicted_tokens=1, cached_tokens=number),
        lambda: client.overlap(PROMPT, mm_objects=[{"mm_hash": 1, "offsets": [[number, 2]]}]),
    ]
    if number is not None:
        calls += [
            lambda: client.overlap(PROMPT, limit=number),
            lambda: client.apply_events([stored([1, 2, 3, 4], [1], group=number)], 7),
            lambda: client.remove_worker(7, number),
            lambda: client.apply_events([], 7, first_event_id=number),
            lambda: client.apply_engine_batch(b"", "s", sequence=number),
        ]
    for call in calls:
        refused(call)
    assert [worker["worker_id"] for worker in client.workers()] == [7]


@pytest.mark.parametrize("given", NO_LISTS, ids=lambda given: repr(given)[:20])
def test_what_is_no_list_is_refused(client, given):
    calls = [
        lambda: client.overlap_batch(given),
        lambda: client.overlap_batch([given]),
        lambda: client.overlap_batch(block_hashes=given),
        lambda: client.overlap_batch(block_hashes=[given]),
        lambda: client.overlap(PROMPT, ranks=[given]),
        lambda: client.apply_events(given, 7),
        lambda: client.apply_events([given], 7),
        lambda: client.apply_events([{"type": "stored", "blocks": [given]}], 7),
        lambda: client.register_worker(7, given),
        lambda: client.overlap(PROMPT, block_mm_infos=[{"mm_objects": given}]),
        lambda: client.overlap(PROMPT, mm_objects=[{"mm_hash": 1, "offsets": given}]),
        lambda: client.overlap(PROMPT, mm_objects=[{"mm_hash": 1, "offsets": [given]}]),
    ]
    if given is not None:
        calls += [
            lambda: client.overlap(PROMPT, ranks=given),
            lambda: client.overlap(PROMPT, mm_objects=given),
            lambda: client.overlap(PROMPT, block_mm_infos=given),
            lambda: client.apply_events([{"type": "stored", "blocks": given}], 7),
            lambda: client.apply_events([{"type": "stored", "sequence_hashes": given}], 7),
            lambda: client.apply_events([stored(given, [1])], 7),
        ]
    for call in calls:
        refused(call)


@pytest.mark.parametrize("given", NO_TEXTS, ids=ascii)
def test_what_is_no_text_is_refused(client, given):
    for call in (
        lambda: client.overlap(PROMPT, adapter=given),
        lambda: client.overlap(PROMPT, tenant=given),
        lambda: client.overlap_batch([PROMPT], tenant=given),
        lambda: client.apply_events([], 7, adapter=given),
        lambda: client.apply_events([{"type": given}], 7),
        lambda: client.apply_events([{"type": "stored", "tier": given, "sequence_hashes": [1]}], 7),
        lambda: client.apply_dynamo_frame(b"", given),
        lambda: client.apply_engine_batch(b"", given),
    ):
        refused(call)


def test_what_is_neither_is_refused(client):
    for wrong in ("text", 3, None, [1], {}):
        refused(lambda: client.apply_dynamo_frame(wrong, "s"), errors.WrongType)
        refused(lambda: client.apply_engine_batch(wrong, "s"), errors.WrongType)
        refused(lambda: client.overlap(PROMPT, freshness=wrong), errors.WrongType)
    for wrong in ([(7,)], [(7, 0, 0)], [()]):
        refused(lambda: client.overlap(PROMPT, ranks=wrong), errors.InvalidArgument)
    for taken in (b"x", bytearray(b"x"), memoryview(b"x")):
        assert refused(lambda: client.apply_dynamo_frame(taken, "nowhere")).status == 404
    refused(lambda: client.apply_dynamo_frame(b"x", SECRET * 10_000), errors.InvalidArgument)


def test_names_may_be_long_and_of_any_letters(client):
    for name in ("ä b&c=d/?#", "\0", "名", "x" * 70_000):
        assert client.overlap(PROMPT, adapter=name).rank(7).reach.gpu == 0


@pytest.mark.parametrize(
    "scope",
    [5, "model", [("model", "m")], {"other": 1}, {"limit": "1"}, {3: "m"}, {"model": 3}, {"model": b"m"}, {"model": "\ud800"}]
    + [{"block_size": size} for size in ("4", 4.0, 0, -4, 2**32)],
    ids=ascii,
)
def test_what_is_no_scope_is_refused(connect, scope):
    refused(lambda: connect("http://127.0.0.1:1", scope=scope))


BAD_TOKENS = [f"{SECRET}\n", f"{SECRET}\r\nX: y", f"{SECRET}ä", f"{SECRET}\ud800", f" {SECRET}", f"{SECRET} 2", f"{SECRET}\0", f"{SECRET}\x7f", ""]


@pytest.mark.parametrize("token", [*BAD_TOKENS, SECRET.encode(), 5], ids=ascii)
def test_what_is_no_token_is_refused_and_not_repeated(connect, token):
    kind = errors.InvalidArgument if isinstance(token, str) else errors.WrongType
    refused(lambda: connect("http://127.0.0.1:1", token=token), kind)


BAD_URLS = [
    "", " ", "127.0.0.1:80", "ftp://h", "http:", "http://", "http:///x", "http://:80", "//h", "http:/h", "file:///etc/passwd",
    "http://h:x", "http://h:0", "http://h:65536", "http://h:123456", "http://h:-1", "http://h:8\u0660",
    f"http://u:{SECRET}@h/", f"http://:{SECRET}@h/", f"http://{SECRET}@h/", f"http://u:{SECRET}@/", f"http://u:{SECRET}@h:x/", f"http://u:{SECRET}@[::1",
    f"http://h/?{SECRET}", f"http://h/#{SECRET}", f"http://h?{SECRET}", "http://h/?", "http://h/#", f"http://h/{SECRET} x", f"http://h/{SECRET}\n",
    "http://[::1", "http://::1", "http://[::1]x", "http://[]", "http://[::g]", "http://[1.2.3.4]", "http://[:::::]:80", "http://[fe80::1%25lo]",
    "http://hö", "http://h/ö", "http://h h", "http://h\t", "\thttp://h", "http://h/\u2028", "http://h/\0", "http://h/\ud800",
    "http://a..b", "http://.a", f"http://{'a' * 64}", "http://a..", "http://1.2.3.400", "http://1.2.3", "http://1.2.3.4.", "http://0x7f.1/%zz",
    "http://h/a/../b", "http://h/./", "http://h/%", "http://h/%zz", "http://h\\x", "http://h|x", f"http://h/{'x' * 9000}",
    None, 5, b"http://h", ["http://h"],
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS, ids=lambda url: ascii(url)[:40])
def test_what_is_no_address_is_refused_and_not_repeated(connect, url):
    refused(lambda: connect(url), errors.InvalidArgument if isinstance(url, str) else errors.WrongType)


@pytest.mark.parametrize("host", ["xn--a", "xn--zzzz", "10-0-0-1", "no_such.invalid", "a.invalid."])
def test_a_name_that_is_not_known_cannot_be_reached(connect, host):
    """Or is refused at once by httpx, which takes some of them for addresses."""

    def ask():
        connect(f"http://{host}:1", timeout_s=3).overlap([1])

    assert type(refused(ask)) in (errors.ConnectionFailed, errors.TimedOut, errors.InvalidArgument)


@pytest.mark.parametrize("path", ["", "/", "/a", "/a/", "/a/b~c", "/a%20b/%C3%B6/", "/a;b=c,d:e@f/"])
def test_a_service_may_be_below_a_path(connect, path):
    peer = Peer(answering(kvtide.Indexer("m", 4).overlap([1]).to_json().encode()))
    connect(peer.url.upper() + path, scope={}).overlap([1])
    assert peer.paths == [path.rstrip("/") + "/v1/overlap"]
    peer.stop()


BAD_TIMEOUTS = [0, -1, -0.0, float("nan"), float("inf"), -float("inf"), 1e10, 2_147_484, 10**400, Fraction(1, 10**400)]
NO_TIMEOUTS = ["1", b"1", True, None, [1], object(), Decimal(1), np.array([1, 2])]


@pytest.mark.parametrize("seconds", [*BAD_TIMEOUTS, *NO_TIMEOUTS], ids=lambda seconds: repr(seconds)[:30])
def test_what_is_no_time_is_refused(connect, seconds):
    kind = errors.WrongType if any(seconds is one for one in NO_TIMEOUTS) else errors.InvalidArgument
    refused(lambda: connect("http://127.0.0.1:1", timeout_s=seconds), kind)


@pytest.mark.parametrize("seconds", [5, 2.5, np.float32(5), np.int64(5), Fraction(5, 2), 2_147_483], ids=repr)
def test_a_time_may_be_any_number(connect, service, seconds):
    assert connect(service.url, timeout_s=seconds).ready() is True


def test_other_options_are_checked(connect):
    for options in ({"connections": "3"}, {"connections": 1.5}, {"connections": -1}, {"ssl_context": "ca.pem"}, {"ssl_context": True}):
        refused(lambda: connect("http://127.0.0.1:1", **options))


def test_a_token_may_be_any_that_can_stand_in_a_header(connect):
    seen = []

    def answer(handler):
        seen.append(handler.headers["Authorization"])
        answering(b"{}")(handler)

    peer = Peer(answer)
    token = "".join(map(chr, range(33, 127)))
    assert connect(peer.url, token=token).ready() is True
    assert connect(peer.url, token=np.str_("kvt_x")).ready() is True
    assert seen == [f"Bearer {token}", "Bearer kvt_x"]
    peer.stop()
