"""How a command fails: one readable line and a hint, exit code 1, never a traceback for what is no
defect of Tenora."""

from __future__ import annotations

import errno
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from tenora_engine.errors import EngineError
from tenora_engine.printable import hide_secrets
from tenora_platform.cli.output import terminal


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
        except Exception as error:
            if not _explain(error):
                raise
        raise typer.Exit(1)


_OF_THE_MACHINE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.EIO,
    }
)
"""Errors that a disk, a mount or a permission makes, and no mistake of ours."""


def plain_words(error: OSError) -> str:
    """Return the system's words, such as: read-only file system."""
    what = error.strerror or type(error).__name__
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        what = "a file exists in its place"
    return what[:1].lower() + what[1:]


def _explain(error: Exception) -> bool:
    """Whether it was foreseen, and is now shown."""
    # Imported late: a supervisor, which lives as long as the platform, has use for none of them.
    import httpx
    from obstore.exceptions import BaseError
    from pydantic import ValidationError

    from tenora_platform.backup.place import BackupError
    from tenora_platform.bootstrap import DatabaseSetupError
    from tenora_platform.embedded.process import EmbeddedServerError
    from tenora_platform.marks import TakenError
    from tenora_platform.outages import first_line
    from tenora_platform.ownership import ForeignOwnerError
    from tenora_platform.secret import SecretLostError
    from tenora_platform.validation import in_words

    foreseen = (
        CliError,
        BackupError,
        EmbeddedServerError,
        DatabaseSetupError,
        TakenError,
        SecretLostError,
        ForeignOwnerError,
        EngineError,
    )
    if isinstance(error, foreseen):
        show_error(str(error), getattr(error, "hint", None))
    elif isinstance(error, BaseError):
        show_error(f"The object store cannot be used: {first_line(error)}")
    elif isinstance(error, ValidationError):
        for problem in error.errors():
            name = "-".join(str(part) for part in problem["loc"]).replace("_", "-")
            message = in_words(problem).rstrip(".")
            show_error(f"--{name}: {message}." if name else f"{message}.")
    elif isinstance(error, httpx.HTTPError):
        hint = "Is it running? Its address is --url or TENORA_URL."
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            hint = (
                "If your own authority signed its certificate, set SSL_CERT_FILE to the file with "
                "the authority's certificate."
            )
        show_error(f"The server cannot be reached: {error}", hint)
    elif isinstance(error, OSError) and error.errno in _OF_THE_MACHINE and error.filename:
        show_error(f"{error.filename} cannot be used: {plain_words(error)}.")
    else:
        return False
    return True


def show_error(message: str, hint: str | None = None) -> None:
    console = terminal(stderr=True)
    console.print(f"[bold red]tenora:[/] {escape(hide_secrets(message))}")
    if hint:
        console.print(f"[dim]hint:[/] {escape(hide_secrets(hint))}")
