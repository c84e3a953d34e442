"""From the `model` of a request to what will run: the hot-adapter cache in Redis with PostgreSQL
behind it. It knows names, versions and aliases of one tenant at a time; nothing of requests."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_engine.request import AdapterRef
from tenora_engine.sealing import Seal
from tenora_platform.db import Database
from tenora_platform.epochs import epoch_of, new_epoch
from tenora_platform.errors import NotFoundError
from tenora_platform.registry import repository
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.serving import meant
from tenora_platform.registry.split import part_of
from tenora_platform.registry.tables import AdapterAliasRow, AdapterVersionRow
from tenora_platform.secret import ServerSecret
from tenora_platform.single_flight import SingleFlight

FOUND_TTL_S = 60
MISSING_TTL_S = 5  # short: a name that is guessed today may be made tomorrow
_SEALED = "model"

_MODEL = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,62})(@(?P<which>[A-Za-z0-9._-]{1,63}))?")
_log = structlog.get_logger(__name__)


class ResolvedAdapter(msgspec.Struct, frozen=True):
    """One servable version of the tenant's."""

    version_id: str
    name: str
    version: int
    digest: str
    rank: int
    adapter_id: str
    deprecated_s: int | None = None  # since when, Unix time
    has_chat_template: bool = False
    draft_layer: str | None = None  # the digest of one of its own

    @property
    def ref(self) -> AdapterRef:
        return AdapterRef(self.digest, self.rank, self.draft_layer)

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"


class ShadowTarget(msgspec.Struct, frozen=True):
    """On what else so many percent of the requests run, for comparison."""

    percent: int
    adapter: ResolvedAdapter


class _Meaning(msgspec.Struct, frozen=True):
    """What a model text stands for: `adapters`, of which `parts` has one index for each part of the
    callers; none for what does not exist."""

    adapters: tuple[ResolvedAdapter, ...] = ()
    parts: bytes = b""  # empty where there is one adapter
    alias: str | None = None  # by which they were found
    shadow: ShadowTarget | None = None


class _Cached(msgspec.Struct, frozen=True):
    """A meaning, while `epoch` is current."""

    epoch: bytes
    meaning: _Meaning


@dataclass(frozen=True)
class ResolvedModel:
    """What a request will run on. `adapter` None is the base model."""

    model: str  # as the client wrote it
    adapter: ResolvedAdapter | None
    alias: str | None = None  # that was meant, also by a bare name
    shadow: ShadowTarget | None = None


