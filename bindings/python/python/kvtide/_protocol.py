"""What is sent to a service, and what is read from its replies: for clients of either kind.

Source: docs/http.md and docs/openapi.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Generic, Mapping, Optional, Sequence, TypeVar, cast
from urllib.parse import urlencode, urlsplit

from . import _native, errors

if TYPE_CHECKING:
    from ._types import BlockHashes, BlockMedia, Event, MediaObjects, TokenIds

T = TypeVar("T")

JSON = "application/json"
TOKENS = "application/octet-stream"
FRAME = "application/x-dynamo-kv-frame"
BATCH = "application/x-engine-kv-batch"

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


@dataclass(frozen=True)
class Address:
    """Where a service is."""

    scheme: str
    host: str
    port: int
    prefix: str

    @staticmethod
    def of(url: str) -> Address:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.username:
            raise errors.InvalidArgument("url", repr(url), "http://HOST:PORT or https://HOST:PORT")
        default = 443 if parts.scheme == "https" else 80
        return Address(parts.scheme, parts.hostname, port or default, parts.path.rstrip("/"))


def headers(token: Optional[str]) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def post(path: str, body: Any, read: Callable[[bytes], T], repeatable: bool = True) -> Call[T]:
    return Call("POST", path, read, json.dumps(body).encode(), {"Content-Type": JSON}, repeatable)


def read_json(reply: bytes) -> dict[str, Any]:
    try:
        read: Any = json.loads(reply)
    except ValueError as error:
        raise errors.BadReply("a reply of the service", "no JSON", "JSON") from error
    if not isinstance(read, dict):
        raise errors.BadReply("a reply of the service", type(read).__name__, "an object")
    return cast("dict[str, Any]", read)


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
        query = {name: json.dumps(v) if isinstance(v, bool) else v for name, v in options.items()}
        path = "/v1/overlap" + ("?" + urlencode(query) if query else "")
        return Call("POST", path, _native.read_overlap, _native.token_bytes(token_ids), {"Content-Type": TOKENS})
    body = question(scope, token_ids, block_hashes, wanted)
    if block_mm_infos is not None:
        body["block_mm_infos"] = block_mm_infos
    if mm_objects is not None:
        body["mm_objects"] = mm_objects
    return post("/v1/overlap", body, _native.read_overlap)


def overlap_batch(
    scope: Scope,
    token_ids: Optional[Sequence[TokenIds]],
    block_hashes: Optional[Sequence[BlockHashes]],
    wanted: Mapping[str, Any],
) -> Call[list[_native.Overlap]]:
    if (token_ids is None) == (block_hashes is None):
        got = "neither" if token_ids is None else "both"
        raise errors.InvalidArgument("prompts", got, "token_ids or block_hashes")
    if token_ids is not None:
        queries = [question(scope, tokens, None, wanted) for tokens in token_ids]
    else:
        queries = [question(scope, None, hashes, wanted) for hashes in block_hashes or ()]
    return post("/v1/overlap", {"queries": queries}, _native.read_overlaps)


def question(
    scope: Scope, token_ids: Optional[TokenIds], block_hashes: Optional[BlockHashes], wanted: Mapping[str, Any]
) -> dict[str, Any]:
    asked: dict[str, Any] = {"scope": dict(scope), **wanted}
    if token_ids is not None:
        asked["token_ids"] = memoryview(_native.token_bytes(token_ids)).cast("I").tolist()
    if block_hashes is not None:
        asked["block_hashes"] = _native.hash_list(block_hashes)
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
        said["ranks"] = [list(rank) for rank in ranks]
    if min_reach_tokens:
        said["min_reach_tokens"] = min_reach_tokens
    if limit is not None:
        said["limit"] = limit
    if not freshness:
        said["freshness"] = False
    return said


def salted(scope: Scope, adapter: Optional[str], tenant: Optional[str]) -> dict[str, Any]:
    salts = {"adapter": adapter, "tenant": tenant}
    return {**scope, **{name: salt for name, salt in salts.items() if salt is not None}}


def events(
    scope: Scope, events: Sequence[Event], worker_id: int, dp_rank: int, first_event_id: Optional[int]
) -> Call[dict[str, Any]]:
    body = {"scope": dict(scope), "worker_id": worker_id, "dp_rank": dp_rank, "events": [plain(e) for e in events]}
    if first_event_id is not None:
        body["first_event_id"] = first_event_id
    # Numbered events are known as repeats; others would be applied twice.
    return post("/v1/events", body, read_json, repeatable=first_event_id is not None)


def plain(event: Event) -> dict[str, Any]:
    """An event whose numbers JSON can have."""
    said: dict[str, Any] = dict(event)
    if said.get("token_ids") is not None:
        said["token_ids"] = memoryview(_native.token_bytes(said["token_ids"])).cast("I").tolist()
    if said.get("sequence_hashes") is not None:
        said["sequence_hashes"] = _native.hash_list(said["sequence_hashes"])
    if said.get("parent") is not None:
        said["parent"] = _native.hash_list([said["parent"]])[0]
    if said.get("blocks") is not None:
        said["blocks"] = [
            {name: _native.hash_list([hash])[0] for name, hash in block.items()} for block in said["blocks"]
        ]
    return said


def raw(kind: str, message: bytes, stream: str, sequence: Optional[int]) -> Call[dict[str, Any]]:
    named: dict[str, Any] = {"stream": stream}
    if sequence is not None:
        named["sequence"] = sequence
    path = "/v1/events?" + urlencode(named)
    return Call("POST", path, read_json, message, {"Content-Type": kind}, repeatable=False)


def register(scope: Scope, worker_id: int, dp_ranks: Sequence[int]) -> Call[int]:
    body = {"scope": dict(scope), "worker_id": worker_id, "dp_ranks": list(dp_ranks)}
    return post("/v1/workers", body, lambda reply: int(read_json(reply)["new_ranks"]))


def remove(worker_id: int, dp_rank: Optional[int]) -> Call[int]:
    rank = "" if dp_rank is None else f"?dp_rank={dp_rank}"
    path = f"/v1/workers/{worker_id}{rank}"
    return Call("DELETE", path, lambda reply: int(read_json(reply)["removed_ranks"]), repeatable=False)


def feedback(
    scope: Scope, worker_id: int, dp_rank: int, predicted_tokens: int, cached_tokens: int
) -> Call[dict[str, Any]]:
    body = {
        "scope": dict(scope),
        "worker_id": worker_id,
        "dp_rank": dp_rank,
        "predicted_tokens": predicted_tokens,
        "cached_tokens": cached_tokens,
    }
    return post("/v1/feedback", body, read_json, repeatable=False)


def workers() -> Call[list[dict[str, Any]]]:
    return Call("GET", "/v1/workers", lambda reply: list(read_json(reply)["workers"]))


def scopes() -> Call[list[dict[str, Any]]]:
    return Call("GET", "/v1/scopes", lambda reply: list(read_json(reply)["scopes"]))


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
        try:
            return call.read(reply)
        except (KeyError, ValueError, TypeError) as error:
            if isinstance(error, errors.KvtideError):
                raise
            raise errors.BadReply("a reply of the service", "another form", "that of docs/openapi.json") from error
    problem: dict[str, Any] = {}
    try:
        problem = read_json(reply)
    except errors.BadReply:
        pass
    name = str(problem.get("type", "")).rpartition(":")[2]
    what = str(problem.get("detail") or problem.get("title") or f"status {status}")
    got = str(problem.get("got") or name or status)
    expected = str(problem.get("expected") or problem.get("expected_role") or problem.get("limit") or what)
    failure = KINDS.get(name, errors.ServiceError)(what, got, expected)
    failure.status, failure.problem = status, problem or None
    raise failure
