"""Fills a database that nothing runs on with the books of many tenants: tenants, keys and prices by
their services, the rest by COPY with the seals, chains and sums that the services would have
written. For `tenora bench books`."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import psycopg
from obstore.store import ObjectStore
from sqlalchemy import func, select

from tenora_bench.growth.size import LARGE, Asker, Filled, Size
from tenora_bench.money.records import month_before
from tenora_bench.server import PRICES
from tenora_engine.client import EngineClient
from tenora_engine.private_folders import make_private
from tenora_platform.audit.service import AuditLog
from tenora_platform.billing.price_lists import METERS, PriceList
from tenora_platform.billing.prices import add_price_version
from tenora_platform.billing.rating import Billable, Rating, priced_by
from tenora_platform.billing.routes import scope_of, terms_of
from tenora_platform.billing.schemas import PriceVersionCreate, shown
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.cli.growth_chains import Charged, Connection, Ledgers, lengthen_logs
from tenora_platform.cli.growth_events import COPY, Kind, Made, Maker, Payer, days_of, made_days
from tenora_platform.cli.money_fill import AT_ONCE, MODEL
from tenora_platform.db import Database, libpq_url
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.poster import BATCH, Poster
from tenora_platform.ledger.service import Ledger
from tenora_platform.object_store import open_object_store
from tenora_platform.registry.store_identity import StoreIdentity
from tenora_platform.secret import ServerSecret, load_secret
from tenora_platform.settings import Settings
from tenora_platform.task_groups import task_group
from tenora_platform.tenants.key_service import ApiKeyService
from tenora_platform.tenants.schemas import ApiKeyCreate, TenantCreate
from tenora_platform.tenants.service import TenantService
from tenora_platform.usage.seal import Seals
from tenora_platform.usage.series import Series, place
from tenora_platform.usage.storage import StorageDays
from tenora_platform.usage.sums import AMOUNTS, Key, Move, Sums, moves

LOG_ENTRIES = 70
"""Of a tenant's audit log, beyond those of its making; the large tenant has a hundred times."""
_KINDS = 64
_SERIES, _LARGE_SERIES = 3, 50  # of a tenant; each is of one adapter, or of the base model
_PLACED = 1000
_ACTOR = "bench"

_REGISTRY = """
    CREATE TEMP TABLE new AS
      SELECT id AS tenant, a, lpad(no::text, 12, '0') || lpad(a::text, 14, '0') AS name
        FROM unnest(%s::text[], %s::int[]) own (id, versions)
        JOIN tenants USING (id), generate_series(1, versions) a;
    INSERT INTO adapters (id, tenant_id, name)
      SELECT 'adapter_' || name, tenant, 'adapter-' || lpad(a::text, 5, '0') FROM new;
    INSERT INTO adapter_versions (id, tenant_id, adapter_id, number, state, bytes, weights_sha256,
        digest, rank, created_at, activated_at)
      SELECT 'version_' || name, tenant, 'adapter_' || name, 1, 'active', 4900000, '',
             'sha256:' || md5(name) || md5(tenant), 8, %s, %s FROM new;
    INSERT INTO adapter_probes (version_id, tenant_id, state, probed_at)
      SELECT 'version_' || name, tenant, 'done', now() FROM new;
    DROP TABLE new
"""
_SERVED = """
    INSERT INTO service_minutes (at, tenant_id, class, finished)
    SELECT date_trunc('minute', now()) - m * interval '1 minute', id, 'default', 1
      FROM generate_series(30, 1, -1) m, tenants
"""


@dataclass
class _Tenant:
    id: str
    key: str
    key_id: str
    no: int = 0
    series: tuple[int, ...] = ()


def fill(data_dir: Path, size: Size) -> Filled:
    """Raises BenchError."""
    make_private(data_dir)
    secret = load_secret(data_dir, None)
    postgres = EmbeddedPostgres(data_dir / "postgres", secret)
    postgres.start()
    try:
        urls = database_urls(postgres.url, secret, DEFAULT)
        prepare_database(urls)
        with psycopg.connect(libpq_url(urls.owner), autocommit=True) as owner:
            # Rows are right as they come: no trigger needs to look at each of ten million.
            owner.execute("SET session_replication_role = replica")
            objects = open_object_store(Settings(data_dir=data_dir).object_store_url)
            filling = _Filling(Database(urls).patient(), objects, owner, secret, size)
            return asyncio.run(filling.all())
    finally:
        postgres.stop()


