"""Messages as msgpack, and how long their two ends wait for each other. Knows no socket."""

from __future__ import annotations

import msgspec

from tenora_engine.transport.messages import FromEngine, ToEngine

PING_S = 1.0
ANSWER_MAX_S = 3.0
"""An engine from which nothing came for so long is not ready until it is heard of again; with a
ping each second this shows at most four seconds after it stopped."""
SILENCE_MAX_S = 4.0
"""A client from which nothing came for so long is taken for dead, and what it runs is aborted: with
the server's own turns five seconds after it fell silent."""

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
