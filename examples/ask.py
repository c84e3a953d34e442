"""Asks the base model and adapters the same questions with transformers and peft, at temperature 0
and without any server: what an adapter changes, and what Tenora's answers should equal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase


def answer(
    model: PeftModel, tokenizer: PreTrainedTokenizerBase, question: str, max_tokens: int
) -> str:
    """The greedy answer of the model with its active adapter, as text."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
    text: str = tokenizer.decode(
        output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return text.strip()


def load(model_dir: Path, adapters: list[Path]) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """The base in float32 with every adapter beside it, each under its folder's name."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(adapters[0]), adapter_name=adapters[0].name)
    for folder in adapters[1:]:
        model.load_adapter(str(folder), adapter_name=folder.name)
    model.eval()
    return model, tokenizer


def main() -> int:
    parser = argparse.ArgumentParser(description="Same questions, base model and each adapter.")
    parser.add_argument("--model", required=True, type=Path, help="Hugging Face folder of the base")
    parser.add_argument("--adapter", required=True, type=Path, action="append", help="PEFT folder")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("questions", nargs="+")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.model, arguments.adapter)
    for question in arguments.questions:
        print(f"\n{question}")
        with model.disable_adapter():
            print(f"  base: {answer(model, tokenizer, question, arguments.max_tokens)}")
        for folder in arguments.adapter:
            model.set_adapter(folder.name)
            text = answer(model, tokenizer, question, arguments.max_tokens)
            print(f"  {folder.name}: {text}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
