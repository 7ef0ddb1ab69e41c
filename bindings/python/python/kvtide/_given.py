"""What callers hand in, as JSON can have it. Clients take what an index in process takes, and refuse alike what it refuses.

No text that was given is repeated: it may be a secret.
"""

from __future__ import annotations

import numbers
import operator
import re
import ssl
import threading
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, cast

from . import _native, errors

if TYPE_CHECKING:
    from ._types import BlockHashes, TokenIds

U32 = 2**32 - 1
U64 = 2**64 - 1

#: As long as a socket can wait: it counts milliseconds in 31 bits.
LONGEST_S = min(threading.TIMEOUT_MAX, (2**31 - 1) // 1000)

#: Items of a list: a body of 64 MiB, the usual limit, has no room for more. What has a length need not have it in memory.
MOST = 1 << 25

_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def wrong_type(what: str, given: object, expected: str) -> errors.WrongType:
    return errors.WrongType(what, type(given).__name__, expected)


def whole(what: str, given: Any, most: int = U64, least: int = 0) -> int:
    """An integer, of any type that is one."""
    try:
        number = int(operator.index(given))
    except TypeError:
        raise wrong_type(what, given, "an integer") from None
    if least <= number <= most:
        return number
    got = str(number) if number.bit_length() <= 128 else "an integer of more than 128 bits"
    raise errors.InvalidArgument(what, got, f"an integer of {least} to {most}")


def seconds(what: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise wrong_type(what, given, "a number of seconds")
    try:
        number = float(given)
    except OverflowError:
        number = float("inf")
    if 0 < number <= LONGEST_S:
        return number
    raise errors.InvalidArgument(what, str(number), f"more than 0 and at most {LONGEST_S}")


def flag(what: str, given: Any) -> bool:
    # numpy calls its own `bool` or `bool_`.
    if type(given).__name__ not in ("bool", "bool_"):
        raise wrong_type(what, given, "True or False")
    return bool(given)


def text(what: str, given: Any) -> str:
    if not isinstance(given, str):
        raise wrong_type(what, given, "a text")
    if _HALF_A_PAIR.search(given):
        raise errors.InvalidArgument(what, "a text with half of a surrogate pair", "a text of whole characters")
    return str(given)


def payload(what: str, given: Any) -> bytes:
    if not isinstance(given, (bytes, bytearray, memoryview)):
        raise wrong_type(what, given, "bytes")
    return bytes(cast("bytes", given))


def token(given: Any) -> str:
    """An access token, which can stand in a header."""
    if not isinstance(given, str):
        raise wrong_type("token", given, "a text")
    if not re.fullmatch("[!-~]+", given):
        got = "a text with other characters" if given else "an empty text"
        raise errors.InvalidArgument("token", got, "visible ASCII characters, without spaces")
    return given


def context(given: Any) -> Optional[ssl.SSLContext]:
    if given is None or isinstance(given, ssl.SSLContext):
        return given
    raise wrong_type("ssl_context", given, "an ssl.SSLContext")


def items(what: str, given: Any) -> list[Any]:
    """What is in a list, a tuple, an array or another sequence. A text, bytes or a mapping is none."""
    expected = "a list, a tuple, an array or another sequence"
    if issubclass(type(given), (str, bytes, bytearray, Mapping)):
        raise wrong_type(what, given, expected)
    try:
        if len(given) <= MOST:
            return list(given)
    except TypeError:
        raise wrong_type(what, given, expected) from None
    except OverflowError:
        # More than Python itself can count.
        pass
    raise errors.TooLarge(what, "more items", f"at most {MOST}")


def members(what: str, given: Any, expected: str) -> Mapping[Any, Any]:
    if not issubclass(type(given), Mapping):
        raise wrong_type(what, given, expected)
    mapping: Mapping[Any, Any] = given
    return mapping


def member(what: str, given: Any, name: str) -> Any:
    """One of a mapping that has to be there."""
    expected = f"a dictionary with {name}"
    mapping = members(what, given, expected)
    if name not in mapping:
        raise errors.InvalidArgument(what, f"a dictionary without {name}", expected)
    return mapping[name]


def tokens(given: TokenIds) -> list[int]:
    return memoryview(_native.token_bytes(given)).cast("I").tolist()


def hashes(what: str, given: BlockHashes) -> list[int]:
    try:
        return _native.hash_list(given)
    except errors.KvtideError as error:
        raise type(error)(what, error.got, error.expected) from None


def hash64(what: str, given: Any) -> int:
    return hashes(what, [given])[0]


def ranks(given: Any) -> list[list[int]]:
    """Pairs of worker and rank."""
    pairs = [items("ranks", pair) for pair in items("ranks", given)]
    for pair in pairs:
        if len(pair) != 2:
            raise errors.InvalidArgument("ranks", f"{len(pair)} numbers", "pairs of a worker and a rank")
    return [[whole("ranks: worker_id", worker), whole("ranks: dp_rank", rank, U32)] for worker, rank in pairs]


def scope(given: Any) -> dict[str, Any]:
    """Parts of a scope. `None` is a value: not stated."""
    if given is None:
        return {}
    names = ("model", "revision", "tokenizer", "kv_dtype", "layout", "block_size", "adapter", "tenant")
    parts: dict[str, Any] = {}
    for name, part in members("scope", given, "a dictionary of a scope's parts").items():
        if name not in names:
            raise errors.InvalidArgument("scope", "another part", f"no parts but {', '.join(names)}")
        if part is None:
            parts[name] = None
        elif name == "block_size":
            parts[name] = whole("scope: block_size", part, U32, least=1)
        else:
            parts[name] = text(f"scope: {name}", part)
    return parts


def event(what: str, given: Any) -> dict[str, Any]:
    """One event. Which members go together, and what they may be, the service says."""
    said: dict[str, Any] = {}
    for name, value in members(what, given, "a dictionary with a type").items():
        if name not in _EVENT:
            raise errors.InvalidArgument(what, "another member", f"no members but {', '.join(_EVENT)}")
        said[name] = None if value is None else _EVENT[name](f"{what}: {name}", value)
    return said


def _blocks(what: str, given: Any) -> list[dict[str, int]]:
    names, expected = ("sequence_hash", "block_hash"), "a dictionary with sequence_hash and block_hash"
    blocks = [members(what, block, expected) for block in items(what, given)]
    for block in blocks:
        if set(block) != set(names):
            raise errors.InvalidArgument(what, "a dictionary with other members", expected)
    return [{name: hash64(f"{what}: {name}", block[name]) for name in names} for block in blocks]


_EVENT: dict[str, Callable[[str, Any], Any]] = {
    "type": text,
    "tier": text,
    "group": whole,
    "parent": hash64,
    "blocks": _blocks,
    "sequence_hashes": hashes,
    "token_ids": lambda _what, given: tokens(given),
}


def block_media(given: Any) -> list[Optional[dict[str, Any]]]:
    """For each block `None` or its media, of which the hashes alone count."""

    def of_block(block: Any) -> dict[str, Any]:
        objects = items("mm_objects", member("block_mm_infos", block, "mm_objects"))
        return {"mm_objects": [{"mm_hash": _media_hash(one)} for one in objects]}

    return [None if block is None else of_block(block) for block in items("block_mm_infos", given)]


def media_objects(given: Any) -> list[dict[str, Any]]:
    """The tokens that each medium stands for."""

    def pair(ends: Any) -> list[int]:
        return [whole("offsets", end) for end in items("offsets", ends)]

    objects = items("mm_objects", given)
    return [
        {
            "mm_hash": _media_hash(one),
            "offsets": [pair(ends) for ends in items("offsets", member("mm_objects", one, "offsets"))],
        }
        for one in objects
    ]


def _media_hash(given: Any) -> int:
    return hash64("mm_hash", member("mm_objects", given, "mm_hash"))
