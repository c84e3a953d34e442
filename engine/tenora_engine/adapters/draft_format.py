"""The file of a trained draft layer, of a base model or an adapter: its tensors and their shapes.
Pure; `model.draft_layer` reads it, the platform's intake checks it, `examples/train_draft.py` makes
it."""

from __future__ import annotations

FORMAT = "tenora-draft-layer-1"
"""What the file's metadata name as `format`."""

FILE = "draft_layer.safetensors"
"""What it is called beside an adapter's weights."""

VOCABULARY = "vocabulary"
"""The tensor of token ids; all others are of weights."""

VOCABULARY_MAX = 32768


def tensor_shapes(
    hidden: int,
    intermediate: int,
    query: int,  # heads * head_dim
    vocabulary: int,
) -> dict[str, tuple[int, ...]]:
    """Of a layer for a base model of these sizes; `vocabulary`: how many tokens it foretells."""
    return {
        "embedding_norm": (hidden,),
        "state_norm": (hidden,),
        "join": (hidden, 2 * hidden),
        "attention_norm": (hidden,),
        "query": (query, hidden),
        "out": (hidden, query),
        "mlp_norm": (hidden,),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
        "final_norm": (hidden,),
        VOCABULARY: (vocabulary,),
    }
