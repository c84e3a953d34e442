"""What scheduling knows of the trained draft layers that adapters bring: whether they can be asked.
`executor.draft_layers` has the tensors."""

from __future__ import annotations

from typing import Protocol

from tenora_engine.request import AdapterRef


class OwnLayers(Protocol):
    """The trained layers that adapters bring, as in `executor.draft_layers`."""

    def want(self, ref: AdapterRef, tenant_key: str) -> bool:
        """Whether the adapter's is there to be asked; if not it is brought beside the steps, in
        the tenant's turn."""
        ...

    def forget(self, adapter: str) -> None: ...

    def counters(self) -> dict[str, float]: ...

    def close(self) -> None: ...
