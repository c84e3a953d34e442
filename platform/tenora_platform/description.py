"""What the OpenAPI document says beyond the routes themselves: which key each takes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

_SCHEMES = {
    "tenantKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "A tenant's API key, `Authorization: Bearer tn_...`.",
    },
    "adminKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "The operator's admin key.",
    },
}


class DescribedApi(FastAPI):
    """FastAPI with `securitySchemes` in its description."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"]["securitySchemes"] = _SCHEMES
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["security"] = _security(path)
        return document


def _security(path: str) -> list[dict[str, list[str]]]:
    """OpenAPI's form: any one of these; an empty one is no key at all."""
    if path.startswith("/v1/"):
        return [{"tenantKey": []}]
    if path.startswith("/admin/"):
        return [{"adminKey": []}]
    return [{}, {"adminKey": []}] if path == "/metrics" else []
