"""A running sequence takes over what another one has computed: blocks are shared through the prefix
tree, what is not full (or not cached) is copied, and no page is taken for it."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from tenora_engine.memory.prefix import num_blocks

if TYPE_CHECKING:
    from tenora_engine.memory.manager import MemoryManager
    from tenora_engine.sequence import Sequence


def fork(
    memory: MemoryManager, parent: Sequence, child: Sequence, block_tokens: int, now_s: float
) -> None:
    """`child` is to go on with the tokens of `parent`: two sequences of one request which run, all
    of whose tokens are computed and as many. It keeps as many pages of its own as the parent has
    that nobody shares, and gives the others back. Its tokens are the caller's to change, after
    this."""
    memory.cache_blocks(parent)
    shared = num_blocks(parent.prefix.end)
    own = child.block_table[num_blocks(child.prefix.end) :]
    count = len(parent.block_table) - shared
    kept = own[len(own) - count :]
    memory.tree.pin(parent.prefix.end, now_s)
    memory.tree.unpin(child.prefix.end, now_s)
    memory.pool.release(own[: len(own) - count])
    child.prefix.end, child.prefix.encoded = parent.prefix.end, b""
    child.block_table = parent.block_table[:shared] + kept
    pairs = zip(parent.token_ids, child.token_ids, strict=True)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) // block_tokens
    for block in range(max(shared, same), len(parent.block_table)):
        memory.operations.copy_kv(parent.block_table[block], child.block_table[block])
