"""What one key may do beside its scopes: the models it may use, and what it may give to another
key. It knows terms, not rows, and nothing of the work that is limited."""

from __future__ import annotations

from collections.abc import Sequence

from tenora_platform.auth import TenantContext
from tenora_platform.errors import ForbiddenError


def covers(models: Sequence[str] | None, model: str) -> bool:
    """Whether a key of these `models` (None: all) may use `model` as a request writes it: `name`
    covers its versions and aliases, `name@3` and `name@alias` themselves alone."""
    return models is None or model in models or model.partition("@")[0] in models


def require_model(tenant: TenantContext, model: str) -> None:
    """Raises ForbiddenError. It goes by the text alone, so that the answer is the same whether or
    not there is such a model."""
    if not covers(tenant.key_models, model):
        raise ForbiddenError(
            f"This API key may not use the model {model[:200]!r}; GET /v1/models lists those that "
            "it may.",
            param="model",
            code="model_not_allowed",
        )
