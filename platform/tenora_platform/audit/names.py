"""What the actors, targets and tenants of entries are called now: an email, what a key or an
adapter is called, an invoice's number. Knows the tables to read names from, and nothing else of
them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from sqlalchemy import (
    ColumnElement,
    SQLColumnExpression,
    Text,
    cast,
    literal,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.tables import AuditRow
from tenora_platform.evaluations.tables import EvaluationRow
from tenora_platform.invoices.tables import InvoiceRow
from tenora_platform.operators.tables import AdminKeyRow
from tenora_platform.people.tables import InvitationRow, PersonRow, shown_name
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.tenants.tables import ApiKeyRow, TenantRow
from tenora_platform.webhooks.tables import WebhookEndpointRow

_Named = tuple[SQLColumnExpression[str], SQLColumnExpression[str | None]]
"""An id, and the name beside it."""

_version_name = (
    select(AdapterRow.name + "@" + cast(AdapterVersionRow.number, Text))
    .where(AdapterRow.id == AdapterVersionRow.adapter_id)
    .correlate(AdapterVersionRow)
    .scalar_subquery()
)

_OF: Mapping[str, _Named] = {
    "tenant": (TenantRow.id, TenantRow.name),
    "person": (PersonRow.id, shown_name()),
    "key": (ApiKeyRow.id, ApiKeyRow.name),
    "adminkey": (AdminKeyRow.id, AdminKeyRow.name),
    "adp": (AdapterRow.id, AdapterRow.name),
    "adv": (AdapterVersionRow.id, _version_name),
    "eval": (EvaluationRow.id, EvaluationRow.adapter),
    "invitation": (InvitationRow.id, InvitationRow.email),
    "invoice": (InvoiceRow.id, InvoiceRow.number),
    "webhook": (WebhookEndpointRow.id, WebhookEndpointRow.url),
}
"""By what an id begins with."""

_OPERATORS = frozenset({"adminkey"})
_OPERATOR = "operator"
_CONFIGURED = "configured admin key"


def id_of(actor: str) -> str:
    """Return the id in an actor such as `person:person_...`."""
    return actor.partition(":")[2] or actor


async def names_of(
    session: AsyncSession, actors: Iterable[str], ids: Iterable[str], *, by_operator: bool
) -> dict[str, str]:
    """Of those whose names the session may read. A tenant (`by_operator` false) knows its own, and
    of the operator's keys only that they are."""
    by_kind: dict[str, set[str]] = defaultdict(set)
    kinds = {actor: kind for kind, actor in _ACTORS.items()}
    for each in actors:  # an admin key of the settings has an id that says no kind
        by_kind[kinds.get(each.partition(":")[0], "")].add(id_of(each))
    for each in ids:
        by_kind[each.partition("_")[0]].add(each)
    found: dict[str, str] = {}
    for kind, (id_, name) in _OF.items():
        if kind in _OPERATORS and not by_operator:
            found |= dict.fromkeys(by_kind[kind], _OPERATOR)
        elif by_kind[kind]:
            rows = await session.execute(select(id_, name).where(id_.in_(by_kind[kind])))
            found |= {each: called for each, called in rows if called}
        if kind in _OPERATORS and by_operator:
            found |= dict.fromkeys(by_kind[kind] - found.keys(), _CONFIGURED)
    return found


def called(asked: str, *, by_operator: bool) -> ColumnElement[bool]:
    """The condition that an entry's actor, target or tenant has a name with this in it."""
    conditions: list[ColumnElement[bool]] = []
    for kind, (id_, name) in _OF.items():
        if kind in _OPERATORS and not by_operator:
            continue
        ids = select(id_).where(name.icontains(asked, autoescape=True))
        conditions.append(AuditRow.target.in_(ids))
        if kind == "tenant":
            conditions.append(AuditRow.tenant_id.in_(ids))
        elif kind in _ACTORS:
            actors = select(literal(f"{_ACTORS[kind]}:") + id_)
            actors = actors.where(name.icontains(asked, autoescape=True))
            conditions.append(AuditRow.actor.in_(actors))
    return or_(*conditions)


_ACTORS = {"person": "person", "key": "api_key", "adminkey": "admin_key"}
"""As an actor is written, by what its id begins with."""
