"""What goes wrong: one exception a kind, all of them `KvtideError`, each with what was got and what was expected.

The same kinds come from an index in process and from a service. None names tokens, hashes or tenants.
"""

from __future__ import annotations

from typing import Any, Optional


class KvtideError(Exception):
    """Something went wrong.

    Attributes:
        what: In a sentence.
        got: What was got.
        expected: What was expected.
        status: The HTTP status of a service's answer, or `None`.
        problem: The problem document (RFC 9457) of a service, or `None`.
    """

    status: Optional[int] = None
    problem: Optional[dict[str, Any]] = None

    def __init__(self, what: str, got: str = "", expected: str = "") -> None:
        super().__init__(what, got, expected)
        self.what = what
        self.got = got
        self.expected = expected

    def __str__(self) -> str:
        if self.problem is not None:
            # A service's own sentence has both sides in it.
            return self.what
        got = f"got {self.got}" if self.got else ""
        expected = f"expected {self.expected}" if self.expected else ""
        rest = ", ".join(part for part in (expected, got) if part)
        return f"{self.what}: {rest}" if rest else self.what


class InvalidArgument(KvtideError, ValueError):
    """A value that cannot be."""


class WrongType(KvtideError, TypeError):
    """A value of another type."""


class Undecodable(KvtideError, ValueError):
    """A frame or batch does not decode. Nothing of it is applied; the ranks that it may have been about have a hole."""


class UnknownScope(KvtideError, LookupError):
    """No known scope has these parts."""


class SeveralScopes(KvtideError, LookupError):
    """Several scopes fit what was said of one."""


class TooLarge(KvtideError, ValueError):
    """More than a limit allows."""


class TooManyRanks(KvtideError):
    """As many ranks or scopes are known as may be."""


class Conflict(KvtideError):
    """It contradicts what was said before."""


class Refused(KvtideError):
    """Another source feeds the rank, or two publishers claim it."""


class ServiceError(KvtideError):
    """A service refused a request, for a reason that has no exception of its own, or gave no answer."""


class Unauthorized(ServiceError):
    """No token, or one that is not known."""


class Forbidden(ServiceError):
    """The token lacks the role, or does not show those blocks."""


class NotFound(ServiceError):
    """No such stream, worker or route."""


class Busy(ServiceError):
    """As many requests wait as may, or the service is not ready yet: ask again."""


class ConnectionFailed(ServiceError, ConnectionError):
    """The service cannot be reached, or went away before it had answered."""


class TimedOut(ServiceError, TimeoutError):
    """No answer within the time that was given."""


class BadReply(ServiceError):
    """The reply is none that the service gives: something else answers at this address."""
