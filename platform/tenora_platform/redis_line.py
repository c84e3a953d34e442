"""A Redis client whose commands all share one connection: those of one turn of the event loop go
out in one write, answers come back in their order. It knows the protocol, not what is kept."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
import structlog
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import Connection
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

from tenora_engine.sealing import is_damage

WAITING_MAX = 20_000
"""Commands that wait for their answers; more are refused, as if there were no connection."""
RENEWED_S = 1.0
"""How old a connection is at least before it is given up for one to another server."""

_NAMED: dict[str, type[ConnectionError] | type[ResponseError]] = {
    "LOADING": BusyLoadingError,
    "NOSCRIPT": NoScriptError,
    "READONLY": ReadOnlyError,
}
_EMPTY_RESPONSE = "EMPTY_RESPONSE"  # redis-py's own options, which are not a callback's
_log = structlog.get_logger(__name__)


class LineRedis(Redis):
    """As redis-py's client, but for `execute_command`: a pool gives each command a connection of
    its own, a hundred at most, and takes 55 us of a processor for it where this takes 8
    (docs/decisions/0024). EVAL is sent as EVALSHA. Not for commands that block, nor for what is
    bound to a connection; `pipeline` and `pubsub` have theirs from the pool.

    What a command finds damaged (`is_damage`) is removed, and the command is sent again: all that
    we keep in Redis can be missing. `removed` is told how many keys went."""

    _line: _Line | None = None
    removed: Callable[[int], object] = staticmethod(lambda count: None)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Raises what redis-py raises. As there, what was under way when the connection broke is
        sent again on another, and what has taken too long is not."""
        name = args[0]
        try:
            try:
                answer = await self._answer_to(args)
            except ConnectionError:
                answer = await self._answer_to(args)
        except ReadOnlyError:
            if self._line is not None:
                self._line.renew()
            raise
        except ResponseError as error:
            if _EMPTY_RESPONSE in options:
                return options[_EMPTY_RESPONSE]
            if not is_damage(error):
                raise
            await self.remove_damaged(args, error)
            answer = await self._answer_to(args)
        callback = self.response_callbacks.get(name)
        if callback is None:
            return answer
        for internal in (_EMPTY_RESPONSE, "keys"):
            options.pop(internal, None)
        return callback(answer, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        return _MendingPipeline(self, transaction, shard_hint)

    async def remove_damaged(self, args: Sequence[Any], error: ResponseError) -> None:
        """The keys of a command, which it could not work on."""
        keys = _keys_of(args)
        named = [
            key if isinstance(key, str) else bytes(key).decode(errors="replace") for key in keys
        ]
        _log.warning("keys in Redis held what is not ours; removed", keys=named, reason=str(error))
        if keys:
            await self._answer_to(("UNLINK", *keys))
        self.removed(len(keys))

    async def _answer_to(self, args: Sequence[Any]) -> Any:
        if self._line is None:
            self._line = _Line(self)
        if args[0] != "EVAL":
            return await self._line.call(args)
        script = args[1]
        try:
            return await self._line.call(("EVALSHA", _sha1(script), *args[2:]))
        except NoScriptError:  # it knows the script by its hash from here on, until it restarts
            return await self._line.call(args)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        if self._line is not None:
            await self._line.close()
        await super().aclose(close_connection_pool)


class _MendingPipeline(Pipeline):
    """As redis-py's, but for damaged keys: each of its commands is then sent again by itself."""

    def __init__(self, client: LineRedis, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Raises what redis-py raises."""
        commands = list(self.command_stack)
        answers = await super().execute(raise_on_error=False)
        for at, answer in enumerate(answers):
            if isinstance(answer, ResponseError) and is_damage(answer):
                args, options = commands[at]
                await self._client.remove_damaged(args, answer)
                more = {name: each for name, each in options.items() if name != "keys"}
                answers[at] = await self._client.execute_command(*args, **more)
        if raise_on_error:
            self.raise_first_error(commands, answers)
        return answers


def _keys_of(args: Sequence[Any]) -> list[Any]:
    if args[0] in ("EVAL", "EVALSHA"):
        return list(args[3 : 3 + int(args[2])])
    return list(args[1:2])


_HASHES: dict[str, str] = {}  # of scripts, which are few and constant


def _sha1(script: str) -> str:
    known = _HASHES.get(script)
    if known is None:
        known = _HASHES[script] = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
    return known


class _Line(asyncio.Protocol):
    """The connection, made by redis-py (TLS, AUTH, database, protocol), then read and written here.
    One that gives no answer for the client's `socket_timeout` is closed."""

    def __init__(self, redis: LineRedis) -> None:
        self._pool = redis.connection_pool
        self._timeout_s: float = self._pool.connection_kwargs.get("socket_timeout") or 5.0
        self._connection: Connection | None = None
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reader = hiredis.Reader()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None
        self._opened_s = 0.0

    async def call(self, args: Sequence[Any]) -> Any:
        """The answer to one command."""
        if self._transport is None:
            await self._connect()
        if len(self._waiting) >= WAITING_MAX:
            raise ConnectionError(f"{WAITING_MAX} commands are already waiting for Redis")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        packed = hiredis.pack_command((*str(args[0]).split(), *args[1:]))
        if not self._unsent:
            loop.call_soon(self._send)
        self._unsent.append(packed)
        self._waiting.append((future, time.monotonic()))
        if self._watch is None:
            self._watch = loop.call_later(self._timeout_s, self._look)
        return await future

    def renew(self) -> None:
        """What comes next goes out on another connection: this one's server is a replica by now,
        and the address may lead to the new primary. Who waits is sent again: nothing of it was
        written."""
        if time.monotonic() - self._opened_s > RENEWED_S:
            self._lose(ConnectionError("the server of this connection is a replica"))

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        self._lose(ConnectionError("this client has been closed"))
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _connect(self) -> None:
        """One connects for all who wait."""
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._open())
        await asyncio.shield(self._connecting)

    async def _open(self) -> None:
        connection = cast(Connection, self._pool.make_connection())  # type: ignore[no-untyped-call]
        await connection.connect()  # type: ignore[no-untyped-call]
        writer = connection._writer
        assert writer is not None
        self._connection, self._reader = connection, hiredis.Reader()
        self._opened_s = time.monotonic()
        self._transport = cast(asyncio.Transport, writer.transport)
        self._transport.set_protocol(self)

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and unsent:
            self._transport.write(b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                self._answer(answer)
        except (hiredis.ProtocolError, IndexError) as error:
            self._lose(ConnectionError(f"Redis gave an unexpected answer: {error}"))

    def _answer(self, answer: Any) -> None:
        if isinstance(answer, hiredis.PushNotification):
            return  # of the server's own accord
        future, _ = self._waiting.popleft()
        if future.done():  # its caller was cancelled
            return
        if isinstance(answer, hiredis.ReplyError):
            future.set_exception(_named(str(answer)))
        else:
            future.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(ConnectionError(f"the connection to Redis was lost: {exc or 'closed'}"))

    def _lose(self, error: Exception) -> None:
        """All that wait are told, and the next command connects anew."""
        connection, self._connection, self._transport = self._connection, None, None
        waiting, self._waiting, self._unsent = self._waiting, deque(), []
        for future, _ in waiting:
            if not future.done():
                future.set_exception(error)
        if connection is not None and connection._writer is not None:
            connection._writer.transport.set_protocol(asyncio.Protocol())
            connection._close()  # type: ignore[no-untyped-call]

    def _look(self) -> None:
        """Whether the oldest command has waited too long."""
        self._watch = None
        if not self._waiting:
            return
        left_s = self._waiting[0][1] + self._timeout_s - time.monotonic()
        if left_s <= 0:
            self._lose(TimeoutError(f"Timeout: no answer from Redis in {self._timeout_s:g} s"))
            return
        self._watch = asyncio.get_running_loop().call_later(left_s, self._look)


def _named(message: str) -> Exception:
    kind, _, _ = message.partition(" ")
    return _NAMED.get(kind, ResponseError)(message)
