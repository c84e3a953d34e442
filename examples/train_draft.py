"""Trains a draft layer for a base model on a CPU within an hour: one decoder layer that foretells
what the base generates next, from the base's greedy answers to questions that it made up itself.
With `--adapter` one for an adapter, from that one's answers, in minutes where it goes on from the
base's layer (`--start`). Knows how the layer computes and is learned; who drafts with it is the
engine's `--draft-layer`, or the adapter in whose folder it lies.

Sources: EAGLE (Li et al., 2024) for a layer that goes on from the base's hidden state and the next
token; GliDe (Du et al., 2024) for attention to the base's own keys and values; EAGLE-3 (Li et al.,
2025) for training on the layer's own outputs; FR-Spec (Zhao et al., 2025) for a head over frequent
tokens; Magpie (Xu et al., 2024) for questions that a chat model makes up.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel

from draft_chats import MAX_POSITIONS, Chat, make_chats, merged, read_questions
from tenora_engine.adapters.draft_format import FORMAT

HELD_OUT = 64  # chats on which the layer is judged; of fewer than 512 an eighth
OTHER = -1  # the place in the vocabulary of a token that is not in it


@dataclass(frozen=True)
class Recipe:
    """How a layer is trained."""

    vocabulary: int = 8192  # tokens that it can foretell: those that the base says most
    depth: int = 3  # tokens one after the other, each from what the layer made of those before
    epochs: int = 4
    batch_tokens: int = 2048
    learning_rate: float = 1.5e-3
    seed: int = 0


@dataclass(frozen=True)
class Features:
    """What the base made of a chat, all bfloat16."""

    chat: Chat
    hidden: Tensor  # [length, hidden]: as its head reads it
    keys: Tensor  # [kv_heads, length, head_dim]: its last layer's, with their positions
    values: Tensor  # [kv_heads, length, head_dim]


@torch.inference_mode()
def read_features(base: PreTrainedModel, chats: list[Chat]) -> list[Features]:
    found: list[Features] = []
    for chat in chats:
        seen = base.model(input_ids=torch.tensor([chat.token_ids]), use_cache=True)
        last = seen.past_key_values.layers[-1]
        found.append(
            Features(
                chat,
                seen.last_hidden_state[0].clone(),
                last.keys[0].clone(),
                last.values[0].clone(),
            )
        )
    return found


class DraftLayer(nn.Module):
    """One decoder layer. At depth d, for a base that has computed the tokens up to t: from token
    t + d and the state before it (the base's hidden state at t first, then the layer's own) what
    the state at t + d will be, and so the token after it. It attends to the base's last layer's
    keys and values up to t; of its own it keeps none."""

    vocabulary: Tensor  # [known] int64
    embedding: Tensor  # [vocab, hidden]
    head: Tensor  # [known, hidden]
    cos: Tensor  # [positions, head_dim]
    sin: Tensor

    def __init__(self, base: PreTrainedModel, vocabulary: Tensor) -> None:
        """`vocabulary`: [tokens] int64, what it can foretell. The weights begin as the base's last
        layer's; embedding and head are the base's and stay so."""
        super().__init__()
        config, last = base.config, base.model.layers[-1]
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.eps = config.rms_norm_eps
        hidden = config.hidden_size
        self.embedding_norm = nn.Parameter(torch.ones(hidden))
        self.state_norm = nn.Parameter(torch.ones(hidden))
        self.join = nn.Parameter(torch.cat([torch.eye(hidden), torch.eye(hidden)], dim=1) / 2)
        self.attention_norm = _learned(last.input_layernorm.weight)
        self.query = _learned(last.self_attn.q_proj.weight)
        self.out = _learned(last.self_attn.o_proj.weight)
        self.mlp_norm = _learned(last.post_attention_layernorm.weight)
        self.gate_up = _learned(torch.cat([last.mlp.gate_proj.weight, last.mlp.up_proj.weight]))
        self.down = _learned(last.mlp.down_proj.weight)
        self.final_norm = _learned(base.model.norm.weight)
        self.register_buffer("vocabulary", vocabulary)
        self.register_buffer("embedding", base.model.embed_tokens.weight.detach().float())
        self.register_buffer("head", base.lm_head.weight.detach()[vocabulary].float())
        places = torch.arange(MAX_POSITIONS).unsqueeze(0)
        cos, sin = base.model.rotary_emb(torch.zeros(1), places)
        self.register_buffer("cos", cos[0])
        self.register_buffer("sin", sin[0])

    def forward(
        self,
        token_ids: Tensor,  # [batch, length] int64
        state: Tensor,  # [batch, length, hidden]
        position: Tensor,  # [length] int64
        keys: Tensor,  # [batch, kv_heads, context, head_dim]
        values: Tensor,  # [batch, kv_heads, context, head_dim]
        seen: Tensor,  # [length, context] bool: which of them each attends to
    ) -> Tensor:  # [batch, length, hidden]
        """The next states, as the head reads them."""
        joined = torch.cat(
            [
                self._norm(functional.embedding(token_ids, self.embedding), self.embedding_norm),
                self._norm(state, self.state_norm),
            ],
            dim=-1,
        )
        x = functional.linear(joined, self.join)
        query = functional.linear(self._norm(x, self.attention_norm), self.query)
        query = query.view(*query.shape[:2], self.heads, -1).transpose(1, 2)
        query = _rotate(query, self.cos[position], self.sin[position]).to(values.dtype)
        attended = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=seen, enable_gqa=True
        )
        x = x + functional.linear(attended.transpose(1, 2).flatten(2).to(x.dtype), self.out)
        gate, up = functional.linear(self._norm(x, self.mlp_norm), self.gate_up).chunk(2, dim=-1)
        x = x + functional.linear(functional.silu(gate) * up, self.down)
        return self._norm(x, self.final_norm)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), weight.shape, weight, self.eps)


def _learned(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach().float().clone())


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


@dataclass(frozen=True)
class Batch:
    """Chats side by side, shorter ones filled up behind their ends."""

    token_ids: Tensor  # [batch, length] int64
    hidden: Tensor  # [batch, length, hidden]
    keys: Tensor  # [batch, kv_heads, length, head_dim]
    values: Tensor
    is_answer: Tensor  # [batch, length] bool: the base generated it


def collate(features: Sequence[Features]) -> Batch:
    pad = nn.utils.rnn.pad_sequence
    token_ids = [torch.tensor(each.chat.token_ids) for each in features]
    is_answer = [
        torch.arange(len(ids)) >= each.chat.prompt_length
        for ids, each in zip(token_ids, features, strict=True)
    ]
    return Batch(
        token_ids=pad(token_ids, batch_first=True),
        hidden=pad([each.hidden for each in features], batch_first=True),
        keys=pad([each.keys.transpose(0, 1) for each in features], batch_first=True).transpose(
            1, 2
        ),
        values=pad([each.values.transpose(0, 1) for each in features], batch_first=True).transpose(
            1, 2
        ),
        is_answer=pad(is_answer, batch_first=True),
    )


@dataclass(frozen=True)
class Foretold:
    """One depth: of all places of a batch from which an answer's token is foretold."""

    logits: Tensor  # [places, vocabulary]
    target: Tensor  # [places] int64: the token that comes
    base_hidden: Tensor  # [places, hidden]: of which the base made it
    begin: Tensor  # [places] int64: chat * length + t


