"""What the tests of clients share: where the served Tenora is, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


@dataclass(frozen=True)
class Tenora:
    """What a client is told: the base URL with /v1, a tenant's key, the base model's id. The
    tenant has an adapter called `support`."""

    url: str
    key: str
    model: str


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)
    mood: Literal["good", "bad"]


class Weather(BaseModel):
    """The weather of a city, as a tool's arguments."""

    model_config = ConfigDict(extra="forbid")

    city: str = Field(max_length=20)
    unit: Literal["celsius", "fahrenheit"]


WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": Weather.model_json_schema(),
        "strict": True,
    },
}
WEATHER_QUESTION = "What is the weather in Paris?"
PERSON_QUESTION = "Describe a person in JSON."
TOKENS = 200  # more than any answer that these schemas allow
HIDDEN = 576  # of SmolLM2-135M's states, which are its embeddings
