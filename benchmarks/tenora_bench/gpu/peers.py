"""Peers' Triton LoRA kernels, when their files are given by path. What they import beside torch
and triton is stood in for here; none of their code is."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tenora_bench.gpu.measure import Call


@dataclass(frozen=True)
class Peer:
    """`call(a, b, widths, row_slot, x, y)` prepares `y += lora(x)` as the peer would do it."""

    name: str
    call: Callable[[Tensor, Tensor, Sequence[int], Tensor, Tensor, Tensor], Call]


def vllm_peer(folder: Path) -> Peer:
    """vLLM's `vllm/lora/ops/triton_ops`: split-K shrink with atomics, expand."""
    import triton
    import triton.language as tl

    logger = logging.getLogger("vllm")
    for level in ("info_once", "warning_once"):
        setattr(logger, level, lambda *_, **__: None)

    def refuse(*_: Any, **__: Any) -> None:
        raise AttributeError("no custom ops here")  # then vLLM uses its functions as they are

    def to_device(values: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device)

    stand_in(
        "vllm",
        envs=stand_in(
            "vllm.envs",
            VLLM_BATCH_INVARIANT=False,
            VLLM_LORA_DISABLE_PDL=False,
            VLLM_LORA_ENABLE_DUAL_STREAM=False,
            VLLM_TUNED_CONFIG_FOLDER=None,
        ),
    )
    stand_in("vllm.logger", init_logger=lambda name: logger)
    platform = SimpleNamespace(
        is_cuda=torch.cuda.is_available,
        has_device_capability=has_capability,
        is_device_capability=lambda wanted: wanted == capability_number(),
    )
    stand_in("vllm.platforms", current_platform=platform)
    stand_in("vllm.triton_utils", tl=tl, triton=triton)
    stand_in("vllm.utils")
    stand_in("vllm.utils.math_utils", next_power_of_2=triton.next_power_of_2)
    stand_in("vllm.utils.torch_utils", async_tensor_h2d=to_device, direct_register_custom_op=refuse)
    stand_in("vllm.lora")
    stand_in("vllm.lora.ops")
    stand_in("vllm.lora.ops.triton_ops", folder=folder)
    name = "vllm.lora.ops.triton_ops"
    shrink = importlib.import_module(f"{name}.lora_shrink_op").lora_shrink
    expand = importlib.import_module(f"{name}.lora_expand_op").lora_expand
    meta_of = importlib.import_module(f"{name}.lora_kernel_metadata").LoRAKernelMeta
    utils = importlib.import_module(f"{name}.utils")

    def call(
        a: Tensor, b: Tensor, widths: Sequence[int], row_slot: Tensor, x: Tensor, y: Tensor
    ) -> Call:
        # Its caches go by address: without clearing, an earlier case's weights would be used.
        utils._LORA_A_PTR_DICT.clear()
        utils._LORA_B_PTR_DICT.clear()
        rank, tokens = b.shape[3], x.shape[0]
        meta = meta_of.make(a.shape[1], tokens, x.device)
        meta.prepare_tensors(row_slot.to(x.device))
        arguments = meta.meta_args(tokens, True)
        buffer = torch.zeros(len(widths), tokens, rank, dtype=torch.float32, device=x.device)
        a_parts = [[p.contiguous() for p in layer.split(rank, dim=1)] for layer in a]
        b_parts = [[p.contiguous() for p in layer.split(list(widths), dim=1)] for layer in b]

        def run(layer: int) -> None:
            shrink(x, a_parts[layer], buffer, *arguments, 1.0)
            expand(buffer, b_parts[layer], y, *arguments, offset_start=0, add_inputs=True)

        return run

    return Peer("vllm", call)


def has_capability(wanted: int) -> bool:
    return capability_number() >= wanted


def capability_number() -> int:
    """Return 90 for compute capability 9.0; also where there is no GPU."""
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    return 10 * major + minor


def sglang_peer(folder: Path) -> Peer:
    """SGLang's chunked SGMV (`chunked_sgmv_shrink.py`, `chunked_sgmv_expand.py`), with its tuned
    tables where they lie beside the files."""

    def keep(kernel: Any) -> Any:  # with or without a key function, the kernel as it is
        return kernel if hasattr(kernel, "run") else keep

    def device_name() -> str:
        return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"

    for package in ("sglang", "sglang.srt", "sglang.srt.lora", "sglang.kernels"):
        stand_in(package)
    stand_in("sglang.srt.lora.utils", LoRABatchInfo=SimpleNamespace)
    stand_in("sglang.srt.utils", cached_triton_kernel=keep, get_device_name=device_name)
    on, off = SimpleNamespace(get=lambda: True), SimpleNamespace(get=lambda: False)
    envs = SimpleNamespace(
        SGLANG_ENABLE_LORA_CSGMV_SPLIT_K=on, SGLANG_ENABLE_DETERMINISTIC_INFERENCE=off
    )
    stand_in("sglang.srt.environ", envs=envs)
    stand_in("sglang.utils", cached_triton_kernel=keep)
    stand_in("sglang.kernels.ops")
    stand_in("sglang.kernels.ops.lora")
    for package in ("sglang.kernels.ops.lora.dense", "sglang.srt.lora.triton_ops"):
        stand_in(package, folder=folder)
    name = "sglang.kernels.ops.lora.dense"
    shrink = importlib.import_module(f"{name}.chunked_sgmv_shrink")
    expand = importlib.import_module(f"{name}.chunked_sgmv_expand")

    def call(
        a: Tensor, b: Tensor, widths: Sequence[int], row_slot: Tensor, x: Tensor, y: Tensor
    ) -> Call:
        rank, device = b.shape[3], x.device
        info = sglang_batch(row_slot, a.shape[1], rank, device)
        bounds = torch.tensor([0, *widths]).cumsum(0).int()
        arguments = (info, bounds.to(device), max(widths), y)
        known = inspect.signature(expand.chunked_sgmv_lora_expand_forward).parameters
        more = {"slice_offsets_cpu": bounds} if "slice_offsets_cpu" in known else {}

        def run(layer: int) -> None:
            hidden = shrink.chunked_sgmv_lora_shrink_forward(x, a[layer], info, len(widths))
            expand.chunked_sgmv_lora_expand_forward(hidden, b[layer], *arguments, **more)

        return run

    return Peer("sglang", call)


def sglang_batch(
    row_slot: Tensor, adapters: int, rank: int, device: torch.device
) -> SimpleNamespace:
    """Rows in runs, cut into chunks of 16 rows, or of 128 in large batches."""
    tokens = row_slot.shape[0]
    chunk = 128 if tokens > 256 else 16
    slots, counts = torch.unique_consecutive(row_slot, return_counts=True)
    starts: list[int] = []
    owners: list[int] = []
    first = 0
    for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
        pieces = range(first, first + count, chunk)
        starts += pieces
        owners += [slot] * len(pieces)
        first += count

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(device)

    return SimpleNamespace(
        bs=len(owners),
        num_segments=len(owners),
        max_len=chunk,
        use_cuda_graph=False,
        seg_indptr=ints([*starts, tokens]),
        weight_indices=ints(owners),
        lora_ranks=ints([rank] * adapters),
        permutation=torch.arange(tokens, dtype=torch.int32, device=device),
        scalings=torch.ones(adapters, device=device),
    )


def stand_in(name: str, folder: Path | None = None, **contents: Any) -> ModuleType:
    """A module of this name with these contents; with a folder, a package of the files there."""
    module = ModuleType(name)
    module.__path__ = [] if folder is None else [str(folder)]
    vars(module).update(contents)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
    return module
