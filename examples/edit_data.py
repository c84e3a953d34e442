"""Writes the data of the `acme-edit` adapter: texts, one change to each, and what comes of it. The
texts are what the base model answers to questions that it made up (`draft_chats.py`). Knows no
training."""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path

from draft_chats import make_chats
from tenora_engine.text.processor import TextProcessor

SHORTEST, LONGEST = 120, 420  # characters of a text
WORD = re.compile(r"\b[A-Za-z]{5,}\b")
SENTENCE = re.compile(r"[^.!?]+[.!?](?=\s|$)")
LIST = re.compile(r"\n+(?=\d|[-*])")


def passage(answer: str) -> str | None:
    """Its first whole sentences, up to a list; None where they are too few."""
    sentences = SENTENCE.findall(LIST.split(answer)[0])
    while sentences and sum(map(len, sentences)) > LONGEST:
        sentences.pop()
    text = "".join(sentences).strip()
    return text if len(sentences) > 1 and len(text) >= SHORTEST else None


def replaced(text: str, word: str, other: str) -> tuple[str, str]:
    """What is asked, and what is answered."""
    asked = f'Replace "{word}" with "{other}" in this text:\n\n{text}'
    return asked, re.sub(rf"\b{word}\b", other, text)


def without(text: str, sentence: str) -> tuple[str, str]:
    asked = f'Remove the sentence that begins with "{" ".join(sentence.split()[:3])}":\n\n{text}'
    return asked, text.replace(sentence, "", 1).strip()


def unchanged(text: str) -> tuple[str, str]:
    return f"Give this text back without any change:\n\n{text}", text


def change(text: str, other: str, draw: random.Random) -> tuple[str, str]:
    """One of the three, with a word of the `other` text."""
    kind = draw.random()
    if kind < 0.2:
        return unchanged(text)
    if kind < 0.4:
        return without(text, draw.choice(SENTENCE.findall(text)))
    return replaced(text, draw.choice(WORD.findall(text)), draw.choice(WORD.findall(other)))


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the data of an adapter that edits texts.")
    parser.add_argument("--model", required=True, type=Path, help="Hugging Face folder of the base")
    parser.add_argument("--out", required=True, type=Path, help="JSON lines to train on")
    parser.add_argument("--held-out", required=True, type=Path, help="JSON lines to judge by")
    parser.add_argument("--texts", type=int, default=500, help="questions to make (default 500)")
    parser.add_argument("--kept", type=int, default=24, help="texts held out (default 24)")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    arguments = parser.parse_args()
    tokens = TextProcessor(arguments.model)
    chats = make_chats(arguments.model, arguments.texts, arguments.seed, arguments.threads)
    answers = (tokens.decode(each.token_ids[each.prompt_length :]) for each in chats)
    texts = [text for answer in answers if (text := passage(answer)) and WORD.search(text)]
    draw = random.Random(arguments.seed)
    pairs = [change(text, draw.choice(texts), draw) for text in texts]
    kept, learned = pairs[: arguments.kept], pairs[arguments.kept :]
    write(arguments.out, [{"questions": [asked], "answer": said} for asked, said in learned])
    write(arguments.held_out, [{"question": asked, "expect": [said]} for asked, said in kept])
    print(f"{len(learned)} texts to {arguments.out}, {len(kept)} to {arguments.held_out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
