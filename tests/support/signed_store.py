"""A store of objects that speaks enough of S3 over HTTP (GET with ranges, HEAD, PUT whole and in
parts, listings) and answers only what is signed with its secret, as AWS documents Signature Version
4."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>[^,]+), ?"
    r"SignedHeaders=(?P<names>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)


def signature(
    secret: str, method: str, target: str, headers: Mapping[str, str], names: str, scope: str
) -> str:
    """Of a request to `target` (path and query), by these of its headers. Hex."""
    url = urlsplit(target)
    query = sorted(
        (quote(k, "-_.~"), quote(v, "-_.~"))
        for k, v in parse_qsl(url.query, keep_blank_values=True)
    )
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
    """`objects` by "bucket/key", in the order in which they were written; `parts` of uploads that
    are not complete; `refused` counts what was not signed rightly."""

    def __init__(self, url: str, key: str, secret: str) -> None:
        self.url, self.key, self.secret = url, key, secret
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
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

        def do_PUT(self) -> None:
            self._answer(with_body=True)

        def do_POST(self) -> None:
            self._answer(with_body=True)

        def do_DELETE(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            sent = self.rfile.read(int(headers.get("content-length", 0)))
            status, body, more = _said(store, self.command, self.path, headers, sent)
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
    store: SignedStore, method: str, target: str, headers: Mapping[str, str], sent: bytes
) -> tuple[int, bytes, dict[str, str]]:
    if not store.accepts(method, target, headers):
        store.refused += 1
        return 403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>", {}
    store.answered += 1
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    name = unquote(url.path).lstrip("/")
    if method in ("PUT", "POST", "DELETE"):
        return _written(store, method, name, query, sent)
    if query.get("list-type") == "2":
        return 200, _listed(store, name.rstrip("/"), query), {}
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


def _written(
    store: SignedStore, method: str, name: str, query: Mapping[str, str], sent: bytes
) -> tuple[int, bytes, dict[str, str]]:
    upload = query.get("uploadId", "")
    if "uploads" in query:
        upload = f"upload-{len(store.parts)}"
        store.parts[upload] = {}
        made = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
        return 200, f"{made}</InitiateMultipartUploadResult>".encode(), {}
    if method == "DELETE":
        store.parts.pop(upload, None)
        if not upload:
            store.objects.pop(name, None)
        return 204, b"", {}
    if method == "POST":
        parts = store.parts.pop(upload)
        store.objects[name] = b"".join(parts[number] for number in sorted(parts))
        done = "<CompleteMultipartUploadResult><ETag>whole</ETag></CompleteMultipartUploadResult>"
        return 200, done.encode(), {}
    if upload:
        store.parts[upload][int(query["partNumber"])] = sent
    else:
        store.objects.pop(name, None)
        store.objects[name] = sent
    return 200, b"", {"etag": f'"{hashlib.md5(sent, usedforsecurity=False).hexdigest()}"'}


def _listed(store: SignedStore, bucket: str, query: Mapping[str, str]) -> bytes:
    begin = f"{bucket}/{query.get('prefix', '')}"
    found = "".join(
        f"<Contents><Key>{escape(name.partition('/')[2])}</Key><Size>{len(body)}</Size>"
        "<LastModified>2026-11-23T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
        for name, body in sorted(store.objects.items())
        if name.startswith(begin)
    )
    whole = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
    return whole.encode()
