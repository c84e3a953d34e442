"""Reads a multipart body as it arrives: small fields into memory, a large file to
where it belongs. Knows no adapter; the field names are the caller's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from tenora_engine.printable import brief
from tenora_platform.errors import BadRequestError

PARTS_MAX = 16
PART_HEADER_BYTES_MAX = 8192


class Sink(Protocol):
    """Takes a part's bytes; raises an ApiError when there are too many. `settle` is awaited after
    each piece of the body, for what must not be done on the event loop."""

    def write(self, data: bytes | memoryview) -> None: ...

    async def settle(self) -> None: ...


class MemorySink:
    """A small field. Raises BadRequestError beyond `bytes_max`."""

    def __init__(self, name: str, bytes_max: int) -> None:
        self.name = name
        self._bytes_max = bytes_max
        self.data = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self.data += data
        if len(self.data) > self._bytes_max:
            raise BadRequestError(
                f"{self.name} is larger than the maximum of {self._bytes_max} bytes.",
                param=self.name,
            )

    async def settle(self) -> None:
        return


@dataclass
class _Part:
    """The part being read: its headers so far, then where its data goes."""

    headers: dict[str, str] = field(default_factory=dict)
    header_name: bytearray = field(default_factory=bytearray)
    header_value: bytearray = field(default_factory=bytearray)
    sink: Sink | None = None


class _Reader:
    """Callbacks of the parser. Raises BadRequestError for unknown, repeated or unnamed parts."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._sinks = sinks
        self._part = _Part()
        self.seen: set[str] = set()
        self.complete = False

    def on_part_begin(self) -> None:
        self._part = _Part()
        if len(self.seen) >= PARTS_MAX:
            raise BadRequestError("The form has too many parts.")

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._part.header_name += data[start:end]
        self._check_headers()

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._part.header_value += data[start:end]
        self._check_headers()

    def _check_headers(self) -> None:
        size = len(self._part.header_name) + len(self._part.header_value)
        if size > PART_HEADER_BYTES_MAX or len(self._part.headers) > PARTS_MAX:
            raise BadRequestError("The headers of a form part are too large.")

    def on_header_end(self) -> None:
        name = self._part.header_name.decode("latin-1").lower()
        self._part.headers[name] = self._part.header_value.decode("latin-1")
        self._part.header_name.clear()
        self._part.header_value.clear()

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._part.headers.get("content-disposition", ""))
        name = options.get(b"name", b"").decode("utf-8", errors="replace")
        if name not in self._sinks:
            raise BadRequestError(
                f"Unknown form part {name[:64]!r}. Allowed parts: {', '.join(self._sinks)}.",
                param=name[:64] or None,
            )
        if name in self.seen:
            raise BadRequestError(f"The form contains {name} twice.", param=name)
        self.seen.add(name)
        self._part.sink = self._sinks[name]

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part.sink is not None:
            self._part.sink.write(memoryview(data)[start:end])

    def on_end(self) -> None:
        self.complete = True


async def read_multipart(
    content_type: str, chunks: AsyncIterator[bytes], sinks: Mapping[str, Sink]
) -> set[str]:
    """Feeds each named part into its sink; returns the names that came. Raises BadRequestError for
    what is not a complete multipart form, and what the sinks raise."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadRequestError(
            "The body must be multipart/form-data with the parts " + ", ".join(sinks) + "."
        )
    reader = _Reader(sinks)
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": reader.on_part_begin,
            "on_header_field": reader.on_header_field,
            "on_header_value": reader.on_header_value,
            "on_header_end": reader.on_header_end,
            "on_headers_finished": reader.on_headers_finished,
            "on_part_data": reader.on_part_data,
            "on_end": reader.on_end,
        },
    )
    try:
        async for chunk in chunks:
            if chunk:
                parser.write(chunk)
                for sink in sinks.values():
                    await sink.settle()
        parser.finalize()
    except FormParserError as error:
        raise BadRequestError(f"The multipart body is not valid: {brief(error)}") from error
    if not reader.complete:
        raise BadRequestError("The multipart body is incomplete.")
    return reader.seen
