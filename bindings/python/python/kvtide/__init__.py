"""Tells a request router, per prompt and inference worker, how much of the prompt's KV cache each worker holds, and how fresh
that knowledge is.

- `Indexer`: an index in process, fed with Dynamo's frames, engines' batches or dictionaries.
- `Client`, `AsyncClient`: the same questions to a running service.
- `hash_blocks`, `PromptHasher`: block hashes as Dynamo's router computes them.
- `kvtide.compat.dynamo`: the names of Dynamo's own Python package.

Unknown is not zero: where nothing is known of a rank, its `reach` is `None`.
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING

from . import _native, errors
from ._native import (
    Applied,
    Freshness,
    FreshnessLimits,
    Indexer,
    Overlap,
    PromptHasher,
    RankOverlap,
    Reach,
    hash_blocks,
    sequence_hashes,
)
from ._types import Event, Knowledge
from .client import Client
from .errors import KvtideError

if TYPE_CHECKING:
    from .aio import AsyncClient as AsyncClient

__version__ = "0.1.0"

__all__ = [
    "Applied",
    "Client",
    "Event",
    "Freshness",
    "FreshnessLimits",
    "Indexer",
    "Knowledge",
    "KvtideError",
    "Overlap",
    "PromptHasher",
    "RankOverlap",
    "Reach",
    "errors",
    "hash_blocks",
    "sequence_hashes",
]

# A fork waits until no other thread is inside kvtide: the child would have its locks, and nobody who unlocks them.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(
        before=_native.before_fork,
        after_in_parent=_native.after_fork,
        after_in_child=_native.after_fork,
    )


def __getattr__(name: str) -> object:
    # Only who uses it needs what it is made with, and it is in no list of all names.
    if name == "AsyncClient":
        try:
            from .aio import AsyncClient
        except ImportError as error:
            raise AttributeError("kvtide.AsyncClient needs httpx: pip install 'kvtide[async]'") from error
        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
