"""transformers + peft, greedy, one prompt at a time: what every answer must equal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


class Reference:
    """The base model and adapters by name, in float32."""

    def __init__(self, model_dir: Path, adapters: dict[str, Path]) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
        base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        first, *rest = adapters.items()
        self.model: Any = PeftModel.from_pretrained(base, first[1], adapter_name=first[0])
        for name, folder in rest:
            self.model.load_adapter(folder, adapter_name=name)
        self.model.eval()

    def chat(self, adapter: str | None, question: str, max_tokens: int) -> str:
        messages = [{"role": "user", "content": question}]
        ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        return self.text(self.generate(adapter, ids[0].tolist(), max_tokens))

    def generate(self, adapter: str | None, prompt: Sequence[int], max_tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            made = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                adapter_names=[adapter or "__base__"],
                max_new_tokens=max_tokens,
                do_sample=False,
            )
        output: list[int] = made[0, len(prompt) :].tolist()
        return output

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))
