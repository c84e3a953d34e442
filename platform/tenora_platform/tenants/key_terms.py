"""What a key allows, and what one key may give another: no scope, model, limit or day more than it
has itself. It knows terms, not rows, and nothing of the work that is limited."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError, ForbiddenError

CAPS = ("requests_per_min", "tokens_per_min", "parallel_requests", "budget", "budget_day")
"""The limits of which less is less. A budget's soft cap and what follows it are beside them."""


@dataclass(frozen=True, kw_only=True)
class KeyTerms:
    """All that one key allows. None of `models` or `expires_at`, or of a limit: no bound."""

    scopes: Sequence[str]
    models: Sequence[str] | None
    limits: Mapping[str, Any]  # by the names of `auth.Caps`
    expires_at: datetime | None

    def beyond(self, own: KeyTerms) -> Iterator[str]:
        """What of this is more than `own`, by the names of the API's fields."""
        if set(self.scopes) - set(own.scopes):
            yield "scopes"
        if not _models_within(self.models, own.models):
            yield "models"
        if own.expires_at is not None and not _at_most(self.expires_at, own.expires_at):
            yield "expires_at"
        for name in CAPS:
            if own.limits[name] is not None and not _at_most(self.limits[name], own.limits[name]):
                yield f"limits.{name}"
        if own.limits["budget_action"] == "degrade":
            soft = own.limits["budget_soft"]
            if self.limits["budget_action"] != "degrade":
                yield "limits.budget_action"
            if soft is not None and not _at_most(self.limits["budget_soft"], soft):
                yield "limits.budget_soft"

    def within(self, own: KeyTerms) -> Self | None:
        """What of this is within `own`, limits apart: those are shared. None: nothing is."""
        scopes = [scope for scope in self.scopes if scope in own.scopes]
        models = self.models
        if own.models is not None:
            of = own.models if models is None else models
            models = [model for model in of if covers(own.models, model)]
        ends = [each for each in (self.expires_at, own.expires_at) if each is not None]
        if not scopes or models == []:
            return None
        return replace(self, scopes=scopes, models=models, expires_at=min(ends, default=None))


def require_within(
    wanted: KeyTerms, own: KeyTerms | None, fields: Collection[str] | None = None
) -> None:
    """Raises BadRequestError if one of `fields` (None: of all) is beyond what `own` may give; None
    for `own` is the operator, who may give anything."""
    for name in () if own is None else wanted.beyond(own):
        if fields is None or name in fields:
            raise BadRequestError(
                f"{name} exceeds what the key that sent this request has itself.",
                param=name,
                code="beyond_own_key",
            )


def covers(models: Sequence[str] | None, model: str) -> bool:
    """Whether a key of these `models` (None: all) may use `model` as a request writes it: `name`
    covers its versions and aliases, `name@3` and `name@alias` themselves alone."""
    return models is None or model in models or model.partition("@")[0] in models


def require_model(tenant: TenantContext, model: str) -> None:
    """Raises ForbiddenError. It goes by the text alone, so that the answer is the same whether or
    not there is such a model."""
    if not covers(tenant.key_models, model):
        raise ForbiddenError(
            f"This API key may not use the model {model[:200]!r}. GET /v1/models lists the "
            "models it may use.",
            param="model",
            code="model_not_allowed",
        )


def _models_within(wanted: Sequence[str] | None, own: Sequence[str] | None) -> bool:
    if own is None:
        return True
    return wanted is not None and all(covers(own, model) for model in wanted)


def _at_most(wanted: Any, most: Any) -> bool:
    return wanted is not None and wanted <= most
