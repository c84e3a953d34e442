"""What the Triton launchers ask for, without a GPU: grids, blocks and the tensors they pass on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this machine")

from tenora_kernels import KVLayout, build_attention_layout, build_segments
from tenora_kernels.checks import KernelInputError
from tenora_kernels.gpu import fixed_linear, norms, paged_attention, sgmv, tuning
from tenora_kernels.gpu.tuning import SgmvTuning, Tuning
from tenora_kernels.synthetic import mix_rows, random_adapters, random_pages

CPU = torch.device("cpu")


@dataclass
class Launches:
    """In place of a kernel: notes what it was launched with."""

    grids: list[tuple[int, ...]] = field(default_factory=list)
    arguments: list[tuple[Any, ...]] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            self.grids.append(grid)
            self.arguments.append(arguments)
            self.options.append(options)

        return launch


@pytest.fixture(autouse=True)
def fresh_tuning() -> Iterator[None]:
    for kept in (tuning.tuning_for, tuning.capability):
        kept.cache_clear()
    yield
    for kept in (tuning.tuning_for, tuning.capability):
        kept.cache_clear()


def call_sgmv(rows: int, adapters: int, tuned: SgmvTuning | None = None) -> None:
    widths = (4096, 1024, 1024)
    shapes = [(512, width) for width in widths]
    made = random_adapters([8] * adapters, 1, shapes, torch.bfloat16, CPU)
    segments = build_segments(
        mix_rows("distinct", rows, adapters), made.table, tiles=True, max_segments=rows
    )
    x, y = torch.zeros(rows, 512).bfloat16(), torch.zeros(rows, sum(widths)).bfloat16()
    sgmv.sgmv(y, x, made.pool, made.table, segments, 0, (0, 1, 2), widths, tuned)


def test_an_expand_is_no_larger_than_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tiles a captured launch has room for: programs take one after another."""
    expand = Launches()
    monkeypatch.setattr(sgmv, "_shrink", Launches())
    monkeypatch.setattr(sgmv, "_expand", expand)
    for rows in (1, 64, 256):
        call_sgmv(rows, 1)
    most = Tuning().sgmv_decode.expand_programs
    assert expand.grids[0] == (4 * 24,)  # room is a multiple of 4
    assert [grid[0] for grid in expand.grids[1:]] == [most, most]
    assert {options["BLOCKS"] for options in expand.options} == {24}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "pieces", "warps"),
    [
        (32, 8, 128, 1, 4),
        (64, 8, 128, 1, 8),
        (28, 4, 128, 1, 8),
        (96, 8, 128, 2, 8),
        (16, 1, 256, 4, 8),
        (16, 2, 256, 2, 8),
        (71, 1, 64, 16, 8),
    ],
)
def test_blocks_of_prefill_keep_their_sums_in_registers(
    monkeypatch: pytest.MonkeyPatch,
    heads: int,
    kv_heads: int,
    head_dim: int,
    pieces: int,
    warps: int,
) -> None:
    """A tile of 16 queries is cut where all heads that share KV would make too wide a block."""
    attend = Launches()
    monkeypatch.setattr(paged_attention, "_attend", attend)
    kv = KVLayout(num_layers=1, block_tokens=16, kv_heads=kv_heads, head_dim=head_dim)
    pages = random_pages([40], kv, torch.bfloat16, CPU)
    layout = build_attention_layout([40], [40], pages.block_tables, CPU, tiles=True)
    q = torch.zeros(40, heads, head_dim).bfloat16()
    paged_attention.paged_attention(q, pages.pool, kv, 0, layout, 0.1, torch.empty_like(q))
    assert attend.grids == [(4, kv_heads, pieces)]  # 3 tiles; room is a multiple of 4
    (options,) = attend.options
    assert options["num_warps"] == warps
    assert options["BLOCK_M"] // (heads // kv_heads) * pieces >= 16


def test_float32_is_read_in_blocks_that_products_take(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = Launches()
    monkeypatch.setattr(paged_attention, "_attend", attend)
    monkeypatch.setattr(paged_attention, "_combine", Launches())
    kv = KVLayout(num_layers=1, block_tokens=16, kv_heads=1, head_dim=64)
    pages = random_pages([40], kv, torch.float32, CPU)
    layout = build_attention_layout([1], [40], pages.block_tables, CPU, tiles=True)
    q = torch.zeros(1, 4, 64)
    for context in (16, 32, 64, 128):
        paged_attention.paged_attention(
            q, pages.pool, kv, 0, layout, 0.1, torch.empty_like(q),
            tuning.AttentionTuning(block_context=context),
        )  # fmt: skip
    assert [options["BLOCK_CTX"] for options in attend.options] == [16, 16, 16, 32]


def test_linears_of_many_outputs_read_their_rows_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = Launches()
    monkeypatch.setattr(fixed_linear, "_fixed_linear", launched)
    for outputs in (4096, 28672):
        weight = torch.empty(outputs, 64, dtype=torch.bfloat16)
        fixed_linear.fixed_linear(torch.empty(64, 64, dtype=torch.bfloat16), weight, None)
    assert launched.grids == [(1, 128), (1, 448)]


def test_norms_of_heads_copy_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heads of queries lie within the rows of queries, keys and values together."""
    launched = Launches()
    monkeypatch.setattr(norms, "_rms_norm", launched)
    packed = torch.zeros(5, 4 + 2 + 2, 16)
    norms.rms_norm(packed[:, 4:6], torch.zeros(16), 1e-5)
    assert launched.grids == [(10,)]
    x, *_ = launched.arguments[0]
    assert x.data_ptr() == packed[:, 4:6].data_ptr()


def test_a_device_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def name(device: torch.device) -> str:
        asked.append(device)
        return "a GPU that nobody tuned"

    monkeypatch.setattr(torch.cuda, "get_device_name", name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    for _ in range(3):
        assert tuning.tuning_for(torch.device("cuda")) == Tuning()
    assert len(asked) == 1


def test_what_a_gpu_has_not_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table made on Hopper asks an Ampere GPU of the same name for no dependent launches, and
    who asks for them is told."""
    monkeypatch.setattr(tuning, "capability", lambda device: (8, 0))
    monkeypatch.setattr(tuning, "Tuning", lambda: Tuning(sgmv_decode=SgmvTuning(early_expand=True)))
    assert not tuning.tuning_for(CPU).sgmv_decode.early_expand
    with pytest.raises(KernelInputError, match=r"early_expand needs compute capability 9\.0"):
        call_sgmv(4, 1, SgmvTuning(early_expand=True))