def unroll(layer: DraftLayer, batch: Batch, depth: int) -> Iterator[Foretold]:
    """From each place t the tokens t + 2, t + 3, ... as if those before them had been foretold
    rightly, which is when they count."""
    length = batch.token_ids.shape[1]
    state: Tensor = batch.hidden
    for d in range(1, depth + 1):
        places = length - d - 1  # t from which t + d + 1 is in the chat
        if places <= 0:
            return
        at = torch.arange(places)
        state = layer(
            batch.token_ids[:, d : d + places],
            state[:, :places],
            at + d,
            batch.keys,
            batch.values,
            torch.arange(length) <= at.unsqueeze(1),
        )
        counts = batch.is_answer[:, d + 1 :].clone()
        counts &= batch.is_answer[:, 1 : 1 + places]  # t + 1 was generated: from there it drafts
        yield Foretold(
            functional.linear(state[counts], layer.head),
            batch.token_ids[:, d + 1 :][counts],
            batch.hidden[:, d : d + places][counts],
            (torch.arange(len(counts)).unsqueeze(1) * length + at)[counts],
        )


def groups(features: list[Features], tokens: int, seed: int) -> list[list[Features]]:
    """All chats once, those of like length together, at most so many tokens with what fills up."""
    draw = random.Random(seed)
    order = sorted(features, key=lambda each: len(each.chat.token_ids) + draw.randrange(32))
    found: list[list[Features]] = [[]]
    for each in order:
        if found[-1] and len(each.chat.token_ids) * (len(found[-1]) + 1) > tokens:
            found.append([])
        found[-1].append(each)
    draw.shuffle(found)
    return found


def loss_of(layer: DraftLayer, batch: Batch, depth: int) -> Tensor:
    """Cross entropy with what the base thought likely among the vocabulary, over all depths."""
    losses = []
    for foretold in unroll(layer, batch, depth):
        with torch.no_grad():
            likely = functional.linear(foretold.base_hidden.float(), layer.head).float().softmax(-1)
        losses.append(functional.cross_entropy(foretold.logits.float(), likely))
    return torch.stack(losses).mean()


