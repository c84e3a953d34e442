"""Pins: adapters that the operator wants to stay on the device. Knows what is pinned and what is on
its way; how much may be, the memory says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenora_engine.errors import (
    AdapterBusyError,
    AdapterLoadError,
    InvalidRequestError,
    QueueFullError,
)
from tenora_engine.memory.adapter_cache import Key
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.pages import Pin, PinState
from tenora_engine.scheduling.loads import AdapterLoads
from tenora_engine.sequence import Sequence as RunningSequence

PINS_MAX = 1024
"""That may be told at one time."""


class Pins:
    """By key. One that is on its way is `wanted` like that of a waiting sequence."""

    def __init__(self, memory: MemoryManager, loads: AdapterLoads) -> None:
        self._memory = memory
        self._loads = loads
        self._pins: dict[Key, Pin] = {}
        self._coming: dict[Key, None] = {}
        self._refused: dict[Key, tuple[str, str]] = {}  # state and why

    def set(self, pins: Sequence[Pin]) -> list[PinState]:
        """From now on these, no others; the first come first where there is no room for all.
        Raises InvalidRequestError for more than PINS_MAX."""
        if len(pins) > PINS_MAX:
            raise InvalidRequestError(f"at most {PINS_MAX} adapters can be pinned", "pins")
        wanted = {self._key(pin): pin for pin in pins}
        for key in [key for key in self._pins if key not in wanted]:
            self._drop(key)
        self._pins = wanted
        self._refused.clear()
        for key in wanted:
            if key not in self._coming and not self._is_pinned(key):
                self._begin(key)
        self.settle()
        return self.states()

    def states(self) -> list[PinState]:
        """Of all, in the order in which they were told."""
        return [self._state(key, pin) for key, pin in self._pins.items()]

    def settle(self) -> None:
        """Go on with those that are coming: after a load, and whenever there may be room again."""
        for key in list(self._coming):
            self._go_on(key)

    def failed(self, digest: str, error: AdapterLoadError) -> None:
        """It could not be loaded, or not be copied to the device."""
        for key in [key for key in self._coming if key[1] == digest]:
            self._stop(key)
            self._refused[key] = "failed", str(error)

    def forget(self, digest: str) -> None:
        """Its content is to go from everywhere."""
        for key in [key for key in self._pins if key[1] == digest]:
            self._drop(key)
            del self._pins[key]

    def evict(self, namespace: str, digest: str, running: Iterable[RunningSequence]) -> int:
        """Take an adapter from the device; returns its pages, 0 when it is not there. Raises
        AdapterBusyError, with the count, while requests run on it, and while it is pinned."""
        key = self._memory.key_of(namespace, digest)
        resident = self._memory.adapters.get(key[1], key[0])
        if resident is None:
            return 0
        if resident.pinned:
            raise AdapterBusyError("the adapter is pinned; unpin it first")
        if resident.references:
            users = {s.request.request_id for s in running if s.adapter_slot == resident.slot}
            many = "requests run" if len(users) > 1 else "request runs"
            raise AdapterBusyError(
                f"{len(users)} {many} on the adapter; try again when they have ended", len(users)
            )
        self._memory.remove_adapter(resident)
        return len(resident.pages)

    def _begin(self, key: Key) -> None:
        if not self._has_share(key):
            return
        resident = self._memory.adapters.get(key[1], key[0])
        if self._is_refused(key, 1 if resident is None else len(resident.pages)):
            return
        self._coming[key] = None
        self._memory.adapters.want(key[1], key[0])

    def _go_on(self, key: Key) -> None:
        adapters, pin = self._memory.adapters, self._pins[key]
        resident = adapters.get(key[1], key[0])
        if resident is not None:
            if not self._is_refused(key, len(resident.pages)):
                self._memory.pinning.pin(resident)
            self._stop(key)
            return
        if self._memory.adapters.is_arriving(key):
            return
        result = self._loads.request(pin.adapter, pin.tenant.key)
        if result is None or result.packed is None:
            return
        if not self._has_share(key) or self._is_refused(key, result.packed.num_pages):
            self._stop(key)
            return
        self._memory.try_install(pin.tenant, result.packed, result.load_ms)
        if adapters.get(key[1], key[0]) is not None:
            self._loads.discard(key[1])
            self._go_on(key)

    def _has_share(self, key: Key) -> bool:
        """Whether its tenant has a part of the memory to put it in: one without requests may have
        lost it since."""
        try:
            self._memory.register(self._pins[key].tenant)
        except (InvalidRequestError, QueueFullError) as error:
            self._refused[key] = "refused", str(error)
            return False
        return True

    def _is_refused(self, key: Key, num_pages: int) -> bool:
        namespace = self._pins[key].tenant.namespace
        others = len(self._coming) - (key in self._coming)
        why = self._memory.pinning.refusal(namespace, num_pages, others)
        if why is not None:
            self._refused[key] = "refused", why
        return why is not None

    def _drop(self, key: Key) -> None:
        if key in self._coming:
            self._stop(key)
        resident = self._memory.adapters.get(key[1], key[0])
        if resident is not None:
            self._memory.pinning.unpin(resident)
        self._refused.pop(key, None)

    def _stop(self, key: Key) -> None:
        """It is not awaited any more."""
        del self._coming[key]
        self._memory.adapters.unwant(key[1], key[0])
        self._memory.arrivals.cancel_unwanted(key)
        self._loads.release(key[1])

    def _is_pinned(self, key: Key) -> bool:
        resident = self._memory.adapters.get(key[1], key[0])
        return resident is not None and resident.pinned

    def _state(self, key: Key, pin: Pin) -> PinState:
        namespace, digest = pin.tenant.namespace, pin.adapter.digest
        resident = self._memory.adapters.get(digest, key[0])
        if resident is not None and resident.pinned:
            return PinState(namespace, digest, "pinned", len(resident.pages))
        state, why = self._refused.get(key, ("", ""))
        if state == "refused":
            return PinState(namespace, digest, "refused", reason=why)
        if state == "failed":
            return PinState(namespace, digest, "failed", reason=why)
        return PinState(namespace, digest, "loading")

    def _key(self, pin: Pin) -> Key:
        return self._memory.key_of(pin.tenant.namespace, pin.adapter.digest)
