"""Adapters of which usage is booked, without any weights."""

from __future__ import annotations

from api_harness import Api, TestTenant
from tenora_platform.ids import new_id
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow

DIGEST = "sha256:" + "ab" * 32


async def an_adapter(api: Api, tenant: TestTenant, name: str, number: int = 3) -> dict[str, str]:
    """The context that a request of it has."""
    adapter_id, version_id = new_id("adapter"), new_id("version")
    async with api.state.db.admin_session() as session:
        session.add(AdapterRow(id=adapter_id, tenant_id=tenant.id, name=name))
        await session.flush()
        version = AdapterVersionRow(
            id=version_id,
            tenant_id=tenant.id,
            adapter_id=adapter_id,
            number=number,
            state="revoked",
            bytes=1,
            weights_sha256="",
            digest=DIGEST,
        )
        session.add(version)
    return {"adapter_id": adapter_id, "adapter_version_id": version_id}