class Resolver:
    """What it finds, Redis remembers for all processes; this one keeps nothing."""

    def __init__(self, db: Database, redis: Redis, secret: ServerSecret, seal: Seal) -> None:
        self._db = db
        self._redis = redis
        self._seal = seal
        self._split_key = secret.key("alias-split")
        self._flights: SingleFlight[_Cached] = SingleFlight()

    async def resolve(
        self, tenant_id: str, model: str, base_model: str, *, sticky: str | None
    ) -> ResolvedModel:
        """`sticky` says who asks an alias of several versions: the same text, the same version, for
        as long as its share does not shrink; None: any. Raises NotFoundError alike for what never
        was, is not ready, or is another tenant's."""
        if model == base_model:
            return ResolvedModel(model, None)
        match = _MODEL.fullmatch(model)
        if match is None:
            raise model_not_found(model)
        epoch, cached = await self._recall(tenant_id, model)
        if cached is None:
            find = partial(self._find, tenant_id, model, match, epoch)
            if epoch is None:
                cached = await find()
            else:  # one looks it up for all that read the same epoch
                cached = await self._flights.run((tenant_id, model, epoch), find)
        meaning = cached.meaning
        if not meaning.adapters:
            raise model_not_found(model)
        adapter = self._pick(tenant_id, meaning, sticky)
        return ResolvedModel(model, adapter, meaning.alias, meaning.shadow)

    def _pick(self, tenant_id: str, meaning: _Meaning, sticky: str | None) -> ResolvedAdapter:
        if not meaning.parts:
            return meaning.adapters[0]
        if sticky is None:
            return meaning.adapters[secrets.choice(meaning.parts)]
        of_adapter, alias = meaning.adapters[0].adapter_id, meaning.alias or ""
        part = part_of(self._split_key, tenant_id, of_adapter, alias, sticky)
        return meaning.adapters[meaning.parts[part]]

    async def invalidate(self, tenant_id: str) -> None:
        """Forget the tenant's names, everywhere, now. Call it after the commit of any change."""
        try:
            await self._redis.set(_epoch_key(tenant_id), new_epoch())
        except RedisError as error:
            _log.warning(
                "cached adapters could not be invalidated",
                reason=str(error),
                stale_s_max=FOUND_TTL_S,
            )

    async def _recall(self, tenant_id: str, model: str) -> tuple[bytes | None, _Cached | None]:
        """The epoch (None: Redis does not answer) and what is remembered, if still good."""
        try:
            raw_epoch, raw = await self._redis.mget(
                [_epoch_key(tenant_id), _cache_key(tenant_id, model)]
            )
        except RedisError as error:
            _log.warning("adapter cache not reachable", reason=str(error))
            return None, None
        epoch = epoch_of(raw_epoch)
        cached = self._opened(_cache_key(tenant_id, model), raw)
        return epoch, cached if cached is not None and cached.epoch == epoch else None

    def _opened(self, key: str, raw: bytes | str | None) -> _Cached | None:
        """None too for what is not ours, which the next look-up replaces."""
        content = self._seal.open(_SEALED, key, raw)
        try:
            return None if content is None else msgspec.msgpack.decode(content, type=_Cached)
        except msgspec.MsgspecError:  # of another version
            return None

    async def _remember(
        self, tenant_id: str, model: str, epoch: bytes | None, cached: _Cached
    ) -> None:
        if epoch is None:
            return
        # The epoch was read before the rows: a change in between has raised it, and this entry is
        # void from the start.
        ttl = FOUND_TTL_S if cached.meaning.adapters else MISSING_TTL_S
        key = _cache_key(tenant_id, model)
        raw = self._seal.close(_SEALED, key, msgspec.msgpack.encode(cached), ttl)
        try:
            await self._redis.set(key, raw, ex=ttl)
        except RedisError as error:
            _log.warning("adapter cache could not be written", reason=str(error))

    async def _find(
        self, tenant_id: str, model: str, match: re.Match[str], epoch: bytes | None
    ) -> _Cached:
        meaning = await self._look_up(tenant_id, match["name"], match["which"])
        cached = _Cached(epoch or b"", meaning)
        await self._remember(tenant_id, model, epoch, cached)
        return cached

    async def _look_up(self, tenant_id: str, name: str, which: str | None) -> _Meaning:
        async with self._db.tenant_session(tenant_id) as session:
            adapter = await repository.adapter_by_name(session, tenant_id, name)
            if adapter is None:
                return _Meaning()
            versions = [
                row
                for row in await repository.versions_of(session, [adapter.id])
                if row.state in SERVABLE
            ]
            aliases = {row.alias: row for row in await repository.aliases_of(session, [adapter.id])}
        return _meaning(name, which, versions, aliases)


def _meaning(
    name: str,
    which: str | None,
    versions: Sequence[AdapterVersionRow],
    aliases: dict[str, AdapterAliasRow],
) -> _Meaning:
    """What `name[@which]` stands for. `versions` are servable, newest first."""
    adapters = {row.number: _resolved(name, row) for row in versions}
    newest = next((row.number for row in versions if row.state == "active"), None)
    found = meant(which, adapters, newest, {alias: row.parts for alias, row in aliases.items()})
    numbers = sorted(set(found.parts))
    shadow = aliases[found.alias].shadow if found.alias is not None else None
    shadowing = shadow and adapters.get(shadow["version"])
    return _Meaning(
        adapters=tuple(adapters[number] for number in numbers),
        parts=bytes(map(numbers.index, found.parts)) if len(numbers) > 1 else b"",
        alias=found.alias,
        shadow=ShadowTarget(shadow["percent"], shadowing) if shadow and shadowing else None,
    )


def _resolved(name: str, row: AdapterVersionRow) -> ResolvedAdapter:
    assert row.digest is not None  # a constraint of the table: servable is complete
    assert row.rank is not None
    since = row.deprecated_at if row.state == "deprecated" else None
    return ResolvedAdapter(
        version_id=row.id,
        name=name,
        version=row.number,
        digest=row.digest,
        rank=row.rank,
        adapter_id=row.adapter_id,
        deprecated_s=None if since is None else int(since.timestamp()),
        has_chat_template=row.has_chat_template,
        draft_layer=row.draft_layer_digest,
    )


def model_not_found(model: str) -> NotFoundError:
    """The one answer for any model that this tenant cannot use."""
    return NotFoundError(
        f"The model {model[:200]!r} does not exist or you do not have access to it.",
        param="model",
        code="model_not_found",
    )


def _epoch_key(tenant_id: str) -> str:
    return f"tenora:models:{tenant_id}:epoch"


def _cache_key(tenant_id: str, model: str) -> str:
    return f"tenora:models:{tenant_id}:means:{model}"
