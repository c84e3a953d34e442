"""Rows of service by minute and hour: how each tenant's class was served, and how the engine was.
They only grow while their time lasts; only the sampler writes them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, DateTime, Double, Integer, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)
_Counts = dict[str, int]


class ServedMeasures:
    """All of it is added up. `ended` counts sequences by reason, `refused` requests that the engine
    did not take by reason, `answers` those of the API by HTTP status. The lists are histograms by
    `telemetry.BOUNDS_S`, with their sums in seconds."""

    finished: Mapped[int] = mapped_column(BigInteger, default=0)
    ended: Mapped[_Counts] = mapped_column(JSONB, default=dict)
    refused: Mapped[_Counts] = mapped_column(JSONB, default=dict)
    answers: Mapped[_Counts] = mapped_column(JSONB, default=dict)
    ttft_promised: Mapped[int] = mapped_column(BigInteger, default=0)
    ttft_met: Mapped[int] = mapped_column(BigInteger, default=0)
    tpot_promised: Mapped[int] = mapped_column(BigInteger, default=0)
    tpot_met: Mapped[int] = mapped_column(BigInteger, default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    output_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    service: Mapped[float] = mapped_column(Double, default=0.0)
    preemptions: Mapped[int] = mapped_column(BigInteger, default=0)
    relegations: Mapped[int] = mapped_column(BigInteger, default=0)
    ttft: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), default=list)
    tpot: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), default=list)
    queue: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), default=list)
    ttft_s: Mapped[float] = mapped_column(Double, default=0.0)
    tpot_s: Mapped[float] = mapped_column(Double, default=0.0)
    queue_s: Mapped[float] = mapped_column(Double, default=0.0)


class _Served(ServedMeasures):
    """`tenant_id` "": all tenants that the engine does not tell apart, and what is no tenant's."""

    at: Mapped[datetime] = mapped_column(_Time, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, primary_key=True)
    class_: Mapped[str] = mapped_column("class", Text, primary_key=True)


class ServiceMinuteRow(_Served, Base):
    """How a tenant's class was served in the minute that begins at `at`."""

    __tablename__ = "service_minutes"


class ServiceHourRow(_Served, Base):
    """The same of an hour, kept longer."""

    __tablename__ = "service_hours"


class EngineMeasures:
    """`samples` times it was looked at, and `ready` times it served. What ends in `_max` is the
    largest of them; pages, `running`, `waiting` and `adapters` are sums over `ready` samples; the
    rest is counted. `restarts`: parts that died and were started again, by name."""

    samples: Mapped[int] = mapped_column(Integer, default=0)
    ready: Mapped[int] = mapped_column(Integer, default=0)
    running: Mapped[int] = mapped_column(BigInteger, default=0)
    running_max: Mapped[int] = mapped_column(BigInteger, default=0)
    waiting: Mapped[int] = mapped_column(BigInteger, default=0)
    waiting_max: Mapped[int] = mapped_column(BigInteger, default=0)
    oldest_wait_s_max: Mapped[float] = mapped_column(Double, default=0.0)
    free_pages: Mapped[int] = mapped_column(BigInteger, default=0)
    live_kv_pages: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_kv_pages: Mapped[int] = mapped_column(BigInteger, default=0)
    adapter_pages: Mapped[int] = mapped_column(BigInteger, default=0)
    adapters: Mapped[_Counts] = mapped_column(JSONB, default=dict)
    loads: Mapped[_Counts] = mapped_column(JSONB, default=dict)
    load_s: Mapped[float] = mapped_column(Double, default=0.0)
    kv_evictions: Mapped[int] = mapped_column(BigInteger, default=0)
    adapter_evictions: Mapped[int] = mapped_column(BigInteger, default=0)
    steps: Mapped[int] = mapped_column(BigInteger, default=0)
    step_ms_max: Mapped[float] = mapped_column(Double, default=0.0)
    restarts: Mapped[_Counts] = mapped_column(JSONB, default=dict)


class EngineMinuteRow(EngineMeasures, Base):
    """How the engine and the processes were in the minute that begins at `at`. A minute without a
    row is one in which nobody looked."""

    __tablename__ = "engine_minutes"

    at: Mapped[datetime] = mapped_column(_Time, primary_key=True)


class EngineHourRow(EngineMeasures, Base):
    """The same of an hour, kept longer."""

    __tablename__ = "engine_hours"

    at: Mapped[datetime] = mapped_column(_Time, primary_key=True)


class HistoryMarkRow(Base):
    """Up to where the counters have been taken over: one row, so that a sampler that takes over
    from another counts nothing twice."""

    __tablename__ = "history_marks"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    data: Mapped[dict[str, Any]] = mapped_column(JSONB)
