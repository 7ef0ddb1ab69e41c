"""The names of Dynamo's own Python package (`dynamo._core`, ai-dynamo-runtime 1.6.1), over kvtide.

Who uses that module changes an import:

    from kvtide.compat.dynamo import OverlapScores, RadixTree, compute_block_hash_for_seq

What is different is in docs/python.md: a tree credits no block that a worker does not hold, a block whose parent is not known yet
waits for it, and the removal of one that is not held is no error.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from .. import _native
from .._native import OverlapScores, RadixTree

__all__ = ["OverlapScores", "RadixTree", "compute_block_hash_for_seq"]


def compute_block_hash_for_seq(
    tokens: List[int],
    kv_block_size: int,
    block_mm_infos: Optional[List[Optional[Dict[str, Any]]]] = None,
    lora_name: Optional[str] = None,
    is_eagle: Optional[bool] = None,
    cache_namespace: Optional[str] = None,
) -> List[int]:
    """The hashes of a sequence's complete blocks.

    Args:
        tokens: Token ids, each of 0 to 2^32 - 1.
        kv_block_size: Tokens a block.
        block_mm_infos: For each block `None`, or `{"mm_objects": [{"mm_hash": 42}]}`.
        lora_name: The adapter.
        is_eagle: Blocks are hashed with the token behind them.
        cache_namespace: The tenant.

    Returns:
        One hash of 64 bits a block.
    """
    return _native.hash_blocks(
        tokens,
        kv_block_size,
        adapter=lora_name,
        tenant=cache_namespace,
        eagle=bool(is_eagle),
        block_mm_infos=block_mm_infos,
    )
