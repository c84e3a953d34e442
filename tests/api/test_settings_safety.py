"""What the operator's settings can do wrong: empty values, short secrets, open folders, secrets in
error messages."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
import structlog
from obstore.exceptions import BaseError
from pydantic import SecretStr, ValidationError

from tenora_engine.printable import PrintableFormatter, brief, hide_secrets
from tenora_engine.remote_store import open_remote
from tenora_platform.admin_key import admin_key_hashes, make_admin_key
from tenora_platform.cli.checks import check_folders, open_to_others
from tenora_platform.cli.doctor import check_database, check_redis, show_findings
from tenora_platform.cli.errors import _explain
from tenora_platform.embedded.process import is_alive
from tenora_platform.logs import configure_logging
from tenora_platform.outages import log_failure
from tenora_platform.ownership import ForeignOwnerError
from tenora_platform.secret import SecretLostError, load_secret
from tenora_platform.serving import PlatformServer, connection_limits
from tenora_platform.settings import Settings

MARK = "Zanzibar"
LONG = f"{MARK}-{'x' * 40}"
HIDDEN = {
    "TENORA_ADMIN_KEY": LONG,
    "TENORA_SECRET": LONG,
    "TENORA_OIDC_CLIENT_SECRET": LONG,
    "TENORA_DATABASE_URL": (
        f"postgresql://someone:{MARK}@db.example/tenora?password={MARK}&sslpassword={MARK}"
    ),
    "TENORA_REDIS_URL": f"redis://:{MARK}@redis.example/0?password={MARK}",
    "TENORA_OBJECT_STORE": f"s3://{MARK}:{MARK}@bucket",
    "TENORA_CANARY_URL": f"http://someone:{MARK}@127.0.0.1:1",
    "AWS_ENDPOINT_URL": f"http://someone:{MARK}@127.0.0.1:1",
    "AWS_SECRET_ACCESS_KEY": MARK,
    "AWS_SESSION_TOKEN": MARK,
}
REFUSED = {name for name in HIDDEN if name.startswith("TENORA_")} - {
    "TENORA_OBJECT_STORE",  # a folder
    "TENORA_CANARY_URL",
}
IN_PASSWORDS = ("/", "@", "#", "?", "%", "%zz", "'", ":")
CHECKS = {"TENORA_DATABASE_URL": check_database, "TENORA_REDIS_URL": check_redis}


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
    assert MARK not in str(caught.value)
    assert getattr(Settings.model_validate({name: (MARK * 4)[:least]}), name) is not None


INVISIBLE = ["\u200b", "\u2060", "\ufeff", "\u202e", "\u00ad", " ", "\t", "\x00", "\u3000"]


@pytest.mark.parametrize("letter", INVISIBLE)
@pytest.mark.parametrize("name", ["admin_key", "secret"])
def test_what_cannot_be_seen_is_no_secret(name: str, letter: str, tmp_path: Path) -> None:
    for value in (letter * 64, f"short{letter * 64}", f"{letter * 64}short"):
        try:
            assert getattr(Settings.model_validate({name: value}), name) is None  # blank: not set
        except ValidationError as error:
            assert "at least" in str(error)  # noqa: PT017
    if letter != "\x00":
        (tmp_path / "secret").write_text(f"short{letter * 64}")
        with pytest.raises(SecretLostError):
            load_secret(tmp_path, None)


@pytest.mark.parametrize("letter", ["\u200b", "\u202e", "\n", "\x1b"])
def test_nothing_hides_in_an_admin_key(letter: str) -> None:
    with pytest.raises(ValidationError, match="none that is hidden"):
        Settings.model_validate({"admin_key": f"0123456789{letter}0123456789"})
    with pytest.raises(ValidationError, match="visible ASCII"):
        Settings.model_validate({"admin_key": "ключ" * 16})


def test_what_surrounds_an_admin_key_is_no_part_of_it() -> None:
    given = Settings.model_validate({"admin_key": " 0123 456789abcdef\n"}).admin_key
    assert given is not None
    assert given.get_secret_value() == "0123 456789abcdef"


SAFE = [
    "https://id.example",
    "https://id.example:8443/realms/a",
    "http://localhost",
    "http://localhost:8080/realms/a",
    "http://127.0.0.1/x",
    "http://[::1]:8000",
]
UNSAFE = [
    "http://localhost.evil.example",
    "http://localhost:80.evil.example",
    "http://127.0.0.1.evil.example/x",
    "http://127.0.0.1evil.example",
    "http://localhost@evil.example",
    "http://localhost:80@evil.example",
    "http://localhost\\@evil.example",
    "http://local\thost.evil.example",
    "http://[::1].evil.example",
    "http://[::1]evil.example",
    "http://evil.example/localhost",
    "https://",
    "https://:443",
    "https://id.example?x",
    "https://id.example#x",
    "https://id.example:port",
    "https://someone:secret@id.example",
    "ftp://localhost",
    "localhost",
]


@pytest.mark.parametrize("url", [*SAFE, *UNSAFE])
@pytest.mark.parametrize("name", ["oidc_issuer", "public_url"])
def test_only_a_host_of_this_machine_may_be_without_tls(name: str, url: str) -> None:
    given = {
        "oidc_issuer": "https://id.example",
        "oidc_client_id": "tenora",
        "public_url": "https://tenora.example",
        name: url,
    }
    if url in SAFE:
        assert getattr(Settings.model_validate(given), name) == url
        return
    with pytest.raises(ValidationError, match=r"must start with https|must be an address"):
        Settings.model_validate(given)


@pytest.mark.parametrize(
    ("proxies", "client"),
    [
        ("none", "127.0.0.1"),
        (" None ", "127.0.0.1"),
        ("", "192.0.2.7"),  # not set: proxies on this machine
        ("127.0.0.1", "192.0.2.7"),
        ("10.0.0.1", "127.0.0.1"),
    ],
)
async def test_no_proxy_is_trusted_where_none_is_named(proxies: str, client: str) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])

    settings = Settings.model_validate({"trusted_proxies": proxies})
    server = PlatformServer(app, settings, limits=connection_limits(settings), end_all=[])
    server.config.load()
    headers = [(b"x-forwarded-for", b"192.0.2.7")]
    scope = {"type": "http", "client": ("127.0.0.1", 1), "headers": headers}
    await server.config.loaded_app(scope, None, None)
    assert seen == [client]


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
    monkeypatch.setenv(name, "Quagga" if name in REFUSED else "no such value")
    problems: list[ValidationError] = []
    try:
        Settings()
    except ValidationError as error:
        problems.append(error)
    assert all(map(_explain, problems))
    said = capsys.readouterr().err
    assert MARK not in said
    assert "Quagga" not in said


@pytest.mark.parametrize("letter", IN_PASSWORDS)
@pytest.mark.parametrize("name", ["TENORA_DATABASE_URL", "TENORA_REDIS_URL"])
def test_no_letter_of_a_password_shows_it(
    letter: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The drivers split such URLs where nobody meant them to, and repeat a part. Either the setting
    is refused, or what does not work is told without it."""
    scheme = "redis" if name == "TENORA_REDIS_URL" else "postgresql"
    url = f"{scheme}://someone:{MARK}{letter}{MARK}@127.0.0.1:1/0?{'ssl' * (scheme != 'redis')}"
    url += f"password={MARK}"
    monkeypatch.setenv(name, url)
    refused: list[ValidationError] = []
    try:
        settings = Settings(secret=SecretStr(LONG), data_dir=Path("nowhere"))
        show_findings([CHECKS[name](settings)])
    except ValidationError as error:
        refused.append(error)
    assert all(map(_explain, refused))
    said = capsys.readouterr()
    assert "127.0.0.1" in said.out + said.err or "must be a URL" in said.err
    assert MARK not in said.out + said.err


