"""Answers of any length, a line of JSON for each row."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from starlette.responses import StreamingResponse


async def ndjson(
    lines: AsyncIterator[bytes], *, headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """What `lines` yields, as it comes. Its first part is read before the answer begins, so that
    what the database refuses is an error with its status, and no answer that breaks off."""
    first = await anext(lines, b"")

    async def whole() -> AsyncIterator[bytes]:
        yield first
        async for more in lines:
            yield more

    return StreamingResponse(whole(), media_type="application/x-ndjson", headers=headers)
