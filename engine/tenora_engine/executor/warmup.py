"""What samples may ask for, all at once: run before anybody waits, so that the device has loaded
every kernel that choosing a token takes. Needs torch only."""

from __future__ import annotations

import torch

from tenora_engine.executor.sampling import Asked, Changes, Draws, Entries


def ask_everything(num_samples: int, vocab: int, device: torch.device) -> Asked:
    """Penalties, bias, lists and a mask for each sample, and a draw with every filter. Over equal
    logits top_p reaches beyond the candidates, so that the whole vocabulary is sorted, too."""
    rows = torch.arange(num_samples, device=device)
    places = rows * vocab
    ones = torch.ones(num_samples, device=device)
    entries = Entries(places, ones)
    words = torch.full((num_samples, -(-vocab // 32)), -1, dtype=torch.int32, device=device)
    column = ones.unsqueeze(1)
    return Asked(
        Changes(entries, entries, entries, rows, places, places, rows, words),
        Draws(
            rows=rows,
            temperature=column,
            uniform=column / 2,
            top_k=torch.full_like(column, vocab, dtype=torch.int64),
            top_p=column * 0.999,
            min_p=column * 0.0,
            max_top_k=0,
        ),
        {},
        {0: 0},
    )