@pytest.mark.parametrize(
    "text",
    [
        f"redis://:pa/{MARK}@h:6379/0",
        f"redis://:pa@{MARK}@h",
        f'Generic {{ url: "http://user:{MARK}@127.0.0.1:9/bucket/x" }}',
        f"host=h password={MARK} user=x",
        f"host=h password='a {MARK}' user=x",
        f"postgresql://u@h/db?sslmode=require&sslpassword={MARK}",
        f"https://s3.example/x?X-Amz-Signature={MARK}&X-Amz-Security-Token={MARK}",
        f"https://b.example/c?sv=1&sig={MARK}",
        f"AWS_SECRET_ACCESS_KEY={MARK} ACCOUNT_KEY={MARK}",
        f"two http://a:{MARK}@b and redis://:{MARK}@c",
    ],
)
def test_secrets_of_urls_are_hidden_in_any_text(text: str) -> None:
    assert MARK not in hide_secrets(text)
    assert MARK not in brief(text)
    record = logging.LogRecord("x", logging.ERROR, "", 0, text, None, None)
    assert MARK not in PrintableFormatter().format(record)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000/bot@prod",
        "http://[::1]:8000/bot@prod",
        "https://a.example/x, or write to b@c.example",
        "max_tokens=5 tokens=7 key=3",
        "postgresql://db.example:5432/tenora?sslmode=require",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert hide_secrets(text) == text


