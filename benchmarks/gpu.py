"""`make gpu`: proves every Triton kernel on a real GPU against the float32 references, then times
them, and decode of a whole model, against the GPU's measured ceilings. Needs torch, triton and this
repository, nothing more; prints one table and writes it as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from unittest import mock

import torch

from tenora_bench.gpu.attention import time_attention
from tenora_bench.gpu.checks import check_all
from tenora_bench.gpu.decode import time_decode
from tenora_bench.gpu.linear import time_linear
from tenora_bench.gpu.measure import Ceilings, Machine, Report, measure_ceilings
from tenora_bench.gpu.peers import Peer, sglang_peer, vllm_peer
from tenora_bench.gpu.sgmv import time_sgmv
from tenora_bench.gpu.tune import tune
from tenora_engine.executor.graphs import again
from tenora_kernels import backend
from tenora_kernels.backend import triton_implementation
from tenora_kernels.gpu import tuning

TUNE_S = 150.0  # of the budget, when asked to tune


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--check-only", action="store_true", help="prove, do not time")
    parser.add_argument("--budget-s", type=float, default=460.0, help="start no case after this")
    parser.add_argument("--tune", action="store_true", help="choose block sizes for this GPU first")
    parser.add_argument("--tuned", type=Path, help="where --tune writes; the kernels' own place")
    parser.add_argument("--vllm-ops", type=Path, help="vLLM's vllm/lora/ops/triton_ops")
    parser.add_argument("--sglang-ops", type=Path, help="the folder of SGLang's chunked_sgmv files")
    parser.add_argument("--smoke", action="store_true", help="tiny, in Triton's interpreter")
    parser.add_argument("--allow-no-gpu", action="store_true", help="exit 0 without a GPU")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    if arguments.smoke:
        return smoke(arguments)
    if not torch.cuda.is_available():
        print("No NVIDIA GPU here: nothing was run, nothing was measured.")
        return 0 if arguments.allow_no_gpu else 2
    machine = Machine(torch.device("cuda"), triton_implementation(), torch.bfloat16)
    report = Report(arguments.budget_s)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    torch.manual_seed(0)
    with torch.inference_mode():
        check_all(report, machine)
        if not arguments.check_only:
            if arguments.tune:
                tune_here(report, machine, arguments.tuned)
            measure(report, machine, load_peers(report, arguments))
    return finish(report, arguments, torch.cuda.get_device_name())


def smoke(arguments: argparse.Namespace) -> int:
    """Every section at tiny sizes on the CPU; TRITON_INTERPRET=1 must be set."""
    machine = Machine(torch.device("cpu"), triton_implementation(), torch.float16, smoke=True)
    report = Report(arguments.budget_s)
    torch.manual_seed(0)
    with (
        torch.inference_mode(),
        mock.patch.object(backend, "_chosen", return_value=triton_implementation()),
    ):
        check_all(report, machine)
        measure(report, machine, load_peers(report, arguments))
    return finish(report, arguments, "none: smoke")


def tune_here(report: Report, machine: Machine, target: Path | None) -> None:
    """Tune, write the table, and use it from here on."""
    with report.section("tune"):
        found = tune(report, machine, TUNE_S)
        own = tuning.tuned_file(torch.cuda.get_device_name())
        for file in {own, target or own}:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(found.to_json())
        tuning.tuning_for.cache_clear()
        print(found.to_json())


def load_peers(report: Report, arguments: argparse.Namespace) -> list[Peer]:
    found: list[Peer] = []
    for folder, load in ((arguments.vllm_ops, vllm_peer), (arguments.sglang_ops, sglang_peer)):
        if folder is not None:
            with report.section(load.__name__):
                found.append(load(folder))
    return found


def measure(report: Report, machine: Machine, peers: list[Peer]) -> None:
    ceilings = Ceilings(1.0, 1.0)
    with report.section("ceilings"):
        ceilings = measure_ceilings(machine)
    with report.section("attention"):
        time_attention(report, machine, ceilings)
    with report.section("linear"):
        time_linear(report, machine, ceilings)
    with report.section("decode"):
        time_decode(report, machine, ceilings, again if machine.smoke else None)
    with report.section("sgmv"):
        time_sgmv(report, machine, ceilings, peers)
    report.ceilings = dataclasses.asdict(ceilings)


def finish(report: Report, arguments: argparse.Namespace, device: str) -> int:
    if arguments.json:
        result = {"gpu": device, "torch": torch.__version__, **report.to_dict()}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nnot reached in {report.seconds_max:.0f} s: {len(report.left_out)} cases")
    for error in report.errors:
        print(f"ERROR in {error['section']}: {error['error']}")
    wrong = sum(not check["right"] for check in report.checks)
    print(
        f"{len(report.checks)} checks, {wrong} wrong; {len(report.timings)} timings; "
        f"{len(report.errors)} errors; {report.elapsed_s:.0f} s"
    )
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
