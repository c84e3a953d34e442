"""What the operator's settings can do wrong: empty values, short secrets, open folders, secrets in
error messages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from tenora_platform.cli.checks import check_folders, open_to_others
from tenora_platform.cli.errors import _explain
from tenora_platform.embedded.process import is_alive
from tenora_platform.secret import SecretLostError, load_secret
from tenora_platform.settings import Settings

MARK = "Zanzibar"
LONG = f"{MARK}-{'x' * 40}"
HIDDEN = {
    "TENORA_ADMIN_KEY": LONG,
    "TENORA_SECRET": LONG,
    "TENORA_OIDC_CLIENT_SECRET": LONG,
    "TENORA_DATABASE_URL": f"postgresql://someone:{MARK}@db.example/tenora",
    "TENORA_REDIS_URL": f"redis://:{MARK}@redis.example/0",
}


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("value", ["", "  ", "\n"])
def test_every_empty_setting_is_absent(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for name in Settings.model_fields:
        monkeypatch.setenv(f"TENORA_{name.upper()}", value)
    assert Settings() == Settings.model_construct(**{})
    assert Settings(admin_key=SecretStr(value)).admin_key is None


@pytest.mark.parametrize(("name", "least"), [("admin_key", 16), ("secret", 32)])
def test_a_short_secret_is_refused_and_not_shown(name: str, least: int) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({name: (MARK * 4)[: least - 1]})
    assert f"at least {least} characters" in str(caught.value)
    assert getattr(Settings.model_validate({name: (MARK * 4)[:least]}), name) is not None


def test_a_truncated_secret_file_is_refused(tmp_path: Path) -> None:
    load_secret(tmp_path, None)
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    with pytest.raises(SecretLostError, match="only 16 of at least 32 characters"):
        load_secret(tmp_path, None)


@pytest.mark.parametrize(
    "wrong", [*Settings.model_fields, "oidc_issuer without the rest", "nothing known"]
)
def test_no_error_shows_a_secret(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever setting is wrong, the secrets themselves included."""
    for name, value in HIDDEN.items():
        monkeypatch.setenv(name, value)
    name = f"TENORA_{wrong.split()[0].upper()}"
    monkeypatch.setenv(name, "Quagga" if name in HIDDEN else "no such value")
    problems: list[ValidationError] = []
    try:
        Settings()
    except ValidationError as error:
        problems.append(error)
    assert all(map(_explain, problems))
    said = capsys.readouterr().err
    assert MARK not in said
    assert "Quagga" not in said


@pytest.mark.parametrize("url", [f"postgresql://u:{MARK}@[::1/x", f"nonsense {MARK}", MARK])
def test_no_start_shows_what_is_in_a_wrong_url(url: str, tmp_path: Path) -> None:
    for name in ("TENORA_DATABASE_URL", "TENORA_REDIS_URL"):
        env = {**os.environ, "TENORA_DATA_DIR": str(tmp_path / "data"), name: url}
        done = subprocess.run(
            [sys.executable, "-m", "tenora_platform.cli.main", "migrate"],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert MARK not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_the_data_directory_is_private_whatever_the_umask(umask: None, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    check_folders(settings)
    assert settings.data_dir.stat().st_mode & 0o777 == 0o700
    assert open_to_others(settings.data_dir) is None
    settings.data_dir.chmod(0o755)
    assert "other users can read" in (open_to_others(settings.data_dir) or "")
    settings.data_dir.chmod(0o777)
    assert "other users can write to" in (open_to_others(settings.data_dir) or "")


def test_a_number_that_is_somebody_elses_process_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refused)
    assert not is_alive(2)
