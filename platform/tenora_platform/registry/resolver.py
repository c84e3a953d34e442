"""From the `model` of a request to what will run: the hot-adapter cache in Redis with PostgreSQL
behind it. It knows names, versions and aliases of one tenant at a time; nothing of requests."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_engine.request import AdapterRef
from tenora_platform.db import Database
from tenora_platform.errors import NotFoundError
from tenora_platform.registry import repository
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.single_flight import SingleFlight

FOUND_TTL_S = 60
MISSING_TTL_S = 5  # short: a name that is guessed today may be made tomorrow
DEFAULT_ALIAS = "prod"

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

    @property
    def ref(self) -> AdapterRef:
        return AdapterRef(digest=self.digest, rank=self.rank)

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"


class _Target(msgspec.Struct, frozen=True):
    weight: int
    adapter: ResolvedAdapter


class _Cached(msgspec.Struct, frozen=True):
    """What a model text means while `epoch` is current. No targets: there is no such model."""

    epoch: str
    targets: tuple[_Target, ...]
    alias: str | None = None  # by which the targets were found


@dataclass(frozen=True)
class ResolvedModel:
    """What a request will run on. `adapter` None is the base model."""

    model: str  # as the client wrote it
    adapter: ResolvedAdapter | None
    alias: str | None = None  # that was meant, also by a bare name


class Resolver:
    """What it finds, Redis remembers for all processes; this one keeps nothing."""

    def __init__(self, db: Database, redis: Redis) -> None:
        self._db = db
        self._redis = redis
        self._flights: SingleFlight[_Cached] = SingleFlight()

    async def resolve(
        self, tenant_id: str, model: str, base_model: str, *, sticky: str
    ) -> ResolvedModel:
        """`sticky` picks among the targets of a weighted alias: the same text, the same target.
        Raises NotFoundError alike for what never was, is not ready, or is another tenant's."""
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
        if not cached.targets:
            raise model_not_found(model)
        return ResolvedModel(model, _pick(cached.targets, sticky), cached.alias)

    async def invalidate(self, tenant_id: str) -> None:
        """Forget the tenant's names, everywhere, now. Call it after the commit of any change."""
        try:
            await self._redis.incr(_epoch_key(tenant_id))
        except RedisError as error:
            _log.warning(
                "hot-adapter cache not invalidated", reason=str(error), stale_s_max=FOUND_TTL_S
            )

    async def _recall(self, tenant_id: str, model: str) -> tuple[str | None, _Cached | None]:
        """The epoch (None: Redis does not answer) and what is remembered, if still good."""
        try:
            raw_epoch, raw = await self._redis.mget(
                [_epoch_key(tenant_id), _cache_key(tenant_id, model)]
            )
        except RedisError as error:
            _log.warning("hot-adapter cache not reachable", reason=str(error))
            return None, None
        epoch = _bytes(raw_epoch).decode() if raw_epoch else "0"
        if raw is None:
            return epoch, None
        cached = msgspec.msgpack.decode(_bytes(raw), type=_Cached)
        return epoch, cached if cached.epoch == epoch else None

    async def _remember(
        self, tenant_id: str, model: str, epoch: str | None, cached: _Cached
    ) -> None:
        if epoch is None:
            return
        # The epoch was read before the rows: a change in between has raised it, and this entry is
        # void from the start.
        ttl = FOUND_TTL_S if cached.targets else MISSING_TTL_S
        try:
            await self._redis.set(
                _cache_key(tenant_id, model), msgspec.msgpack.encode(cached), ex=ttl
            )
        except RedisError as error:
            _log.warning("hot-adapter cache not written", reason=str(error))

    async def _find(
        self, tenant_id: str, model: str, match: re.Match[str], epoch: str | None
    ) -> _Cached:
        alias, targets = await self._look_up(tenant_id, match["name"], match["which"])
        cached = _Cached(epoch or "", targets, alias)
        await self._remember(tenant_id, model, epoch, cached)
        return cached

    async def _look_up(
        self, tenant_id: str, name: str, which: str | None
    ) -> tuple[str | None, tuple[_Target, ...]]:
        async with self._db.tenant_session(tenant_id) as session:
            adapter = await repository.adapter_by_name(session, tenant_id, name)
            if adapter is None:
                return None, ()
            versions = [
                row
                for row in await repository.versions_of(session, [adapter.id])
                if row.state in SERVABLE
            ]
            aliases = {
                row.alias: row.targets for row in await repository.aliases_of(session, [adapter.id])
            }
        return _targets(name, which, versions, aliases)


def _targets(
    name: str,
    which: str | None,
    versions: list[AdapterVersionRow],
    aliases: dict[str, list[dict[str, int]]],
) -> tuple[str | None, tuple[_Target, ...]]:
    """What `name[@which]` stands for, and the alias that says so. `versions` are servable, newest
    first."""
    by_number = {row.number: row for row in versions}
    alias: str | None = None
    if which is not None and which.isdecimal():
        weights = {int(which): 100}
    elif which is not None or DEFAULT_ALIAS in aliases:
        alias = which or DEFAULT_ALIAS
        targets = aliases.get(alias, [])
        weights = {target["version"]: target["weight"] for target in targets}
    else:
        newest = next((row.number for row in versions if row.state == "active"), None)
        weights = {} if newest is None else {newest: 100}
    # A target that has been revoked since takes no part; the others share its weight.
    return alias, tuple(
        _Target(weight, _resolved(name, by_number[number]))
        for number, weight in sorted(weights.items())
        if number in by_number
    )


def _resolved(name: str, row: AdapterVersionRow) -> ResolvedAdapter:
    assert row.digest is not None  # a constraint of the table: servable is complete
    assert row.rank is not None
    return ResolvedAdapter(row.id, name, row.number, row.digest, row.rank, row.adapter_id)


def _pick(targets: tuple[_Target, ...], sticky: str) -> ResolvedAdapter:
    if len(targets) == 1:
        return targets[0].adapter
    digest = hashlib.sha256(sticky.encode(errors="surrogatepass")).digest()
    point = int.from_bytes(digest[:8], "big") % sum(target.weight for target in targets)
    for target in targets:
        if point < target.weight:
            return target.adapter
        point -= target.weight
    raise AssertionError("the point lies below the sum of the weights")


def model_not_found(model: str) -> NotFoundError:
    """The one answer for any model that this tenant cannot use."""
    return NotFoundError(
        f"The model {model[:200]!r} does not exist or you do not have access to it.",
        param="model",
        code="model_not_found",
    )


def _bytes(answer: bytes | str) -> bytes:
    return answer if isinstance(answer, bytes) else answer.encode()


def _epoch_key(tenant_id: str) -> str:
    return f"tenora:models:{tenant_id}:epoch"


def _cache_key(tenant_id: str, model: str) -> str:
    return f"tenora:models:{tenant_id}:as:{model}"
