"""A store of objects that speaks enough of S3 over HTTP (GET with ranges, HEAD) and answers only
what is signed with its secret, as AWS documents Signature Version 4."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qsl, quote, unquote, urlsplit

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>[^,]+), ?"
    r"SignedHeaders=(?P<names>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)


def signature(
    secret: str, method: str, target: str, headers: Mapping[str, str], names: str, scope: str
) -> str:
    """Of a request to `target` (path and query), by these of its headers. Hex."""
    url = urlsplit(target)
    query = sorted((quote(k, "-_.~"), quote(v, "-_.~")) for k, v in parse_qsl(url.query))
    canonical = [
        method,
        quote(unquote(url.path), "/-_.~"),
        "&".join(f"{key}={value}" for key, value in query),
        *(f"{name}:{' '.join(headers[name].split())}" for name in names.split(";")),
        "",
        names,
        headers["x-amz-content-sha256"],
    ]
    hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    signed = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, hashed])
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, signed.encode(), "sha256").hex()


class SignedStore:
    """`objects` by "bucket/key"; `refused` counts what was not signed rightly."""

    def __init__(self, url: str, key: str, secret: str) -> None:
        self.url, self.key, self.secret = url, key, secret
        self.objects: dict[str, bytes] = {}
        self.answered = self.refused = 0

    def accepts(self, method: str, target: str, headers: Mapping[str, str]) -> bool:
        found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        if found is None or found["key"] != self.key:
            return False
        names = found["names"]
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= {*names.split(";")}:
            return False
        right = signature(self.secret, method, target, headers, names, found["scope"])
        return hmac.compare_digest(right, found["signature"])


@contextmanager
def signed_store(key: str = "AKIDEXAMPLE", secret: str = "a secret") -> Iterator[SignedStore]:
    """One on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body, more = _said(store, self.command, self.path, headers)
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    store = SignedStore(f"http://127.0.0.1:{server.server_port}", key, secret)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _said(
    store: SignedStore, method: str, target: str, headers: Mapping[str, str]
) -> tuple[int, bytes, dict[str, str]]:
    if not store.accepts(method, target, headers):
        store.refused += 1
        return 403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>", {}
    store.answered += 1
    body = store.objects.get(unquote(urlsplit(target).path).lstrip("/"))
    if body is None:
        return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
    more = {
        "etag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"',
        "last-modified": "Mon, 23 Nov 2026 00:00:00 GMT",
    }
    wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
    if wanted is None:
        return 200, body, more
    begin, end = int(wanted[1]), min(int(wanted[2]), len(body) - 1)
    more["content-range"] = f"bytes {begin}-{end}/{len(body)}"
    return 206, body[begin : end + 1], more
