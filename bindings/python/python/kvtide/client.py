"""A client of a running service, for programs that wait."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Sequence, TypeVar

from . import _given, _protocol, errors
from ._connection import ENDS, TIMEOUTS, Connection

if TYPE_CHECKING:
    from ._native import Overlap
    from ._types import BlockHashes, BlockMedia, Event, MediaObjects, TokenIds

T = TypeVar("T")


class Client:
    """Asks a running service. Any number of threads may use one.

    Args:
        url: Where it is, `http://HOST:PORT` or `https://HOST:PORT`.
        scope: Parts of a scope (`model`, `revision`, `tokenizer`, `kv_dtype`, `layout`, `block_size`) for every question. They
            may be left out as long as one known scope fits; `None` means "not stated".
        token: For a service with access tokens.
        timeout_s: Seconds for each request, connecting included. How long a name takes to look up is up to the system.
        connections: Open connections that are kept for later requests.
        ssl_context: For `https`; by default the system's authorities count.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8090",
        *,
        scope: Optional[_protocol.Scope] = None,
        token: Optional[str] = None,
        timeout_s: float = 5.0,
        connections: int = 8,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._address = _protocol.Address.of(url)
        self._scope = _given.scope(scope)
        self._headers = _protocol.headers(token)
        self._timeout_s = _given.seconds("timeout_s", timeout_s)
        self._most = _given.whole("connections", connections)
        tls = _given.context(ssl_context)
        self._tls = (tls or ssl.create_default_context()) if self._address.scheme == "https" else None
        self._idle: list[Connection] = []
        self._generation = 0
        self._lock = threading.Lock()

    def overlap(
        self,
        token_ids: Optional[TokenIds] = None,
        *,
        block_hashes: Optional[BlockHashes] = None,
        adapter: Optional[str] = None,
        tenant: Optional[str] = None,
        block_mm_infos: Optional[BlockMedia] = None,
        mm_objects: Optional[MediaObjects] = None,
        ranks: Optional[Sequence[tuple[int, int]]] = None,
        min_reach_tokens: int = 0,
        limit: Optional[int] = None,
        freshness: bool = True,
    ) -> Overlap:
        """How much of a prompt every rank holds: as `kvtide.Indexer.overlap`."""
        scope = _protocol.salted(self._scope, adapter, tenant)
        wanted = _protocol.wanted(ranks, min_reach_tokens, limit, freshness)
        return self._do(_protocol.overlap(scope, token_ids, block_hashes, block_mm_infos, mm_objects, wanted))

    def overlap_batch(
        self,
        token_ids: Optional[Sequence[TokenIds]] = None,
        *,
        block_hashes: Optional[Sequence[BlockHashes]] = None,
        adapter: Optional[str] = None,
        tenant: Optional[str] = None,
        ranks: Optional[Sequence[tuple[int, int]]] = None,
        min_reach_tokens: int = 0,
        limit: Optional[int] = None,
        freshness: bool = True,
    ) -> list[Overlap]:
        """The same of several prompts, in their order and of one version."""
        scope = _protocol.salted(self._scope, adapter, tenant)
        wanted = _protocol.wanted(ranks, min_reach_tokens, limit, freshness)
        return self._do(_protocol.overlap_batch(scope, token_ids, block_hashes, wanted))

    def apply_events(
        self,
        events: Sequence[Event],
        worker_id: int,
        dp_rank: int = 0,
        *,
        first_event_id: Optional[int] = None,
        adapter: Optional[str] = None,
        tenant: Optional[str] = None,
    ) -> dict[str, Any]:
        """Hands in events of one rank (`POST /v1/events`); what they did, counted. The scope needs a model and a block size."""
        scope = _protocol.salted(self._scope, adapter, tenant)
        return self._do(_protocol.events(scope, events, worker_id, dp_rank, first_event_id))

    def apply_dynamo_frame(self, frame: bytes, stream: str) -> dict[str, Any]:
        """Hands in a raw frame of Dynamo's event plane, of a configured stream."""
        return self._do(_protocol.raw(_protocol.FRAME, frame, stream, None))

    def apply_engine_batch(self, batch: bytes, stream: str, *, sequence: Optional[int] = None) -> dict[str, Any]:
        """Hands in a raw batch of vLLM or SGLang, of a configured stream."""
        return self._do(_protocol.raw(_protocol.BATCH, batch, stream, sequence))

    def register_worker(self, worker_id: int, dp_ranks: Sequence[int] = (0,)) -> int:
        """Makes ranks known from which nothing has come yet. Returns how many are new."""
        return self._do(_protocol.register(self._scope, worker_id, dp_ranks))

    def remove_worker(self, worker_id: int, dp_rank: Optional[int] = None) -> int:
        """Lets a worker go, in all scopes, with everything that it holds. Returns how many ranks these were."""
        return self._do(_protocol.remove(worker_id, dp_rank))

    def feedback(self, worker_id: int, dp_rank: int, *, predicted_tokens: int, cached_tokens: int) -> dict[str, Any]:
        """Tells what a request was predicted to have cached, and what the engine says that it had."""
        return self._do(
            _protocol.feedback(self._scope, worker_id, dp_rank, predicted_tokens, cached_tokens)
        )

    def workers(self) -> list[dict[str, Any]]:
        """Every rank, as `GET /v1/workers` has it."""
        return self._do(_protocol.workers())

    def scopes(self) -> list[dict[str, Any]]:
        """Every scope, as `GET /v1/scopes` has it."""
        return self._do(_protocol.scopes())

    def ready(self) -> bool:
        """Whether the service is ready. It is an error if it cannot be reached."""
        try:
            return self._do(_protocol.ready())
        except errors.Busy:
            return False

    def close(self) -> None:
        """Closes the connections, and those in use when their requests end. Another request opens one again."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._generation += 1
        for connection in idle:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        _kind: Optional[type[BaseException]],
        _error: Optional[BaseException],
        _trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _do(self, call: _protocol.Call[T]) -> T:
        until = time.monotonic() + self._timeout_s
        connection, is_kept = self._connection()
        try:
            try:
                status, reply = connection.exchange(call, self._headers, until)
            except ENDS:
                # The service had closed it meanwhile, which says nothing of this request.
                if not is_kept or not call.repeatable or connection.has_answered:
                    raise
                status, reply = connection.exchange(call, self._headers, until)
        except TIMEOUTS as error:
            raise _protocol.took_too_long(self._timeout_s) from error
        # A `ValueError` is a number in the reply that is none.
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _protocol.cannot_be_reached(error) from error
        self._keep(connection)
        return _protocol.read(call, status, reply)

    def _connection(self) -> tuple[Connection, bool]:
        """One that is open, or one that is still to connect; and which of the two."""
        while True:
            with self._lock:
                generation = self._generation
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return Connection(self._address, self._tls, generation), False
            if not connection.has_ended():
                return connection, True
            connection.close()

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            is_open = connection.sock is not None and connection.generation == self._generation
            if is_open and len(self._idle) < self._most:
                self._idle.append(connection)
                return
        connection.close()
