"""What ended a choice, in the words of SGLang and of vLLM."""

from __future__ import annotations

from tenora_platform.inference.generation import Piece
from tenora_platform.inference.schemas import Stopped
from tenora_platform.inference.session import InferenceSession


def stopped_by(session: InferenceSession, piece: Piece) -> Stopped:
    """Of a piece that is not its choice's last, or that a maximum ended: nothing."""
    matched = piece.matched_stop if piece.stop_token_id is None else piece.stop_token_id
    is_own_end = piece.stop_token_id in session.state.engine.model.eos_token_ids
    return Stopped(matched_stop=matched, stop_reason=None if is_own_end else matched)
