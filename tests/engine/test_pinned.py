"""Pinned host memory: no more of it is taken than was given, and none while the engine serves."""

from __future__ import annotations

import gc
from random import Random
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from engine_fakes import make_config, make_ref
from fake_loader import pack
from tenora_engine.adapters.loader import AdapterLoader
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.slab import slab_for
from tenora_engine.adapters.tiers import packed_bytes
from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import MemoryBudgetError
from tenora_engine.executor.device_memory import allocate_host
from tenora_engine.pinned import PinnedSlab, allocate_pinned


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


@given(st.lists(st.integers(1, 5), max_size=30), st.randoms(use_true_random=False))
def test_a_slab_gives_each_its_own_pages_and_takes_them_back(
    sizes: list[int], random: Random
) -> None:
    """Whatever comes and goes, what is there keeps its values, and in the end all is free and in
    one piece."""
    with mock.patch("torch.cuda.cudart", Driver):
        slab = PinnedSlab(12 * 8 * 4, 8, torch.float32)
    kept: dict[int, torch.Tensor] = {}
    for number, size in enumerate(sizes):
        while (own := slab.take(torch.full((size, 8), float(number)))) is None:
            assert kept  # an empty slab has room for five pages
            del kept[random.choice(list(kept))]
        kept[number] = own
        del own
        assert slab.free_pages == 12 - sum(len(each) for each in kept.values())
        assert all(bool((there == mine).all()) for mine, there in kept.items())
    kept.clear()
    assert slab.take(torch.zeros(12, 8)) is not None


def cuda_config(host_adapter_bytes: int) -> ResolvedConfig:
    config = make_config(max_rank=64)
    engine = structs.replace(config.engine, device="cuda", host_adapter_bytes=host_adapter_bytes)
    return structs.replace(config, engine=engine)


def test_adapters_that_come_lock_no_memory(driver: Driver) -> None:
    """All of it is locked when the loader starts; for one more adapter the one that was used least
    recently leaves, unless it is on its way to the device."""
    config = cuda_config(1 << 20)

    def adapter(name: str) -> PackedAdapter:
        return pack(config, make_ref(name, 21))  # 5 pages

    loader = AdapterLoader(config)
    try:
        host = loader._host
        assert list(driver.locked.values()) == [(1 << 20) // config.page_bytes * config.page_bytes]
        elements, num_bytes = config.packed_page_elements, 11 * config.page_bytes
        loader._slab = PinnedSlab(num_bytes, elements, torch.float32)  # of two adapters
        gc.collect()
        locked = dict(driver.locked)
        assert list(locked.values()) == [num_bytes]
        for name in ("a", "b"):
            loader._host.put(loader._in_host_memory(adapter(name)))
        assert host.used_bytes == 2 * packed_bytes(adapter("a"))
        third = loader._in_host_memory(adapter("c"))
        (start, size), (own, others) = next(iter(locked.items())), (third.pages, adapter("c").pages)
        assert start <= own.data_ptr() < start + size
        assert torch.equal(own, others)
        assert host.evictions == 1
        on_its_way = [host.get(each.digest) for each in host.residencies()]
        fourth = loader._in_host_memory(adapter("d"))  # nothing is free: as it came
        assert not start <= fourth.pages.data_ptr() < start + size
        assert all(on_its_way)
        assert driver.locked == locked
    finally:
        loader.close()


def test_only_a_gpu_has_a_slab() -> None:
    assert slab_for(make_config()) is None
    assert slab_for(cuda_config(0)) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_is_pinned_and_copies() -> None:
    tensor = allocate_pinned((33, 1000), torch.float32)
    assert tensor.is_pinned()
    on_device = torch.rand((33, 1000), device="cuda")
    tensor.copy_(on_device, non_blocking=True)
    torch.cuda.synchronize()
    torch.testing.assert_close(tensor, on_device.cpu(), rtol=0, atol=0)
