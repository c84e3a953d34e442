"""Limits on how many rows there may be. Two that count at the same time would both find the last
place free, so who counts to make one more keeps others from counting until the transaction ends. It
knows no tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.locks import lock


async def refuse_more(
    session: AsyncSession,
    kind: str,
    owner: str,
    count: Select[Any],
    most: int,
    refusal: Callable[[], Exception],
) -> None:
    """Raise `refusal` where the `owner` has `most` of a `kind` by now; call it before anything else
    of the transaction is locked or written, for the audit log's lock comes last."""
    await lock(session, f"{kind}:{owner}")
    if int(await session.scalar(count) or 0) >= most:
        raise refusal()
