"""Whether a request's contents are kept: the tenant has chosen so, and this request does not say
otherwise."""

from __future__ import annotations

from fastapi import Request
from pydantic import BaseModel

from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError
from tenora_platform.receipts.contents import Transcript

HEADER = "x-tenora-keep-contents"


def transcript_of(
    request: Request, tenant: TenantContext, body: BaseModel, length: int
) -> Transcript | None:
    """None if nothing is to be kept. `length` is about that of the body's texts. Raises
    BadRequestError for a header that says neither true nor false: it may have meant no."""
    said = request.headers.get(HEADER, "true").strip().lower()
    if said not in ("true", "false"):
        raise BadRequestError(
            f"{HEADER} must be true or false, not {said[:40]!r}.",
            param=HEADER,
            code="invalid_value",
        )
    # OpenAI's own word for it, where it says no.
    stays_out = said == "false" or getattr(body, "store", None) is False
    if stays_out or not tenant.keeps_contents:
        return None
    asked = body.model_dump(mode="json", exclude_unset=True, by_alias=True)
    return Transcript(tenant.tenant_id, request.url.path, asked, length)
