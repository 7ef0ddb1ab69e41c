"""A client of a running service, for programs that do other things meanwhile. It needs httpx (`kvtide[async]`)."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Sequence, TypeVar, Union

import httpx

from . import _protocol, errors

if TYPE_CHECKING:
    from ._native import Overlap
    from ._types import BlockHashes, BlockMedia, Event, MediaObjects, TokenIds

T = TypeVar("T")


class AsyncClient:
    """Asks a running service without waiting for it. Any number of tasks of one event loop may use one.

    Args:
        url: Where it is, `http://HOST:PORT` or `https://HOST:PORT`.
        scope: Parts of a scope for every question, as for `kvtide.Client`.
        token: For a service with access tokens.
        timeout_s: Seconds for each request, connecting and waiting for a connection included.
        connections: Connections at the same time, at most.
        ssl_context: For `https`; by default httpx's authorities count.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8090",
        *,
        scope: Optional[_protocol.Scope] = None,
        token: Optional[str] = None,
        timeout_s: float = 5.0,
        connections: int = 64,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        if not timeout_s > 0:
            raise errors.InvalidArgument("timeout_s", str(timeout_s), "more than 0")
        _protocol.Address.of(url)
        self._scope = dict(scope or {})
        self._timeout_s = timeout_s
        verify: Union[ssl.SSLContext, bool] = ssl_context or True
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=_protocol.headers(token),
            limits=httpx.Limits(max_connections=connections),
            timeout=timeout_s,
            verify=verify,
            # What the environment says of proxies is not about a service next door.
            trust_env=False,
        )

    async def overlap(
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
        return await self._do(_protocol.overlap(scope, token_ids, block_hashes, block_mm_infos, mm_objects, wanted))

    async def overlap_batch(
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
        return await self._do(_protocol.overlap_batch(scope, token_ids, block_hashes, wanted))

    async def apply_events(
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
        return await self._do(_protocol.events(scope, events, worker_id, dp_rank, first_event_id))

    async def apply_dynamo_frame(self, frame: bytes, stream: str) -> dict[str, Any]:
        """Hands in a raw frame of Dynamo's event plane, of a configured stream."""
        return await self._do(_protocol.raw(_protocol.FRAME, frame, stream, None))

    async def apply_engine_batch(self, batch: bytes, stream: str, *, sequence: Optional[int] = None) -> dict[str, Any]:
        """Hands in a raw batch of vLLM or SGLang, of a configured stream."""
        return await self._do(_protocol.raw(_protocol.BATCH, batch, stream, sequence))

    async def register_worker(self, worker_id: int, dp_ranks: Sequence[int] = (0,)) -> int:
        """Makes ranks known from which nothing has come yet. Returns how many are new."""
        return await self._do(_protocol.register(self._scope, worker_id, dp_ranks))

    async def remove_worker(self, worker_id: int, dp_rank: Optional[int] = None) -> int:
        """Lets a worker go, in all scopes, with everything that it holds. Returns how many ranks these were."""
        return await self._do(_protocol.remove(worker_id, dp_rank))

    async def feedback(self, worker_id: int, dp_rank: int, *, predicted_tokens: int, cached_tokens: int) -> dict[str, Any]:
        """Tells what a request was predicted to have cached, and what the engine says that it had."""
        return await self._do(
            _protocol.feedback(self._scope, worker_id, dp_rank, predicted_tokens, cached_tokens)
        )

    async def workers(self) -> list[dict[str, Any]]:
        """Every rank, as `GET /v1/workers` has it."""
        return await self._do(_protocol.workers())

    async def scopes(self) -> list[dict[str, Any]]:
        """Every scope, as `GET /v1/scopes` has it."""
        return await self._do(_protocol.scopes())

    async def ready(self) -> bool:
        """Whether the service is ready. It is an error if it cannot be reached."""
        try:
            return await self._do(_protocol.ready())
        except errors.Busy:
            return False

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        _kind: Optional[type[BaseException]],
        _error: Optional[BaseException],
        _trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def _do(self, call: _protocol.Call[T]) -> T:
        try:
            status, reply = await asyncio.wait_for(self._exchange(call), self._timeout_s)
        except (asyncio.TimeoutError, httpx.TimeoutException) as error:
            raise errors.TimedOut("no answer", f"none in {self._timeout_s} s", "one in time") from error
        except httpx.TransportError as error:
            raise errors.ConnectionFailed("the service cannot be reached", type(error).__name__, "an answer") from error
        return _protocol.read(call, status, reply)

    async def _exchange(self, call: _protocol.Call[T]) -> tuple[int, bytes]:
        send = self._http.request(call.method, call.path, content=call.body, headers=call.headers)
        try:
            response = await send
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            # The service had closed a kept connection, which says nothing of this request.
            if not call.repeatable:
                raise
            response = await self._http.request(call.method, call.path, content=call.body, headers=call.headers)
        return response.status_code, response.content
