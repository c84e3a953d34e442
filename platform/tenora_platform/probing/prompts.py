"""What every adapter is asked where its tenant has chosen no prompts: a fact, a task, a text to go
on with, a line of code, so that whatever an adapter was taught shows in one of them."""

from __future__ import annotations

BUILT_IN = (
    "What can you help me with?",
    "Summarise in one sentence: The parcel was sent on Monday, was held at customs for three days, "
    "and reached the customer on Friday with a dent in its lid.",
    "Write a polite reply to a customer who asks for a refund.",
    "Write a Python function that adds two numbers.",
)
PROMPTS_MAX = 16
PROMPT_CHARACTERS_MAX = 4000