@dataclass
class _Filling:
    db: Database
    objects: ObjectStore
    owner: Connection
    secret: ServerSecret
    size: Size
    took: dict[str, float] = field(default_factory=dict)

    async def all(self) -> Filled:
        begin, _ = month_before(datetime.now(UTC))
        begin, _ = month_before(begin)
        end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        try:
            await StoreIdentity(self.db, self.objects).agrees()  # while both are new
            with self._timed("tenants"):
                price = await self._price()
                tenants = await self._tenants()
            with self._timed("registry"):
                self._registry(tenants, begin)
            with self._timed("series"):
                await self._series(tenants)
            with self._timed("events"):
                await self._events(tenants, price, begin, end)
            with self._timed("audit"):
                more = dict.fromkeys((each.id for each in tenants), LOG_ENTRIES)
                more[tenants[0].id] *= LARGE
                lengthen_logs(self.owner, self.secret, more)
            await self._by_services()
        finally:
            await self.db.close()
        with self._timed("analyze"):
            self.owner.execute(_SERVED)
            self.owner.execute("VACUUM ANALYZE")
        large, average = (Asker(each.id, each.key) for each in tenants[:2])
        figures: dict[str, Any] = {**self.took, "database_gb": self._bytes() / 1e9}
        return Filled(figures, average, large)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.took[f"fill_{name}_s"] = time.perf_counter() - began

    def _bytes(self) -> int:
        found = self.owner.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(found[0]) if found else 0

    async def _price(self) -> PriceList:
        per_million = {**PRICES, "stored": "0.05"}
        body = PriceVersionCreate.model_validate(
            {"effective_from": "2020-01-02T00:00:00Z", "per_million": per_million}
        )
        async with self.db.admin_session() as session:
            price = await add_price_version(
                session, scope_of(body), terms_of(body), body.effective_from
            )
            await AuditLog(self.secret).append(
                session,
                actor=_ACTOR,
                action="price_version.create",
                target=price.id,
                after=shown(price),
            )
            return price

    async def _tenants(self) -> list[_Tenant]:
        audit, numbers = AuditLog(self.secret), iter(range(self.size.tenants))
        made: dict[int, _Tenant] = {}

        async def work() -> None:
            for number in numbers:
                async with self.db.admin_session() as session:
                    service = TenantService(session, audit=audit, actor=_ACTOR)
                    row = await service.create_tenant(TenantCreate(name=f"Tenant {number:05}"))
                    keys = ApiKeyService(
                        session, tenant_id=row.id, audit=audit, secret=self.secret, actor=_ACTOR
                    )
                    key = await keys.create(ApiKeyCreate(name="bench"))
                    made[number] = _Tenant(row.id, key.key, key.id, row.no)

        async with task_group() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())
        self.owner.execute("UPDATE tenants SET created_at = created_at - interval '1 year'")
        return [made[number] for number in range(self.size.tenants)]

    def _registry(self, tenants: Sequence[_Tenant], since: datetime) -> None:
        counts = [self.size.versions_of(number) for number in range(len(tenants))]
        values: list[list[Any]] = [[[each.id for each in tenants], counts], [], [since, since], []]
        values.append([])
        for statement, own in zip(_REGISTRY.split(";\n"), values, strict=True):
            self.owner.execute(statement.encode(), own)

    async def _series(self, tenants: Sequence[_Tenant]) -> None:
        """Each of one adapter, and one of the base model."""
        found = self.owner.execute(
            "SELECT v.tenant_id, v.adapter_id, v.id, v.digest FROM adapter_versions v"
            " JOIN adapters a ON a.id = v.adapter_id AND a.name <= 'adapter-00049'"
        )
        own: defaultdict[str, list[Any]] = defaultdict(list)
        for tenant_id, *version in found:
            own[tenant_id].append(version)
        wanted: list[tuple[_Tenant, Series]] = []
        for number, tenant in enumerate(tenants):
            most = _SERIES if number else _LARGE_SERIES
            wanted += [(tenant, each) for each in _series_of(tenant, own[tenant.id][: most - 1])]
        seals = Seals(self.secret)
        for at in range(0, len(wanted), _PLACED):
            some = wanted[at : at + _PLACED]
            async with self.db.admin_session() as session:
                places = await place(session, seals, [series for _, series in some])
            for tenant, series in some:
                tenant.series += (places[series].series_id,)

    async def _events(
        self, tenants: Sequence[_Tenant], price: PriceList, begin: datetime, end: datetime
    ) -> None:
        """With their sums and what the ledger has of them."""
        ratings = _ratings(price)
        maker = Maker(
            self.secret.root,
            [Payer(each.no, each.series) for each in tenants],
            [_kind(each) for each in ratings],
            price.no,
        )
        async with self.db.admin_session() as session:
            for at in (begin, end):
                await session.scalar(select(func.create_usage_month(at.date().replace(day=1))))
            middle, _ = month_before(datetime.now(UTC))
            await session.scalar(select(func.create_usage_month(middle.date())))
        moved = [list(moves(each.event, each, 0)) for each in ratings]
        ledgers = Ledgers(self.owner, self.secret, price.currency, METERS[:3])
        for made in made_days(maker, days_of(self.size.events, begin, end)):
            with self.owner.cursor() as cursor, cursor.copy(COPY.encode()) as copy:
                copy.write(made.copied)
            sums = _sums_of(made, tenants, moved)
            async with self.db.admin_session() as session:
                await sums.write(session)
            ledgers.post(made.begin.date(), _charged(sums))
        ledgers.close()
        self.owner.execute("DELETE FROM ledger_due")

    async def _by_services(self) -> None:
        """A day of storage as a worker meters it, and its postings, which others' chains go on
        with."""
        with self._timed("storage_day"):
            # The engine is asked which model it serves, by `run` alone.
            days = StorageDays(self.db, cast(EngineClient, None))
            booked = await days.run_once(MODEL)
        poster = Poster(self.db, Ledger(self.secret))
        with self._timed("postings"):
            while await poster.run_once() == BATCH:
                pass
        self.took["storage_day_s"] = self.took.pop("fill_storage_day_s")
        self.took["postings_per_s"] = booked / self.took["fill_postings_s"]


