"""What FastAPI does for each request before a route is asked."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts

from tenora_platform.app import application


@asynccontextmanager
async def nothing(_: FastAPI) -> AsyncIterator[None]:
    yield


def below(dependant: Dependant) -> Iterator[Dependant]:
    for each in dependant.dependencies:
        yield each
        yield from below(each)


def test_no_dependency_takes_a_thread() -> None:
    """FastAPI hands every one that is not async to a pool of threads: 0.2 ms of a processor each,
    for each request."""
    app = application(nothing)
    routes = [c.original_route for c in iter_route_contexts(app.routes)]
    dependants = [r.dependant for r in routes if isinstance(r, APIRoute)]
    assert len(dependants) > 30
    calls = {each.call for dependant in dependants for each in below(dependant)}
    plain = {
        call
        for call in (inspect.unwrap(each) for each in calls if each is not None)
        if not inspect.iscoroutinefunction(call) and not inspect.isasyncgenfunction(call)
    }
    assert not plain
