"""What one installation is called in servers that it shares with others: its schema and its two
login roles in PostgreSQL. It knows names, not connections."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TAKEN = frozenset({"public", "information_schema"})
"""Schemas that every database has."""


@dataclass(frozen=True, slots=True)
class Installation:
    """All that follows from TENORA_INSTALLATION. The first one of a server, `tenora`, lives in the
    schema `public`, where it was before there could be several."""

    name: str

    @property
    def app_role(self) -> str:
        """The role of requests, bound to one tenant's rows by row-level security."""
        return f"{self.name}_app"

    @property
    def admin_role(self) -> str:
        """The role of the operator's work, over all tenants."""
        return f"{self.name}_admin"

    @property
    def schema(self) -> str:
        return "public" if self == DEFAULT else self.name


DEFAULT = Installation("tenora")


def checked_name(name: str) -> str:
    """The name, if it can be written unquoted as schema and, with a suffix, as role. Raises
    ValueError."""
    if _NAME.fullmatch(name) is None or name in _TAKEN or name.startswith("pg_"):
        raise ValueError(
            f"{name!r} is not a valid name of an installation: at most 40 of a-z, 0-9 and _, "
            "starting with a letter; not public, information_schema, or anything that starts "
            "with pg_"
        )
    return name


InstallationName = Annotated[str, AfterValidator(checked_name)]