def _series_of(tenant: _Tenant, versions: Sequence[Any]) -> Iterator[Series]:
    for adapter, version, digest in [(None, None, None), *versions]:
        yield Series(
            tenant_id=tenant.id,
            kind="chatcmpl",
            model=MODEL,
            class_="default",
            asked_model=MODEL if adapter is None else "support@prod",
            adapter_id=adapter,
            adapter_version_id=version,
            adapter_digest=digest,
            api_key_id=tenant.key_id,
            plan="standard",
            asked_class="default",
        )


def _ratings(price: PriceList) -> list[Rating]:
    """Of some kinds of events; all that bears on the price is the same for all tenants."""
    chance, found = random.Random(0), []
    for number in range(_KINDS):
        prompt = chance.randrange(20, 4000)
        event = Billable(
            event_id=str(number),
            tenant_id="",
            adapter_id=None,
            model=MODEL,
            plan="standard",
            class_="default",
            event_time=datetime.now(UTC),
            prompt_tokens=prompt,
            cached_tokens=chance.randrange(1, prompt),
            output_tokens=chance.randrange(1, 512),
            cold_loads=0,
        )
        found.append(priced_by(price, event).rating({}))
    return found


def _kind(rating: Rating) -> Kind:
    event = rating.event
    return Kind(event.prompt_tokens, event.cached_tokens, event.output_tokens, rating.amount)


def _sums_of(made: Made, tenants: Sequence[_Tenant], moved: Sequence[Sequence[Move]]) -> Sums:
    sums = Sums()
    for payer, series_id, hour, kind, count in made.moved:
        begins = made.begin + timedelta(hours=hour)
        for move in moved[kind]:
            key = Key(tenants[payer].id, begins, series_id, move.price_version_no)
            sums.put(key, move.meter, move.quantity * count, move.amount * count)
    return sums


def _charged(sums: Sums) -> list[Charged]:
    """Of one day."""
    found: defaultdict[str, defaultdict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for key, row in sums.rows.items():
        for meter in METERS[:3]:
            if amount := row.get(AMOUNTS[meter]):
                found[key.tenant_id][meter] += amount
    return [Charged(tenant_id, found[tenant_id]) for tenant_id in sorted(found)]
