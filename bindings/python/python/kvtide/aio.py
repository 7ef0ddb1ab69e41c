"""A client of a running service, for programs that do other things meanwhile. It needs httpx (`kvtide[async]`)."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, TypeVar

import httpx

from . import _given, _protocol, errors

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
        timeout_s: Seconds for each request, looking its name up, connecting and waiting for a connection included.
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
        self._address = _protocol.Address.of(url)
        self._scope = _given.scope(scope)
        self._headers = _protocol.headers(token)
        self._timeout_s = _given.seconds("timeout_s", timeout_s)
        self._limits = httpx.Limits(max_connections=_given.whole("connections", connections, least=1))
        self._tls = _given.context(ssl_context) or httpx.create_ssl_context(trust_env=False)
        self._http = self._open()

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
        """Closes the connections, also those in use. Another request opens one again, in whichever event loop it runs."""
        http, self._http = self._http, self._open()
        await http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        _kind: Optional[type[BaseException]],
        _error: Optional[BaseException],
        _trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    def _open(self) -> httpx.AsyncClient:
        try:
            http = httpx.AsyncClient(
                base_url=self._address.url,
                headers=self._headers,
                limits=self._limits,
                timeout=self._timeout_s,
                verify=self._tls,
                # What the environment says of proxies is not about a service next door.
                trust_env=False,
            )
            # It decodes a name for each request, and not all can be.
            _ = http.base_url.host
        except (httpx.InvalidURL, UnicodeError):
            raise errors.InvalidArgument("url", "a host that httpx does not take", "another name of it") from None
        return http

    async def _do(self, call: _protocol.Call[T]) -> T:
        try:
            status, reply = await asyncio.wait_for(self._exchange(call), self._timeout_s)
        except (asyncio.TimeoutError, httpx.TimeoutException) as error:
            raise _protocol.took_too_long(self._timeout_s) from error
        except httpx.DecodingError as error:
            raise _protocol.bad_reply("one that is not encoded as it says", "one that is not encoded") from error
        # A `RuntimeError` is httpx's where a client was closed meanwhile, or is used in another event loop.
        except (httpx.HTTPError, RuntimeError) as error:
            raise _protocol.cannot_be_reached(error) from error
        return _protocol.read(call, status, reply)

    async def _exchange(self, call: _protocol.Call[T]) -> tuple[int, bytes]:
        http, steps = self._http, set[str]()

        async def note(step: str, _what: Mapping[str, Any]) -> None:
            steps.add(step)

        async def send() -> tuple[int, bytes]:
            response = await http.request(
                call.method, call.path, content=call.body, headers=call.headers, extensions={"trace": note}
            )
            return response.status_code, response.content

        try:
            return await send()
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            # The service had closed a kept connection meanwhile, which says nothing of this request.
            is_fresh = "connection.connect_tcp.started" in steps
            if is_fresh or not call.repeatable or "http11.receive_response_headers.complete" in steps:
                raise
            return await send()
