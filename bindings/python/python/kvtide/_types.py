"""What may be handed in, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Mapping, Optional, Protocol, Sequence, TypedDict, Union

if TYPE_CHECKING:
    from ._native import PromptHasher

    #: Token ids, each of 0 to 2^32 - 1. A numpy array of `uint32` without gaps is not copied.
    TokenIds = Union[Sequence[int], "Array"]
    #: A hash of 64 bits: an integer (a negative one by its bit pattern), up to 16 hexadecimal digits, or at least 8 bytes.
    Hash = Union[int, str, bytes]
    #: Block hashes, which contain adapter, tenant and media.
    BlockHashes = Union[Sequence[Hash], "Array", PromptHasher]


class Array(Protocol):
    """A numpy array, of integers and one dimension. Who has no numpy need not install it for its types."""

    @property
    def dtype(self) -> Any: ...
    @property
    def ndim(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


#: How to read a rank's numbers.
Knowledge = Literal["unknown", "complete", "partial", "recovering", "gap"]

#: For each block `None`, or `{"mm_objects": [{"mm_hash": 42}]}`.
BlockMedia = Sequence[Optional[Mapping[str, Any]]]

#: `{"mm_hash": 42, "offsets": [[5, 810]]}`: the tokens that each stands for, from the prompt's start.
MediaObjects = Sequence[Mapping[str, Any]]


class Event(TypedDict, total=False):
    """One event, in the form of `POST /v1/events`."""

    type: Literal["stored", "removed", "cleared"]
    tier: Literal["gpu", "host", "disk", "external"]
    group: int
    parent: "Optional[Hash]"
    blocks: "Sequence[Mapping[str, Hash]]"
    sequence_hashes: "Sequence[Hash]"
    token_ids: "TokenIds"
