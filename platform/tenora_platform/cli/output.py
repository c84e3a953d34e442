"""What commands write to a terminal. Names and errors in it may be a tenant's text, so no character
passes that moves a cursor, turns the direction of a line or hides; nothing else in the commands
writes there."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from tenora_engine.printable import hide_secrets, printable, printable_lines


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """A message, of several lines where it has some; one to standard error has no secrets."""
    if err:
        text = hide_secrets(text)
    end = "\n" if nl or text.endswith("\n") else ""
    typer.echo(printable_lines(text) + end, err=err, nl=False)


def pass_on(text: str) -> None:
    """A piece of a document, as it is into a file or another command."""
    if sys.stdout.isatty():
        text = "\n".join(map(printable, text.split("\n")))
    sys.stdout.write(text)


class PrintableConsole(Console):
    """Rich's, of printable text. Its own colours and bars are made later, and are not text."""

    def render_str(self, text: str, **more: Any) -> Text:
        """So that what is measured is what is shown."""
        return super().render_str(_lines(text), **more)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Whatever was no plain string."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(_lines(text), style)


def terminal(*, stderr: bool = False, wraps: bool = False) -> Console:
    """For what has colours, tables or bars. Lines are not folded to the terminal unless it
    `wraps`, so that keys stay whole."""
    return PrintableConsole(stderr=stderr, highlight=False, soft_wrap=not wraps)


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
