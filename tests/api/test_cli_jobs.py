"""The command that waits for a job: what it says meanwhile, and when it gives up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import typer

from tenora_platform.cli import jobs
from tenora_platform.cli.client import ApiClient
from tenora_platform.cli.errors import CliError

JOB = {"id": "job_1", "done": 0, "total": None, "error": None}
BEFORE = "2 jobs before it"


def job(state: str, waiting_for: str | None = None, **more: object) -> dict[str, Any]:
    return {**JOB, "state": state, "waiting_for": waiting_for, **more}


class Told:
    """An API that says one after the other; an error is raised."""

    def __init__(self, *said: dict[str, Any] | BaseException) -> None:
        self._said: Iterator[dict[str, Any] | BaseException] = iter(said)

    def call(self, method: str, path: str) -> dict[str, Any]:
        assert (method, path) == ("GET", "/jobs/job_1")
        said = next(self._said)
        if isinstance(said, BaseException):
            raise said
        return said


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is 30 s later, and nobody sleeps."""
    times = iter(range(0, 10_000, 30))
    monkeypatch.setattr("time.monotonic", lambda: float(next(times)))
    monkeypatch.setattr("time.sleep", lambda _: None)


def waited(*said: dict[str, Any] | BaseException) -> dict[str, Any]:
    api = cast(ApiClient, Told(*said))
    return jobs.finished(api, "/jobs", job("waiting"), "verification", "tenora audit verify")


def test_it_waits_behind_others_for_as_long_as_they_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    behind = [job("waiting", BEFORE)] * 20
    away = job("running", "a server: The database does not answer.")
    found = waited(*behind, job("waiting", "1 job before it"), away, away, job("done"))
    assert found["state"] == "done"
    assert capsys.readouterr().err.splitlines() == [
        "verification: waiting for 2 jobs before it",
        "verification: waiting for 1 job before it",
        "verification: waiting for a server: The database does not answer.",
    ]


def test_without_a_worker_it_gives_up() -> None:
    with pytest.raises(CliError, match="still waiting"):
        waited(*[job("waiting", jobs.A_WORKER)] * 20)


def test_between_two_jobs_is_not_without_a_worker(capsys: pytest.CaptureFixture[str]) -> None:
    both = [job("waiting", BEFORE), job("waiting", jobs.A_WORKER)] * 20
    found = waited(*both, job("done"))
    assert found["state"] == "done"
    assert "waiting for 2 jobs before it" in capsys.readouterr().err


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_what_is_not_done_is_said(state: str) -> None:
    with pytest.raises(CliError, match=f"is {state}: why"):
        waited(job(state, error="why"))


def test_interrupted_it_says_how_to_cancel(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        waited(job("running"), KeyboardInterrupt())
    assert ended.value.exit_code == 130
    assert "tenora audit verify --cancel job_1" in capsys.readouterr().err
