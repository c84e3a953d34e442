"""Choosing tokens from logits, one batched call a step."""
