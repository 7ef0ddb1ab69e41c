"""What is sent to a service, and what is read from its replies: for clients of either kind.

Source: docs/http.md and docs/openapi.json.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Generic, Mapping, Optional, Sequence, TypeVar, cast
from urllib.parse import urlencode

from . import _given, _native, errors

if TYPE_CHECKING:
    from ._types import BlockHashes, BlockMedia, Event, MediaObjects, TokenIds

T = TypeVar("T")

JSON = "application/json"
TOKENS = "application/octet-stream"
FRAME = "application/x-dynamo-kv-frame"
BATCH = "application/x-engine-kv-batch"

#: Characters of an address, or of what is asked behind it. Servers and httpx take no more than 64 KiB of both.
LONGEST = 8192

Scope = Mapping[str, Any]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its reply is read."""

    method: str
    path: str
    read: Callable[[bytes], T]
    body: Optional[bytes] = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    #: Sent twice it does what it does sent once.
    repeatable: bool = True


_URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?:(?P<name>(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?)|\[(?P<ipv6>[0-9a-f.]*:[0-9a-f:.]*)\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/(?:[a-z0-9._~!$&'()*+,;=:@-]|%[0-9a-f]{2})*)*)",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True)
class Address:
    """Where a service is."""

    scheme: str
    host: str
    port: int
    prefix: str

    @staticmethod
    def of(url: Any) -> Address:
        # Nothing of it is repeated: it may have a password in it.
        expected = "http://HOST:PORT or https://HOST:PORT, perhaps with a path, without user, query and fragment"
        refused = errors.InvalidArgument("url", "another text", expected)
        parts = _URL.fullmatch(_given.text("url", url))
        if parts is None or len(url) > LONGEST:
            raise refused
        scheme, prefix = parts["scheme"].lower(), parts["path"].rstrip("/")
        host, port = parts["name"] or parts["ipv6"], int(parts["port"] or (443 if scheme == "https" else 80))
        if not 0 < port < 1 << 16 or {".", ".."} & set(prefix.split("/")):
            raise refused
        if re.fullmatch("[0-9.]+|.*:.*", host):
            try:
                ipaddress.ip_address(host)
            except ValueError:
                raise refused from None
        return Address(scheme, host, port, prefix)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def headers(token: Optional[str]) -> dict[str, str]:
    # Compressed is what no service of this kind sends.
    said = {"Accept-Encoding": "identity"}
    return said if token is None else {**said, "Authorization": f"Bearer {_given.token(token)}"}


def post(path: str, body: Any, read: Callable[[bytes], T], repeatable: bool = True) -> Call[T]:
    return Call("POST", path, read, json.dumps(body).encode(), {"Content-Type": JSON}, repeatable)


def bad_reply(got: str, expected: str) -> errors.BadReply:
    return errors.BadReply("a reply of the service", got, expected)


def read_json(reply: bytes) -> dict[str, Any]:
    def no_number(name: str) -> None:
        raise ValueError(name)

    try:
        read: Any = json.loads(reply, parse_constant=no_number)
    except ValueError as error:
        raise bad_reply("no JSON", "JSON") from error
    except RecursionError:
        raise bad_reply("JSON nested too deeply", "an object as docs/openapi.json has it") from None
    if not isinstance(read, dict):
        raise bad_reply(type(read).__name__, "an object")
    return cast("dict[str, Any]", read)


def count(name: str) -> Callable[[bytes], int]:
    """Reads a member that counts something."""

    def read(reply: bytes) -> int:
        value = read_json(reply).get(name)
        if type(value) is not int:
            raise bad_reply(f"{name} of type {type(value).__name__}", f"an object with {name}, an integer")
        return value

    return read


def rows(name: str) -> Callable[[bytes], list[dict[str, Any]]]:
    """Reads a member that lists objects."""

    def read(reply: bytes) -> list[dict[str, Any]]:
        value: Any = read_json(reply).get(name)
        if not issubclass(type(value), list) or not all(isinstance(row, dict) for row in value):
            raise bad_reply(f"{name} of another form", f"an object with {name}, a list of objects")
        listed: list[dict[str, Any]] = value
        return listed

    return read


def overlap(
    scope: Scope,
    token_ids: Optional[TokenIds],
    block_hashes: Optional[BlockHashes],
    block_mm_infos: Optional[BlockMedia],
    mm_objects: Optional[MediaObjects],
    wanted: Mapping[str, Any],
) -> Call[_native.Overlap]:
    is_short = block_mm_infos is None and mm_objects is None and "ranks" not in wanted
    if token_ids is not None and block_hashes is None and is_short and None not in scope.values():
        options = {**scope, **wanted}
        query = urlencode({name: json.dumps(v) if isinstance(v, bool) else v for name, v in options.items()})
        if len(query) <= LONGEST:
            path = "/v1/overlap" + (f"?{query}" if query else "")
            return Call("POST", path, _native.read_overlap, _native.token_bytes(token_ids), {"Content-Type": TOKENS})
    body = question(scope, token_ids, block_hashes, wanted)
    if block_mm_infos is not None:
        body["block_mm_infos"] = _given.block_media(block_mm_infos)
    if mm_objects is not None:
        body["mm_objects"] = _given.media_objects(mm_objects)
    return post("/v1/overlap", body, _native.read_overlap)


def overlap_batch(
    scope: Scope,
    token_ids: Optional[Sequence[TokenIds]],
    block_hashes: Optional[Sequence[BlockHashes]],
    wanted: Mapping[str, Any],
) -> Call[list[_native.Overlap]]:
    if token_ids is not None and block_hashes is None:
        queries = [question(scope, tokens, None, wanted) for tokens in _given.items("token_ids", token_ids)]
    elif block_hashes is not None and token_ids is None:
        queries = [question(scope, None, hashes, wanted) for hashes in _given.items("block_hashes", block_hashes)]
    else:
        got = "neither" if token_ids is None else "both"
        raise errors.InvalidArgument("prompts", got, "token_ids or block_hashes")
    return post("/v1/overlap", {"queries": queries}, _native.read_overlaps)


def question(
    scope: Scope, token_ids: Optional[TokenIds], block_hashes: Optional[BlockHashes], wanted: Mapping[str, Any]
) -> dict[str, Any]:
    asked: dict[str, Any] = {"scope": dict(scope), **wanted}
    if token_ids is not None:
        asked["token_ids"] = _given.tokens(token_ids)
    if block_hashes is not None:
        asked["block_hashes"] = _given.hashes("block_hashes", block_hashes)
    if len(asked.keys() & {"token_ids", "block_hashes"}) != 1:
        got = "neither" if token_ids is None else "both"
        raise errors.InvalidArgument("a prompt", got, "token_ids or block_hashes")
    return asked


def wanted(
    ranks: Optional[Sequence[tuple[int, int]]], min_reach_tokens: int, limit: Optional[int], freshness: bool
) -> dict[str, Any]:
    """What an answer is to have in it; what is not said is left out."""
    said: dict[str, Any] = {}
    if ranks is not None:
        said["ranks"] = _given.ranks(ranks)
    if least := _given.whole("min_reach_tokens", min_reach_tokens, _given.U32):
        said["min_reach_tokens"] = least
    if limit is not None:
        said["limit"] = _given.whole("limit", limit)
    if not _given.flag("freshness", freshness):
        said["freshness"] = False
    return said


def salted(scope: Scope, adapter: Optional[str], tenant: Optional[str]) -> dict[str, Any]:
    salts = {"adapter": adapter, "tenant": tenant}
    return {**scope, **{name: _given.text(name, salt) for name, salt in salts.items() if salt is not None}}


def of_rank(scope: Scope, worker_id: int, dp_rank: int, **more: Any) -> dict[str, Any]:
    rank = {"worker_id": _given.whole("worker_id", worker_id), "dp_rank": _given.whole("dp_rank", dp_rank, _given.U32)}
    return {"scope": dict(scope), **rank, **more}


def events(
    scope: Scope, events: Sequence[Event], worker_id: int, dp_rank: int, first_event_id: Optional[int]
) -> Call[dict[str, Any]]:
    given = _given.items("events", events)
    body = of_rank(scope, worker_id, dp_rank)
    body["events"] = [_given.event(f"events, index {place}", event) for place, event in enumerate(given)]
    if first_event_id is not None:
        body["first_event_id"] = _given.whole("first_event_id", first_event_id, least=1)
    # Numbered events are known as repeats; others would be applied twice.
    return post("/v1/events", body, read_json, repeatable=first_event_id is not None)


def raw(kind: str, message: bytes, stream: str, sequence: Optional[int]) -> Call[dict[str, Any]]:
    named: dict[str, Any] = {"stream": _given.text("stream", stream)}
    if sequence is not None:
        named["sequence"] = _given.whole("sequence", sequence)
    query = urlencode(named)
    if len(query) > LONGEST:
        raise errors.InvalidArgument("stream", f"a text of {len(stream)} characters", "the name of a stream")
    body = _given.payload("a message", message)
    return Call("POST", f"/v1/events?{query}", read_json, body, {"Content-Type": kind}, repeatable=False)


def register(scope: Scope, worker_id: int, dp_ranks: Sequence[int]) -> Call[int]:
    ranks = [_given.whole("dp_ranks", rank, _given.U32) for rank in _given.items("dp_ranks", dp_ranks)]
    body = {"scope": dict(scope), "worker_id": _given.whole("worker_id", worker_id), "dp_ranks": ranks}
    return post("/v1/workers", body, count("new_ranks"))


def remove(worker_id: int, dp_rank: Optional[int]) -> Call[int]:
    path = f"/v1/workers/{_given.whole('worker_id', worker_id)}"
    if dp_rank is not None:
        path += f"?dp_rank={_given.whole('dp_rank', dp_rank, _given.U32)}"
    return Call("DELETE", path, count("removed_ranks"), repeatable=False)


def feedback(
    scope: Scope, worker_id: int, dp_rank: int, predicted_tokens: int, cached_tokens: int
) -> Call[dict[str, Any]]:
    body = of_rank(
        scope,
        worker_id,
        dp_rank,
        predicted_tokens=_given.whole("predicted_tokens", predicted_tokens, _given.U32),
        cached_tokens=_given.whole("cached_tokens", cached_tokens, _given.U32),
    )
    return post("/v1/feedback", body, read_json, repeatable=False)


def workers() -> Call[list[dict[str, Any]]]:
    return Call("GET", "/v1/workers", rows("workers"))


def scopes() -> Call[list[dict[str, Any]]]:
    return Call("GET", "/v1/scopes", rows("scopes"))


def ready() -> Call[bool]:
    return Call("GET", "/readyz", lambda _reply: True)


KINDS: dict[str, type[errors.KvtideError]] = {
    "malformed": errors.InvalidArgument,
    "impossible": errors.InvalidArgument,
    "unsupported-media-type": errors.InvalidArgument,
    "undecodable": errors.Undecodable,
    "unauthorized": errors.Unauthorized,
    "forbidden": errors.Forbidden,
    "unknown-scope": errors.UnknownScope,
    "unknown-stream": errors.NotFound,
    "unknown-worker": errors.NotFound,
    "no-such-route": errors.NotFound,
    "too-slow": errors.TimedOut,
    "several-scopes": errors.SeveralScopes,
    "refused": errors.Refused,
    "other-format": errors.Conflict,
    "other-hashing": errors.Conflict,
    "name-taken": errors.Conflict,
    "too-large": errors.TooLarge,
    "busy": errors.Busy,
    "not-ready": errors.Busy,
    "too-many-scopes": errors.TooManyRanks,
    "too-many-ranks": errors.TooManyRanks,
}


def read(call: Call[T], status: int, reply: bytes) -> T:
    """What a reply says, or the exception that it is."""
    if 200 <= status < 300:
        return call.read(reply)
    problem: dict[str, Any] = {}
    try:
        problem = read_json(reply)
    except errors.BadReply:
        pass

    def said(*names: str) -> str:
        found = (problem.get(name) for name in names)
        return next((str(one) for one in found if isinstance(one, (str, int)) and one != ""), "")

    name = said("type").rpartition(":")[2]
    what = said("detail", "title") or f"status {status}"
    got = said("got") or name or str(status)
    expected = said("expected", "expected_role", "limit") or what
    failure = KINDS.get(name, errors.ServiceError)(what, got, expected)
    failure.status, failure.problem = status, problem or None
    raise failure


def cannot_be_reached(error: Exception) -> errors.ConnectionFailed:
    return errors.ConnectionFailed("the service cannot be reached", type(error).__name__, "an answer")


def took_too_long(timeout_s: float) -> errors.TimedOut:
    return errors.TimedOut("no answer", f"none in {timeout_s} s", "one in time")