def test_no_log_shows_an_object_stores_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, HIDDEN[name])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    objects = open_remote("s3://bucket", timeout_s=1, tries=0)
    configure_logging("debug")
    try:
        with pytest.raises(BaseError) as caught:
            obstore.put(objects, "x", b"y")
        assert MARK in str(caught.value)  # the library's own words
        log = structlog.get_logger("store")
        log_failure(log, "the store failed", caught.value)
        log.error("and again", exc_info=caught.value)
        log.error("and as a value", error=caught.value)
    finally:
        structlog.reset_defaults()
    said = capsys.readouterr().err
    assert "127.0.0.1" in said
    assert MARK not in said


NO_ADDRESSES = [
    *("http://", "http://a b", "http://127.0.0.1:1/a b", " http://127.0.0.1:9"),
    *("http://127.0.0.1:9\n", "http://a%20b", "http://m\u00fcnchen", "http://a\\b", "http://{a}:9"),
    *('http://a/"', "http://a/<", "http://a|b", "http://a^b", "http://300.300.300.300"),
    *("http://[::1", "http://host:0", "http://host:99999"),
]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "https://s3.example.com", "http://[::1]:9"])
def test_an_address_of_a_store_is_taken(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    open_remote("s3://bucket", timeout_s=1)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
@pytest.mark.parametrize(
    "url", [f"http://u:{MARK}/x@127.0.0.1:9", MARK, "ftp://host", *NO_ADDRESSES]
)
def test_a_store_whose_address_is_no_url_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, url: str
) -> None:
    """The library panics when it is called, and what it raises then is no Exception."""
    monkeypatch.setenv(name, url)
    with pytest.raises(BaseError, match=name) as caught:
        open_remote("s3://bucket", timeout_s=1)
    assert MARK not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AWS_REGION", "eu-central-1 "),
        *(
            ("AWS_ENDPOINT_URL", f"http://{host}")
            for host in ("minio.0x1f:9000", "256.1.1.1.:1", "xn--:1", "a.1.:1")
        ),
        ("AWS_METADATA_ENDPOINT", "http://xn--:1"),
    ],
)
def test_what_makes_the_stores_library_panic_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    """Also where the address is one by its letters, and where it is another setting's."""
    monkeypatch.setenv(name, said)
    with pytest.raises(BaseError, match="AWS_"):
        open_remote("s3://bucket", timeout_s=1)


@pytest.mark.parametrize("said", ["http://127.0.0.1: 9000", "http://xn--:1"])
def test_a_start_with_a_wrong_address_of_a_store_ends_in_one_sentence(
    said: str, tmp_path: Path
) -> None:
    env = {
        **os.environ,
        "TENORA_DATA_DIR": str(tmp_path / "data"),
        "TENORA_OBJECT_STORE": "s3://bucket",
        "AWS_ENDPOINT": said,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tenora_platform.cli.main", "serve"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "The object store cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


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


def test_folders_above_are_private_whatever_the_umask(umask: None, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "srv" / "tenora" / "data")
    check_folders(settings)
    load_secret(settings.data_dir, None)
    for folder in (settings.data_dir, *settings.data_dir.parents[:2]):
        assert folder.stat().st_mode & 0o777 == 0o700, folder


def test_no_folder_is_made_with_what_the_umask_leaves() -> None:
    """`parents=True` and `makedirs` make the folders above by the umask alone."""
    root = Path(__file__).parents[2]
    found = [
        str(path)
        for part in ("platform", "engine")
        for path in (root / part).rglob("*.py")
        if "parents=True, " in (text := path.read_text())
        or "parents=True)" in text
        or "makedirs(" in text
    ]
    assert found == []


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a path another user's, who is not root."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 4321, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 4321)

    return give


def test_what_another_user_owns_is_refused(
    foreign: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They could replace it. One sentence says so, whichever it is."""
    secret = load_secret(tmp_path, None)
    settings = Settings(data_dir=tmp_path)
    make_admin_key(settings, secret)
    check_folders(settings)
    errors: list[ForeignOwnerError] = []
    for path, read in (
        (tmp_path / "secret", lambda: load_secret(tmp_path, None)),
        (tmp_path / "admin_keys", lambda: admin_key_hashes(settings, secret)),
        (tmp_path, lambda: check_folders(settings)),
    ):
        foreign(path)
        with pytest.raises(ForeignOwnerError, match=f"{path} belongs to the user") as caught:
            read()
        errors.append(caught.value)
    assert all(map(_explain, errors))
    assert capsys.readouterr().err.count("tenora: ") == 3


def test_a_number_that_is_somebody_elses_process_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refused)
    assert not is_alive(2)
