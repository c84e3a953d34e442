"""How a command fails: one readable line and a hint, exit code 1, never a traceback for what is no
defect of Tenora."""

from __future__ import annotations

from typing import Any

import httpx
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from tenora_engine.errors import EngineError
from tenora_platform.bootstrap import DatabaseSetupError
from tenora_platform.embedded.process import EmbeddedServerError


class CliError(Exception):
    """What went wrong, and what to do about it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class FriendlyGroup(TyperGroup):
    """Runs commands and turns foreseen errors into one line each."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (CliError, EmbeddedServerError, DatabaseSetupError, EngineError) as error:
            show_error(str(error), getattr(error, "hint", None))
        except ValidationError as error:
            for problem in error.errors():
                name = "-".join(str(part) for part in problem["loc"]).replace("_", "-")
                message = problem["msg"].removeprefix("Value error, ")
                show_error(f"--{name}: {message} (given: {problem['input']!r})")
        except httpx.HTTPError as error:
            show_error(
                f"The server cannot be reached: {error}",
                "Is it running? Its address is --url or TENORA_URL.",
            )
        raise typer.Exit(1)


def show_error(message: str, hint: str | None = None) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold red]tenora:[/] {escape(message)}")
    if hint:
        console.print(f"[dim]hint:[/] {escape(hint)}")
