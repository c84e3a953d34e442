"""Makes a command's options out of Settings, so that each setting is an option of `tenora serve`
and `tenora up`, with the same help, and none can be forgotten."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

from tenora_platform.settings import Settings


def with_settings(
    command: Callable[..., None],
    also: Mapping[str, str] | None = None,
    switches: Mapping[str, OptionInfo] | None = None,
) -> Callable[..., None]:
    """`command(settings)` as a function with one option for each field; `also` gives fields other
    names beside their own, and `switches` are arguments of the command that are no settings. What
    is not given comes from the environment (`TENORA_*`), else it is the default."""
    own = switches or {}

    def run(**given: str | bool | None) -> None:
        told = {name: given.pop(name) for name in own}
        chosen: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        command(Settings(**chosen), **told)

    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
        )
        for name, option in own.items()
    ]
    for name, field in Settings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        is_switch = field.annotation is bool
        option = typer.Option(
            f"{flag}/--no{flag[1:]}" if is_switch else flag,
            *((also or {}).get(name, "").split()),
            help=field.description,
            show_default=_shown(name, field.default),
            metavar=None if is_switch else name.rsplit("_", 1)[-1].upper(),
        )
        kind = Annotated[bool | None if is_switch else str | None, option]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    return run


def _shown(name: str, default: Any) -> str | bool:
    return False if default is None else f"{default}; or TENORA_{name.upper()}"
