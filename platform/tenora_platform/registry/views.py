"""Rows of adapters as the HTTP API shows them. Pure: what is used and held is given to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenora_engine.events import Residency
from tenora_platform.errors import DamagedAdapterError
from tenora_platform.intake.report import Problem
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.schemas import (
    Adapter,
    AdapterVersion,
    Alias,
    ServedVersion,
    Serving,
)
from tenora_platform.registry.serving import Meant, meant
from tenora_platform.registry.tables import AdapterAliasRow, AdapterRow, AdapterVersionRow

Report = Mapping[str, Any] | None


def version_view(
    name: str,
    row: AdapterVersionRow,
    *,
    residency: Residency | None = None,
) -> AdapterVersion:
    """With its whole report."""
    return _view(name, row, row.report, residency)


def adapter_view(
    adapter: AdapterRow,
    versions: Sequence[AdapterVersionRow],  # newest first
    aliases: Sequence[AdapterAliasRow],
    reports: Mapping[str, Report],  # by version id, as lists show them
    residencies: Mapping[str, Residency],  # by digest
) -> Adapter:
    views = [
        _view(adapter.name, row, reports.get(row.id), _residency(row, residencies))
        for row in versions
    ]
    newest = next((view for view in views if view.state != "revoked"), views[0])
    return Adapter(
        id=adapter.id,
        name=adapter.name,
        created_at=adapter.created_at,
        version=newest.version,
        state=newest.state,
        digest=newest.digest,
        rank=newest.rank,
        target_modules=newest.target_modules,
        bytes=newest.bytes,
        has_chat_template=newest.has_chat_template,
        validation=newest.validation,
        aliases=[Alias.of(adapter.name, row) for row in aliases],
        versions=views,
        serving=_serving(bare_name(versions, aliases), views),
    )


def bare_name(
    versions: Sequence[AdapterVersionRow],  # newest first
    aliases: Sequence[AdapterAliasRow],
) -> Meant:
    """What a request with the adapter's name alone runs on."""
    servable = {row.number for row in versions if row.state in SERVABLE}
    newest = next((row.number for row in versions if row.state == "active"), None)
    return meant(None, servable, newest, {row.alias: row.parts for row in aliases})


def _serving(now: Meant, views: Sequence[AdapterVersion]) -> Serving:
    by_number = {view.version: view for view in views}
    served = [
        ServedVersion(
            version=number,
            weight=weight,
            state=by_number[number].state,
            digest=by_number[number].digest,
            rank=by_number[number].rank,
            bytes=by_number[number].bytes,
            residency=by_number[number].residency,
        )
        for number, weight in now.weights.items()
    ]
    return Serving(
        alias=now.alias, versions=sorted(served, key=lambda each: (-each.weight, -each.version))
    )


def _residency(row: AdapterVersionRow, residencies: Mapping[str, Residency]) -> Residency | None:
    return residencies.get(row.digest or "") if row.state in SERVABLE else None


def _draft_layer(row: AdapterVersionRow) -> dict[str, Any] | None:
    if row.draft_layer_digest is None:
        return None
    return {"digest": row.draft_layer_digest, "bytes": row.draft_layer_bytes}


def _view(
    name: str, row: AdapterVersionRow, report: Report, residency: Residency | None
) -> AdapterVersion:
    return AdapterVersion.model_validate(
        {
            "id": row.id,
            "adapter_id": row.adapter_id,
            "name": name,
            "version": row.number,
            "state": row.state,
            "digest": row.digest,
            "rank": row.rank,
            "target_modules": row.target_modules,
            "bytes": row.bytes,
            "draft_layer": _draft_layer(row),
            "has_chat_template": row.has_chat_template,
            "validation": report if row.damaged_at is None else _with_damage(report),
            "residency": residency,
            "created_at": row.created_at,
            "activated_at": row.activated_at,
            "deprecated_at": row.deprecated_at,
            "damaged_at": row.damaged_at,
        }
    )


def _with_damage(report: Report) -> Report:
    """With a warning, which is no part of what is kept."""
    found = dict(report or {"problems": []})
    warning = Problem(
        field="weights",
        code=DamagedAdapterError.code,
        message="the stored content of this version is damaged or missing, so that its requests "
        "fail; uploading the same files again restores it",
    )
    return found | {"warnings": [*found.get("warnings", []), warning.model_dump(mode="json")]}
