"""Opens an object store that is reached over a network, with an end for every call. It knows the
environment's names for its options, not what is kept there."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PREFIXES = {
    "s3": "AWS_",
    "s3a": "AWS_",
    "gs": "GOOGLE_",
    "az": "AZURE_",
    "abfs": "AZURE_",
    "abfss": "AZURE_",
}
"""Of the environment's names, by the scheme of a URL."""
_FLAGS = ("allow_http", "allow_invalid_certificates", "http1_only", "http2_only")
_TEXTS = ("proxy_url", "proxy_ca_certificate", "proxy_excludes", "timeout", "connect_timeout")
_HTTP = re.compile(
    r"https?://(?:[!-~]*@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?"
    r"(?:/[^\s\"<>\\^`{|}\x00-\x1f\x7f-\U0010ffff]*)?"
)
_TRIAL_S = 0.001
_ENDPOINTS = ("ENDPOINT", "ENDPOINT_URL", "ENDPOINT_URL_S3", "STORAGE_ENDPOINT")


def open_remote(
    url: str, *, timeout_s: float, connect_s: float = 5.0, tries: int = 3
) -> ObjectStore:
    """A call has `timeout_s` for each try, and as long until it is not tried again. Raises
    obstore's BaseError for a URL that is not understood, be it in the environment."""
    _check_endpoints(url)
    said = _said(url)
    if url.partition("://")[0] in PREFIXES:
        _try_settings(url, said)
    return _opened(url, {**_times(timeout_s, connect_s), **said}, tries, timeout_s)


def _opened(
    url: str, options: Any, tries: int, retry_s: float, *, skip_signature: bool = False
) -> ObjectStore:
    from obstore.store import from_url

    retries: Any = {"max_retries": tries, "retry_timeout": timedelta(seconds=retry_s)}
    more: Any = {"skip_signature": True} if skip_signature else {}
    return from_url(url, client_options=options, retry_config=retries, **more)


def _times(timeout_s: float, connect_s: float) -> dict[str, str]:
    return {"timeout": f"{timeout_s:g}s", "connect_timeout": f"{connect_s:g}s"}


def _try_settings(url: str, said: Any) -> None:
    """Make calls that reach nobody: the proxy is none. With a region, an endpoint or an address of
    credentials that is none, a call of the library panics before it is sent: by no Exception, each
    time. Raises obstore's GenericError then."""
    import obstore
    from obstore.exceptions import BaseError, GenericError

    options = {**said, **_times(_TRIAL_S, _TRIAL_S), "proxy_url": "http://127.0.0.1:9"}
    options.pop("proxy_excludes", None)
    for unsigned in (True, False):  # where credentials are to be fetched first, that is all it does
        trial = _opened(url, options, 0, _TRIAL_S, skip_signature=unsigned)
        try:
            obstore.head(trial, "tenora-trial")
        except (BaseError, OSError):
            continue
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            prefix = PREFIXES.get(url.partition("://")[0], "")
            raise GenericError(
                "an address or a region among its settings is not valid; correct the URL of the "
                f"object store and the {prefix}... variables of the environment"
            ) from None


def _check_endpoints(url: str) -> None:
    """Raises obstore's GenericError, with its name, for the address of a server that is no http
    URL."""
    from obstore.exceptions import GenericError

    prefix = PREFIXES.get(url.partition("://")[0], "")
    for name in (prefix + each for each in _ENDPOINTS):
        said = os.environ.get(name)
        if said and not _is_http(said):
            raise GenericError(
                f"{name} is not an http or https URL with a host; write a user name or a "
                "password in it percent-encoded"
            )


def _is_http(url: str) -> bool:
    """Whether the library reads it as one: it strips nothing, and knows no odd hosts."""
    if not _HTTP.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if host.rpartition(".")[2].isdigit() or ":" in host:
            ip_address(host)
    except ValueError:
        return False
    return bool(host) and port != 0


def _said(url: str) -> Any:
    """Return the connection options that the environment names, such as `AWS_ALLOW_HTTP`: obstore
    does not read them where it is given other options."""
    prefix = PREFIXES.get(url.partition("://")[0], "")
    found = {name: os.environ.get(f"{prefix}{name.upper()}") for name in (*_FLAGS, *_TEXTS)}
    return {
        name: value.lower() in ("true", "1") if name in _FLAGS else value
        for name, value in found.items()
        if value
    }
