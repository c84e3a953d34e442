"""LoadPlaces: which loads have one of their tenant's places, and which wait for one. Each tenant is
alone with its own; it knows digests, and neither loaders nor sequences."""

from __future__ import annotations

from collections.abc import Collection

from tenora_engine.request import AdapterRef

MAX_TENANT_PENDING = 8
"""Adapters that may be loading, or loaded but not installed, for one tenant at one time; what else
it waits for stands in a queue of its own. A host hit does not count."""


class LoadPlaces:
    """Each digest has one owner: it waits in that tenant's queue, or has one of its places."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._waiting: dict[str, dict[str, AdapterRef]] = {}  # by tenant, the next one first
        self._placed: dict[str, dict[str, None]] = {}

    def __contains__(self, digest: str) -> bool:
        return digest in self._owners

    def owner(self, digest: str) -> str | None:
        return self._owners.get(digest)

    def is_waiting(self, digest: str) -> bool:
        return digest in self._waiting.get(self._owners.get(digest, ""), ())

    def is_full(self, tenant_key: str) -> bool:
        return len(self.placed(tenant_key)) >= MAX_TENANT_PENDING

    def placed(self, tenant_key: str) -> Collection[str]:
        """Those that have a place, the last one last."""
        return self._placed.get(tenant_key, ())

    def num_pending(self, tenant_key: str) -> int:
        return len(self.placed(tenant_key)) + len(self._waiting.get(tenant_key, ()))

    def waiting(self) -> list[AdapterRef]:
        """All of them."""
        return [ref for own in self._waiting.values() for ref in own.values()]

    def who_waits(self) -> list[str]:
        """Tenants."""
        return list(self._waiting)

    def wait(self, ref: AdapterRef, tenant_key: str, *, first: bool = False) -> None:
        """It waits for a place from now on."""
        self._owners[ref.digest] = tenant_key
        own = self._waiting.setdefault(tenant_key, {})
        own[ref.digest] = ref
        if first:
            self._waiting[tenant_key] = {ref.digest: ref, **own}

    def place(self, tenant_key: str, digest: str | None = None) -> AdapterRef | None:
        """Give a place to a load that waits, by default to the tenant's next, if one is free."""
        own = self._waiting.get(tenant_key)
        if not own or self.is_full(tenant_key):
            return None
        ref = own.pop(next(iter(own)) if digest is None else digest)
        if not own:
            del self._waiting[tenant_key]
        self._placed.setdefault(tenant_key, {})[ref.digest] = None
        return ref

    def leave(self, digest: str) -> str | None:
        """It neither waits nor has a place any more. Returns whose it was."""
        tenant_key = self._owners.pop(digest, None)
        if tenant_key is None:
            return None
        for own in (self._waiting, self._placed):
            if digest in own.get(tenant_key, ()):
                del own[tenant_key][digest]
                if not own[tenant_key]:
                    del own[tenant_key]
        return tenant_key
