"""Sends one webhook: to the address that was checked, within a time, reading no more of the answer
than is kept of it, and keeping nothing of it for the next. It knows no rows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx

from tenora_engine.printable import brief, printable
from tenora_platform.webhooks.addresses import BadAddressError, target_of
from tenora_platform.webhooks.resolver import Resolver

TIMEOUT_S = 20.0  # in all; the specification recommends 15 to 30
ANSWER_BYTES_MAX = 1000
_RETRY_AFTER_S_MAX = 86_400


@dataclass(frozen=True, slots=True)
class Outcome:
    """`status` None: there was no answer; `error` says why it is no success, None: it is one.
    `is_final`: another attempt would end as this one did."""

    status: int | None
    error: str | None
    retry_after_s: float | None = None
    is_final: bool = False

    @property
    def delivered(self) -> bool:
        return self.error is None

    @property
    def gone(self) -> bool:
        """The endpoint wants no more of it."""
        return self.status == 410


class Sender:
    """One of a process; each delivery has a client of its own, for what a client keeps (cookies,
    connections, credentials) would go from one tenant's receiver to another's. Follows no
    redirects and no proxies of the environment."""

    def __init__(self, *, private: bool, resolver: Resolver | None = None) -> None:
        self._private = private
        self._resolver = resolver or Resolver()
        # Reading the certificates takes 20 ms. A context keeps no sessions: Python's clients resume
        # one only if they are given it.
        self._tls = httpx.create_ssl_context(trust_env=False)

    async def send(self, url: str, headers: dict[str, str], body: bytes, *, owner: str) -> Outcome:
        """Never raises for what the other side does. `owner`: the endpoint's tenant."""
        try:
            async with asyncio.timeout(TIMEOUT_S), self._client() as http:
                return await self._send(http, owner, url, headers, body)
        except BadAddressError as error:
            return Outcome(None, str(error))
        except TimeoutError:
            return Outcome(None, f"no answer within {TIMEOUT_S:.0f} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return Outcome(None, brief(f"{type(error).__name__}: {error}"))

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=0)
        return httpx.AsyncClient(
            verify=self._tls,
            timeout=TIMEOUT_S,
            limits=limits,
            trust_env=False,
            follow_redirects=False,
        )

    async def _send(
        self, http: httpx.AsyncClient, owner: str, url: str, headers: dict[str, str], body: bytes
    ) -> Outcome:
        target = await target_of(url, self._resolver, owner, private=self._private)
        request = http.build_request(
            "POST",
            target.url,
            content=body,
            headers={
                **headers,
                "host": target.host_header,
                "content-type": "application/json",
                "user-agent": "Tenora-Webhooks/1",
                "accept-encoding": "identity",
            },
            extensions={"sni_hostname": target.host},  # TLS checks the name, not the address
        )
        answer = await http.send(request, stream=True)
        try:
            start = b""
            if not answer.is_success:
                async for chunk in answer.aiter_raw():
                    start += chunk
                    if len(start) >= ANSWER_BYTES_MAX:
                        break
            return _outcome(answer, start[:ANSWER_BYTES_MAX])
        finally:
            await answer.aclose()


def _outcome(answer: httpx.Response, start: bytes) -> Outcome:
    if answer.is_success:
        return Outcome(answer.status_code, None)
    text = printable(start.decode(errors="replace"))[:ANSWER_BYTES_MAX]
    after = answer.headers.get("retry-after", "")
    wait_s = min(float(after), _RETRY_AFTER_S_MAX) if after.isascii() and after.isdigit() else None
    return Outcome(answer.status_code, f"status {answer.status_code}: {text}".strip(), wait_s)
