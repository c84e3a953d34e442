"""transformers + peft as a peer, in a process of its own: one static batch whose rows use different
adapters (`adapter_names`). Reads one JSON request a line on stdin, answers one JSON line each."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def load(model: Path, adapters: Sequence[Path], dtype: str) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    mixed = PeftModel.from_pretrained(base, adapters[0], adapter_name=adapters[0].name)
    for folder in adapters[1:]:
        mixed.load_adapter(folder, adapter_name=folder.name)
    return mixed.eval().to(getattr(torch, dtype))


def run(model: Any, request: dict[str, Any]) -> dict[str, float]:
    """Generate exactly `output_tokens` for every prompt (all of one length)."""
    prompts = torch.tensor(request["prompts"])
    begin = time.perf_counter()
    with torch.inference_mode():
        made = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            adapter_names=request["adapters"],
            max_new_tokens=request["output_tokens"],
            min_new_tokens=request["output_tokens"],
            do_sample=False,
        )
    seconds = time.perf_counter() - begin
    tokens = (made.shape[1] - prompts.shape[1]) * prompts.shape[0]
    return {"seconds": seconds, "output_tokens": tokens, "output_tokens_per_s": tokens / seconds}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, action="append", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = load(options.model, options.adapter, options.dtype)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(model, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
