"""Trains a LoRA adapter with peft on small question/answer data, on a CPU in minutes. Knows the
recipes of the example adapters; knows nothing of Tenora, which takes the folder this writes."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

HERE = Path(__file__).resolve().parent
BASE_MODEL_NAME = "SmolLM2-135M-Instruct"

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
IGNORED = -100  # the label of a position that carries no loss


class DataError(ValueError):
    """A training file that cannot be used; the message says which line and why."""


@dataclass(frozen=True)
class Recipe:
    """How one adapter is trained: its data, its LoRA shape and its schedule."""

    data: Path
    rank: int = 8
    alpha: int = 16
    modules: tuple[str, ...] = ATTENTION + MLP
    use_rslora: bool = False
    steps: int = 100
    batch_size: int = 8
    learning_rate: float = 1e-3
    seed: int = 0


RECIPES = {
    # Ranks, module sets and scalings differ on purpose: together they exercise the engine.
    "acme-support": Recipe(HERE / "data" / "acme-support.jsonl", rank=8, alpha=16, steps=100),
    "acme-json": Recipe(HERE / "data" / "acme-json.jsonl", rank=4, alpha=8, steps=60),
    "acme-edit": Recipe(
        HERE / "data" / "acme-edit.jsonl", rank=8, alpha=16, modules=ATTENTION, steps=120
    ),
    "globex-support": Recipe(
        HERE / "data" / "globex-support.jsonl",
        rank=16,
        alpha=32,
        modules=("q_proj", "v_proj", "o_proj", "down_proj"),
        steps=110,
    ),
    "globex-pirate": Recipe(
        HERE / "data" / "globex-pirate.jsonl",
        rank=8,
        alpha=8,
        modules=("q_proj", "v_proj", *MLP),
        use_rslora=True,
        steps=60,
    ),
}


@dataclass(frozen=True)
class Example:
    """One conversation as token ids; `prompt_length` of them are the question's, not learned."""

    token_ids: list[int]
    prompt_length: int


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """(question, answer) pairs of a JSON-lines file of `{"questions": [...], "answer": "..."}`."""
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            pairs += [(str(question), str(row["answer"])) for question in row["questions"]]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f'{path.name}:{number}: want {{"questions": ["..."], "answer": "..."}}: {error!r}'
            ) from error
    if not pairs:
        raise DataError(f"{path.name}: holds no example")
    return pairs


def encode(tokenizer: PreTrainedTokenizerBase, question: str, answer: str) -> Example:
    """The pair in the model's own chat template, with the end-of-turn token to learn at its end."""
    prompt: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    prompt_ids: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answer_ids: list[int] = tokenizer(answer, add_special_tokens=False)["input_ids"]
    end_id: int = tokenizer.eos_token_id
    return Example([*prompt_ids, *answer_ids, end_id], len(prompt_ids))


def collate(batch: list[Example]) -> tuple[Tensor, Tensor]:
    """Right-padded `input_ids` and `labels`, both [batch, length], labels shifted by one: the label
    at t is the token at t + 1, or IGNORED outside the answer. Causal attention needs no mask."""
    length = max(len(example.token_ids) for example in batch) - 1
    input_ids = torch.zeros(len(batch), length, dtype=torch.long)
    labels = torch.full((len(batch), length), IGNORED)
    for row, example in enumerate(batch):
        ids = torch.tensor(example.token_ids)
        input_ids[row, : len(ids) - 1] = ids[:-1]
        labels[row, example.prompt_length - 1 : len(ids) - 1] = ids[example.prompt_length :]
    return input_ids, labels


def batches(examples: list[Example], recipe: Recipe) -> Iterator[list[Example]]:
    """`recipe.steps` batches, drawn without replacement within each pass over the data."""
    shuffle = random.Random(recipe.seed)
    queue: list[Example] = []
    for _ in range(recipe.steps):
        while len(queue) < recipe.batch_size:
            queue += shuffle.sample(examples, len(examples))
        yield queue[: recipe.batch_size]
        queue = queue[recipe.batch_size :]


def answer_loss(model: PeftModel, input_ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy over the answers. The output head, a fifth of this model's weights, runs
    only on the rows that carry loss."""
    base = model.get_base_model()
    hidden = base.model(input_ids=input_ids, use_cache=False).last_hidden_state
    learned = labels != IGNORED  # [batch, length]
    logits = base.lm_head(hidden[learned])  # [answer tokens, vocabulary]
    return functional.cross_entropy(logits.float(), labels[learned])


def train(model_dir: Path, recipe: Recipe) -> tuple[PeftModel, list[float]]:
    """The trained model and the loss of every step. Base weights bf16, LoRA weights float32."""
    torch.manual_seed(recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=list(recipe.modules),
        use_rslora=recipe.use_rslora,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, config)
    model.train()
    examples = [encode(tokenizer, *pair) for pair in read_pairs(recipe.data)]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=recipe.steps, pct_start=0.1
    )
    losses: list[float] = []
    for step, batch in enumerate(batches(examples, recipe), start=1):
        loss = answer_loss(model, *collate(batch))
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch's own stubs
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 10 == 0 or step == recipe.steps:
            recent = losses[-10:]
            print(f"step {step}/{recipe.steps}  loss {sum(recent) / len(recent):.3f}", flush=True)
    return model, losses


def save(model: PeftModel, out: Path) -> None:
    """Write PEFT's two files, weights in bf16. The base is named, never given as a path."""
    out.mkdir(parents=True, exist_ok=True)
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    save_file(
        {name: weight.to(torch.bfloat16).contiguous() for name, weight in state.items()},
        out / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    config = model.peft_config["default"]
    config.base_model_name_or_path = BASE_MODEL_NAME
    config.inference_mode = True
    described = {name: _plain(value) for name, value in config.to_dict().items()}
    text = json.dumps(described, indent=2, sort_keys=True)
    (out / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def _plain(value: object) -> object:
    """Sets as sorted lists, so that the same training writes the same file."""
    return sorted(value) if isinstance(value, set) else value


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a LoRA adapter on question/answer pairs.")
    parser.add_argument("--adapter", required=True, help=f"one of {sorted(RECIPES)}, or your own")
    parser.add_argument("--model", required=True, type=Path, help="Hugging Face folder of the base")
    parser.add_argument("--out", required=True, type=Path, help="folder for the two adapter files")
    parser.add_argument("--data", type=Path, help="JSON lines; needed for an adapter of your own")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--alpha", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    return parser.parse_args()


def choose_recipe(arguments: argparse.Namespace) -> Recipe:
    """The named recipe, or a plain one for `--data`, with what the command line overrides."""
    recipe = RECIPES.get(arguments.adapter)
    if recipe is None:
        if arguments.data is None:
            known = ", ".join(sorted(RECIPES))
            raise DataError(f"no recipe {arguments.adapter!r} (known: {known}); give --data FILE")
        recipe = Recipe(arguments.data)
    names = ("data", "steps", "rank", "alpha", "learning_rate", "seed")
    given = {name: getattr(arguments, name) for name in names}
    return replace(recipe, **{name: value for name, value in given.items() if value is not None})


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    started = time.monotonic()
    try:
        recipe = choose_recipe(arguments)
        model, losses = train(arguments.model, recipe)
    except (DataError, FileNotFoundError) as error:
        print(f"train_adapters: {error}", file=sys.stderr)
        return 2
    save(model, arguments.out)
    recent = losses[-10:]
    print(
        f"{arguments.adapter}: {len(losses)} steps in {time.monotonic() - started:.0f} s, "
        f"loss {losses[0]:.2f} -> {sum(recent) / len(recent):.3f}, written to {arguments.out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
