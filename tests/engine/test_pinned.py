"""Pinned host memory: no more of it is taken than was given, and what torch's allocator rounds up
is counted as that."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import make_config, make_ref
from fake_loader import pack
from tenora_engine.adapters.packed import PackedAdapter, pinned_bytes
from tenora_engine.adapters.tiers import HostTier, host_bytes, packed_bytes
from tenora_engine.errors import MemoryBudgetError
from tenora_engine.executor.arena import allocate_pinned
from tenora_engine.executor.device_memory import allocate_host


class Driver:
    """What the CUDA driver would be asked for; it holds what is locked."""

    def __init__(self, status: int = 0) -> None:
        self.locked: dict[int, int] = {}
        self.status = status

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:  # noqa: N802
        assert flags == 0
        self.locked[address] = num_bytes
        return self.status

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.locked[address]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr("torch.cuda.cudart", lambda: driver)
    return driver


def test_exactly_what_is_asked_for_is_locked_until_it_goes(driver: Driver) -> None:
    tensor = allocate_pinned((33, 1000), torch.bfloat16)
    assert driver.locked == {tensor.data_ptr(): 66_000}  # torch's allocator: 131,072
    del tensor
    gc.collect()
    assert driver.locked == {}
    assert allocate_pinned((0, 1000), torch.bfloat16).shape == (0, 1000)
    assert driver.locked == {}


def test_the_host_tier_of_kv_locks_its_pages_and_no_more(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(host_pages=33)

    class OnCuda:
        shape, dtype, is_cuda, is_meta = (4, config.page_elements), torch.float32, True, False

    host_pages = allocate_host(config.num_host_pages, OnCuda())  # type: ignore[arg-type]
    assert list(driver.locked.values()) == [33 * config.page_bytes]
    assert sum(driver.locked.values()) <= config.engine.host_kv_bytes
    assert host_pages.shape == (33, config.page_elements)


def test_what_cannot_be_locked_is_an_error(driver: Driver) -> None:
    driver.status = 2  # cudaErrorMemoryAllocation
    with pytest.raises(MemoryBudgetError, match="could not be page-locked"):
        allocate_pinned((4, 4), torch.float32)


@given(st.integers(0, 1 << 40))
def test_torch_rounds_up_to_a_power_of_two(num_bytes: int) -> None:
    taken = pinned_bytes(num_bytes)
    assert num_bytes <= taken
    assert taken == 0 or (taken & (taken - 1) == 0 and taken < 2 * num_bytes)


def test_the_host_tier_of_adapters_counts_what_pinned_pages_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_config(max_rank=64)

    def adapter(name: str) -> PackedAdapter:
        packed = pack(config, make_ref(name, 21))  # 5 pages, which take the place of 8
        return replace(packed, pages=packed.pages.clone())

    size, page_bytes = packed_bytes(adapter("a")), config.page_bytes
    assert host_bytes(adapter("a")) == size
    monkeypatch.setattr("torch.Tensor.is_pinned", lambda tensor: True)
    taken = size + 3 * page_bytes
    assert host_bytes(adapter("a")) == taken
    tier = HostTier(2 * taken + page_bytes)
    for name in ("a", "b", "c"):
        assert tier.put(adapter(name))
    assert (tier.used_bytes, tier.evictions) == (2 * taken, 1)
    assert not HostTier(taken - 1).put(adapter("a"))
    assert not tier.put_below(adapter("d"), 3 * taken - 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_is_pinned_and_copies() -> None:
    tensor = allocate_pinned((33, 1000), torch.float32)
    assert tensor.is_pinned()
    on_device = torch.rand((33, 1000), device="cuda")
    tensor.copy_(on_device, non_blocking=True)
    torch.cuda.synchronize()
    torch.testing.assert_close(tensor, on_device.cpu(), rtol=0, atol=0)
