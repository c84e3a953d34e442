"""transformers + peft, greedy: what every answer must equal."""

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
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
        base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        first, *rest = adapters.items()
        self.model: Any = PeftModel.from_pretrained(base, first[1], adapter_name=first[0])
        for name, folder in rest:
            self.model.load_adapter(folder, adapter_name=name)
        self.model.eval()

    def chat(self, adapter: str | None, question: str, max_tokens: int) -> str:
        return self.chats([(adapter, question)], max_tokens)[0]

    def beams(
        self, adapter: str, question: str, width: int, count: int, max_tokens: int
    ) -> list[str]:
        """The best texts of a beam search."""
        inputs = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        self.model.set_adapter(adapter)
        with torch.inference_mode():
            made = self.model.generate(
                **inputs,
                num_beams=width,
                num_return_sequences=count,
                max_new_tokens=max_tokens,
                do_sample=False,
            )
        length = inputs["input_ids"].shape[1]
        texts: list[str] = self.tokenizer.batch_decode(made[:, length:], skip_special_tokens=True)
        return texts

    def chats(self, asked: Sequence[tuple[str | None, str]], max_tokens: int) -> list[str]:
        """The answers to questions of these adapters, in one batch."""
        inputs = self.tokenizer.apply_chat_template(
            [[{"role": "user", "content": question}] for _, question in asked],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
            padding=True,
        )
        with torch.inference_mode():
            made = self.model.generate(
                **inputs,
                adapter_names=[adapter or "__base__" for adapter, _ in asked],
                max_new_tokens=max_tokens,
                do_sample=False,
            )
        length = inputs["input_ids"].shape[1]
        texts: list[str] = self.tokenizer.batch_decode(made[:, length:], skip_special_tokens=True)
        return texts
