"""`make gpu`: proves the Triton kernels and the engine's executor on a real GPU, and times them
and decode of a whole model against the GPU's measured ceilings, in 15 minutes. Needs torch,
triton, transformers, msgspec and this repository's kernels and engine, nothing more.

Each section is a process with a time limit; its rows go to a file of lines of JSON as they are
found (`--rows`), and all of them at the end into one (`--json`). `--tune`, in a call of its own,
chooses block sizes for this GPU."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest import mock

import torch

from tenora_bench.gpu.measure import Machine, Report
from tenora_bench.gpu.peers import Peer, sglang_peer, vllm_peer
from tenora_bench.gpu.sections import (
    END_S,
    SECTIONS,
    Context,
    Section,
    by_name,
    ceilings_in,
    read_rows,
    run_apart,
    run_here,
)
from tenora_kernels import backend
from tenora_kernels.backend import triton_implementation

TUNE_S = 400.0
LEAST_S = 15.0  # a section that has less is not begun


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write everything to this file at the end")
    parser.add_argument("--rows", type=Path, help="append each row to this file at once")
    parser.add_argument("--check-only", action="store_true", help="prove, do not time")
    parser.add_argument("--budget-s", type=float, default=880.0, help="of all sections")
    parser.add_argument("--only", nargs="*", help="these sections")
    parser.add_argument("--section", help="this one, in this process")
    parser.add_argument("--tune", action="store_true", help="choose block sizes for this GPU")
    parser.add_argument("--tuned", type=Path, help="where --tune writes; the kernels' own place")
    parser.add_argument("--vllm-ops", type=Path, help="vLLM's vllm/lora/ops/triton_ops")
    parser.add_argument("--sglang-ops", type=Path, help="the folder of SGLang's chunked_sgmv files")
    parser.add_argument("--smoke", action="store_true", help="tiny, in Triton's interpreter")
    parser.add_argument("--in-process", action="store_true", help="with --smoke: all in one")
    parser.add_argument("--allow-no-gpu", action="store_true", help="exit 0 without a GPU")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    if not (arguments.smoke or torch.cuda.is_available()):
        print("No NVIDIA GPU here: nothing was run, nothing was measured.")
        return 0 if arguments.allow_no_gpu else 2
    if arguments.section:
        return one(by_name(arguments.section), arguments, arguments.budget_s)
    if arguments.tune:
        return tune_here(arguments)
    with tempfile.TemporaryDirectory() as folder:
        arguments.rows = arguments.rows or Path(folder) / "rows"
        run_all(chosen(arguments), arguments)
        return finish(arguments)


def chosen(arguments: argparse.Namespace) -> list[Section]:
    sections = [each for each in SECTIONS if each.is_check or not arguments.check_only]
    if arguments.only:
        sections = [by_name(name) for name in arguments.only]
    return sections


def run_all(sections: list[Section], arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    for section in sections:
        left = arguments.budget_s - (time.monotonic() - started)
        limit = min(section.limit_s, left)
        if limit < LEAST_S:
            row = {"kind": "left out", "section": section.name, "case": section.name}
            with arguments.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
        elif arguments.in_process:
            one(section, arguments, limit)
        else:
            run_apart(section.name, command_of(section, arguments, limit), limit, arguments.rows)


def command_of(section: Section, arguments: argparse.Namespace, limit_s: float) -> list[str]:
    command = [sys.executable, os.path.abspath(__file__), "--section", section.name]
    command += ["--rows", str(arguments.rows), "--budget-s", str(limit_s - END_S)]
    for option in ("vllm_ops", "sglang_ops"):
        if getattr(arguments, option) is not None:
            command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
    return [*command, "--smoke"] if arguments.smoke else command


def machine_of(arguments: argparse.Namespace) -> Machine:
    if arguments.smoke:  # float16: the interpreter's dot of bfloat16 is wrong
        return Machine(torch.device("cpu"), triton_implementation(), torch.float16, smoke=True)
    return Machine(torch.device("cuda"), triton_implementation(), torch.bfloat16)


def one(section: Section, arguments: argparse.Namespace, seconds: float) -> int:
    """In this process: 1 where something was wrong, which its rows say."""
    report = Report(seconds, arguments.rows)
    found = ceilings_in(read_rows(arguments.rows) if arguments.rows else [])
    torch.manual_seed(0)
    with torch.inference_mode(), as_triton(section, arguments):
        peers = load_peers(report, arguments) if section.name == "sgmv" else []
        run_here(section, Context(report, machine_of(arguments), found, peers))
    return 1 if report.failed else 0


def as_triton(section: Section, arguments: argparse.Namespace) -> AbstractContextManager[object]:
    """On the CPU every op is Triton's, too, but those of an engine, which chooses them itself."""
    if not arguments.smoke or section.name == "engine":
        return nullcontext()
    return mock.patch.object(backend, "_chosen", return_value=triton_implementation())


def tune_here(arguments: argparse.Namespace) -> int:
    """Tune, and write the table."""
    from tenora_bench.gpu.tune import tune
    from tenora_kernels.gpu import tuning

    report = Report(min(TUNE_S, arguments.budget_s), arguments.rows)
    with torch.inference_mode(), report.section("tune"):
        found = tune(report, machine_of(arguments), report.seconds_max)
        own = tuning.tuned_file(torch.cuda.get_device_name())
        for file in {own, arguments.tuned or own}:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(found.to_json())
        print(found.to_json())
    return 1 if report.failed else 0


def load_peers(report: Report, arguments: argparse.Namespace) -> list[Peer]:
    found: list[Peer] = []
    folders = ((arguments.vllm_ops, vllm_peer), (arguments.sglang_ops, sglang_peer))
    for folder, load in folders:
        if folder is not None:
            with report.section(load.__name__):
                found.append(load(folder))
    return found


def finish(arguments: argparse.Namespace) -> int:
    rows = read_rows(arguments.rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    kinds = Counter(str(row["kind"]) for row in rows)
    wrong = [row for row in rows if row["kind"] == "check" and not row["right"]]
    print()
    for row in wrong:
        print(f"WRONG {row['section']}: {row['check']}, max error {row['max_error']}")
    for row in rows:
        if row["kind"] == "error":
            print(f"ERROR in {row['section']}, {row['what']}: {row['error']}")
    print(
        f"{kinds['check']} checks, {len(wrong)} wrong; {kinds['timing']} timings; "
        f"{kinds['error']} errors; {kinds['left out']} left out"
    )
    return 1 if wrong or kinds["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
