"""Run by the interpreter that has peft: static batches whose rows use different adapters
(`adapter_names`). A line of JSON in, one out, a round."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList


class Clock(StoppingCriteria):  # type: ignore[misc]
    """Stops nothing; notes when each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.times.append(time.monotonic())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def load(model: Path, adapters: list[Path], dtype: torch.dtype) -> Any:
    base = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    mixed = PeftModel.from_pretrained(base, adapters[0], adapter_name=adapters[0].name)
    for folder in adapters[1:]:
        mixed.load_adapter(folder, adapter_name=folder.name)
    return mixed.eval().to(dtype)


def batch(model: Any, prompts: Any, adapters: list[str | None], output_tokens: int) -> list[float]:
    """The times of the steps that made `output_tokens` for every prompt (all of one length)."""
    clock = Clock()
    wanted: dict[str, Any] = {
        "input_ids": prompts,
        "attention_mask": torch.ones_like(prompts),
        "max_new_tokens": output_tokens,
        "min_new_tokens": output_tokens,
        "do_sample": False,
        "stopping_criteria": StoppingCriteriaList([clock]),
    }
    with torch.inference_mode():
        if any(adapters):
            model.generate(**wanted, adapter_names=[name or "__base__" for name in adapters])
        else:
            with model.disable_adapter():
                model.generate(**wanted)
    return clock.times


def run(model: Any, message: dict[str, Any]) -> list[dict[str, float]]:
    """As many static batches of `streams` as there are requests."""
    answers = []
    for first in range(0, len(message["prompts"]), message["streams"]):
        part = slice(first, first + message["streams"])
        prompts = torch.tensor(message["prompts"][part])
        sent = time.monotonic()
        times = batch(model, prompts, message["adapters"][part], message["output_tokens"][first])
        answers += [
            {
                "sent_s": sent,
                "first_token_s": times[0],
                "finished_s": times[-1],
                "output_tokens": len(times),
            }
        ] * len(prompts)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, nargs="+", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load(options.model, options.adapters, getattr(torch, options.dtype))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(model, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