def train(layer: DraftLayer, features: list[Features], recipe: Recipe) -> None:
    torch.manual_seed(recipe.seed)
    steps = [
        group
        for epoch in range(recipe.epochs)
        for group in groups(features, recipe.batch_tokens, recipe.seed + epoch)
    ]
    optimizer = torch.optim.AdamW(layer.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=len(steps), pct_start=0.1
    )
    losses: list[float] = []
    for step, group in enumerate(steps, start=1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(layer, collate(group), recipe.depth)
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch's own stubs
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 50 == 0 or step == len(steps):
            recent = losses[-50:]
            print(f"step {step}/{len(steps)}  loss {sum(recent) / len(recent):.3f}", flush=True)


@torch.inference_mode()
def accepted(layer: DraftLayer, features: list[Features], recipe: Recipe) -> list[float]:
    """How often the first d tokens are all foretold rightly, for d from 1 on."""
    places = [0] * recipe.depth
    right = [0] * recipe.depth
    for group in groups(features, recipe.batch_tokens, 0):
        batch = collate(group)
        held: Tensor | None = None
        for d, foretold in enumerate(unroll(layer, batch, recipe.depth)):
            is_right = torch.zeros(batch.token_ids.numel(), dtype=torch.bool)
            best = layer.vocabulary[foretold.logits.argmax(-1)]
            is_right[foretold.begin] = best == foretold.target
            held = is_right if held is None else held & is_right
            places[d] += len(foretold.begin)
            right[d] += int(held.sum())
    return [count / max(of, 1) for count, of in zip(right, places, strict=True)]


def vocabulary_of(
    chats: list[Chat], size: int, vocab: int, known: Sequence[int] = ()
) -> Tensor:  # [size] int64, rising
    """The tokens that are said most; where fewer are said, those `known` and then the first others
    fill up."""
    said = Counter(token for chat in chats for token in chat.token_ids[chat.prompt_length :])
    most = [token for token, _ in said.most_common(size)]
    fill = dict.fromkeys([*known, *range(vocab)])
    others = (token for token in fill if token not in said)
    return torch.tensor(sorted([*most, *itertools.islice(others, size - len(most))]))


def go_on_from(path: Path, layer: DraftLayer) -> None:
    """Take the weights of a file; embedding and head stay the base's."""
    tensors = load_file(path)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            weight.copy_(tensors[name])


def save(layer: DraftLayer, out: Path) -> None:
    """In bf16, as the engine reads it (`tenora_engine.model.draft_layer`)."""
    tensors = {
        name: weight.detach().to(torch.bfloat16) for name, weight in layer.named_parameters()
    }
    save_file({**tensors, "vocabulary": layer.vocabulary}, out, metadata={"format": FORMAT})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a draft layer for a base model.")
    parser.add_argument("--model", required=True, type=Path, help="Hugging Face folder of the base")
    parser.add_argument("--out", required=True, type=Path, help="the file to write")
    parser.add_argument("--chats", type=int, default=2000, help="questions to make (default 2000)")
    parser.add_argument("--adapter", type=Path, help="PEFT folder: a layer for this adapter")
    parser.add_argument("--start", type=Path, help="a layer to go on from, such as the base's")
    parser.add_argument(
        "--questions", type=Path, help="JSON lines of {questions: [...]}, asked too"
    )
    parser.add_argument("--vocabulary", type=int, default=Recipe.vocabulary)
    parser.add_argument("--depth", type=int, default=Recipe.depth)
    parser.add_argument("--epochs", type=int, default=Recipe.epochs)
    parser.add_argument("--batch-tokens", type=int, default=Recipe.batch_tokens)
    parser.add_argument("--learning-rate", type=float, default=Recipe.learning_rate)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    names = [field.name for field in fields(Recipe)]
    recipe = Recipe(**{name: getattr(arguments, name) for name in names})
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model
        if arguments.adapter is not None:
            model = merged(model, arguments.adapter, Path(folder))
        given = [] if arguments.questions is None else read_questions(arguments.questions)
        chats = make_chats(model, arguments.chats, recipe.seed, arguments.threads, given)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    features = read_features(base, chats)
    kept = min(HELD_OUT, len(features) // 8)
    held_out, learned = features[:kept], features[kept:]
    start = arguments.start
    vocabulary = vocabulary_of(
        [each.chat for each in learned],
        recipe.vocabulary,
        base.config.vocab_size,
        [] if start is None else load_file(start)["vocabulary"].tolist(),
    )
    layer = DraftLayer(base, vocabulary)
    if start is not None:
        go_on_from(start, layer)
        print(f"before: {_rates(layer, held_out, recipe)}")
    train(layer, learned, recipe)
    save(layer, arguments.out)
    print(
        f"{len(learned)} chats; of {len(held_out)} held out the first tokens are foretold rightly "
        f"in {_rates(layer, held_out, recipe)}; written to {arguments.out}"
    )
    return 0


def _rates(layer: DraftLayer, held_out: list[Features], recipe: Recipe) -> str:
    return ", ".join(f"{rate:.3f}" for rate in accepted(layer, held_out, recipe))


if __name__ == "__main__":
    sys.exit(main())
