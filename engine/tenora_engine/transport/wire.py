"""Messages as msgpack, and how long their two ends wait for each other. Knows no socket."""

from __future__ import annotations

import msgspec

from tenora_engine.transport.messages import FromEngine, ToEngine

PING_S = 1.0
ANSWER_MAX_S = 3.0
"""An engine from which nothing came for so long is not ready until it is heard of again; with a
ping each second this shows at most four seconds after it stopped."""
CLIENT_LEASE_S = 30.0
"""A client from which nothing came for so long, not even from the thread of its heartbeat, is taken
for dead, and what it runs is aborted. One whose connection has ended is dead at once."""

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
