"""A connection of which no step outlasts the request that it is for.

`http.client` waits for each piece anew, so that headers, sizes of chunks and trailers that come drop by drop would never end.
"""

from __future__ import annotations

import http.client
import io
import selectors
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from ._protocol import Address, Call

#: Until Python 3.10 these are two.
TIMEOUTS = (TimeoutError, socket.timeout)
#: The other side has closed it.
ENDS = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)

# `select` takes no descriptor of 1024 and more. `poll`, where it is, does, and needs none of its own.
_Selector: Any = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Connection(http.client.HTTPConnection):
    """Connects when it is first used.

    Attributes:
        generation: Counts how often its client had been closed.
        has_answered: Whether the headers of the latest request's reply have come.
    """

    def __init__(self, address: Address, tls: Optional[ssl.SSLContext], generation: int) -> None:
        super().__init__(address.host, address.port)
        self.generation = generation
        self.has_answered = False
        self._prefix = address.prefix
        self._tls = tls
        self._deadline = _Deadline()

    def exchange(self, call: Call[Any], headers: dict[str, str], until: float) -> tuple[int, bytes]:
        """Sends a request and reads its reply, by `until` on the monotonic clock. Whatever goes wrong closes it."""
        self._deadline.until, self.has_answered = until, False
        reply = bytearray()
        try:
            self.request(call.method, self._prefix + call.path, call.body, {**headers, **call.headers})
            # It closes the response: the connection takes no other request before.
            with self.getresponse() as response:
                self.has_answered = True
                while piece := response.read1(1 << 16):
                    reply += piece
                if response.length:
                    raise http.client.IncompleteRead(b"", response.length)
            return response.status, bytes(reply)
        except BaseException:
            self.close()
            raise

    def connect(self) -> None:
        sock = self._reach()
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock.settimeout(self._deadline.left())
                sock = self._tls.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise
        self.sock = _Socket(sock, self._deadline)

    def _reach(self) -> socket.socket:
        """The first of its addresses that answers, each within its share of the time: a silent one does not cost all of it."""
        places = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        while True:
            family, kind, protocol, _name, place = places.pop(0)
            try:
                sock = socket.socket(family, kind, protocol)
                try:
                    sock.settimeout(self._deadline.left() / (len(places) + 1))
                    sock.connect(place)
                    return sock
                except BaseException:
                    sock.close()
                    raise
            except OSError:
                if not places:
                    raise

    def has_ended(self) -> bool:
        """Whether one that waits for its next request was closed. Nothing is expected on it: what can be read is its end."""
        try:
            with _Selector() as selector:
                selector.register(self.sock.fileno(), selectors.EVENT_READ)
                return bool(selector.select(0))
        except (OSError, ValueError):
            return True
        except BaseException:
            self.close()
            raise


class _Deadline:
    """When the request ends that a connection is used for."""

    until = 0.0

    def left(self) -> float:
        """Seconds, more than 0."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Socket:
    """What `http.client` asks of a socket."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(self._deadline.left())
            rest = rest[self._sock.send(rest) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._sock, self._deadline))

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        # What was made of it can still be read.
        self._sock.close()


class _Reader(io.RawIOBase):
    """What comes on a socket."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> Optional[int]:
        self._sock.settimeout(self._deadline.left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
