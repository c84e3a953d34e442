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

_PREFIXES = {
    "s3": "AWS_",
    "s3a": "AWS_",
    "gs": "GOOGLE_",
    "az": "AZURE_",
    "abfs": "AZURE_",
    "abfss": "AZURE_",
}
_FLAGS = ("allow_http", "allow_invalid_certificates", "http1_only", "http2_only")
_TEXTS = ("proxy_url", "proxy_ca_certificate", "proxy_excludes", "timeout", "connect_timeout")
_HTTP = re.compile(
    r"https?://(?:[!-~]*@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?"
    r"(?:/[^\s\"<>\\^`{|}\x00-\x1f\x7f-\U0010ffff]*)?"
)
_ENDPOINTS = ("ENDPOINT", "ENDPOINT_URL", "ENDPOINT_URL_S3", "STORAGE_ENDPOINT")


def open_remote(
    url: str, *, timeout_s: float, connect_s: float = 5.0, tries: int = 3
) -> ObjectStore:
    """A call has `timeout_s` for each try, and as long until it is not tried again. Raises
    obstore's BaseError for a URL that is not understood, be it in the environment."""
    from obstore.store import from_url

    _check_endpoints(url)
    options = {"timeout": f"{timeout_s:g}s", "connect_timeout": f"{connect_s:g}s"}
    return from_url(
        url,
        client_options={**options, **_said(url)},
        retry_config={"max_retries": tries, "retry_timeout": timedelta(seconds=timeout_s)},
    )


def _check_endpoints(url: str) -> None:
    """Raises obstore's GenericError for the address of a server that is no http URL: with one, a
    call of the library panics, by no Exception."""
    from obstore.exceptions import GenericError

    prefix = _PREFIXES.get(url.partition("://")[0], "")
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
    prefix = _PREFIXES.get(url.partition("://")[0], "")
    found = {name: os.environ.get(f"{prefix}{name.upper()}") for name in (*_FLAGS, *_TEXTS)}
    return {
        name: value.lower() in ("true", "1") if name in _FLAGS else value
        for name, value in found.items()
        if value
    }
