"""Where a webhook may be sent: the address that a name stands for is looked up once, checked, and
is the one that is connected to, so that no name leads into the operator's own network."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from tenora_engine.printable import brief
from tenora_platform.public_addresses import Address, is_public
from tenora_platform.webhooks.resolver import Resolver

URL_LENGTH_MAX = 2000
_RESOLVE_S = 5.0


class BadAddressError(ValueError):
    """Nothing is sent there; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Connect to `address`, ask for `host`."""

    scheme: str
    host: str
    port: int
    address: Address
    path: str  # with its query

    @property
    def host_header(self) -> str:
        usual = self.port == {"https": 443, "http": 80}[self.scheme]
        named = f"[{self.host}]" if ":" in self.host else self.host
        return named if usual else f"{named}:{self.port}"

    @property
    def url(self) -> str:
        """With the address instead of the name."""
        at = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{self.scheme}://{at}:{self.port}{self.path}"


def parse(url: str, *, private: bool) -> tuple[str, str, int, str]:
    """(scheme, host, port, path with query). Raises BadAddressError; `private`: the operator lets
    webhooks into its own network, and without TLS there."""
    if len(url) > URL_LENGTH_MAX:
        raise BadAddressError(f"A URL can have at most {URL_LENGTH_MAX} characters.")
    if not url.isascii() or any(letter <= " " or letter == "\x7f" for letter in url):
        raise BadAddressError("A URL must consist of ASCII characters without spaces.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadAddressError(f"This is not a URL: {brief(error)}.") from None
    schemes = ("https", "http") if private else ("https",)
    if parts.scheme not in schemes or not parts.hostname:
        raise BadAddressError(
            f"A webhook's URL must start with {' or '.join(schemes)}:// and have a host."
        )
    if parts.username is not None or parts.password is not None:
        raise BadAddressError(
            "A webhook's URL cannot contain a user or password; verify the signature of "
            "each delivery instead."
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if port == 0:
        raise BadAddressError("Port 0 is not a valid port.")
    return parts.scheme, parts.hostname, port or {"https": 443, "http": 80}[parts.scheme], path


async def target_of(url: str, resolver: Resolver, owner: str, *, private: bool) -> Target:
    """Look the name up now, as one of the `owner`'s. Raises BadAddressError for an address that is
    not public, unless `private`, and for a name that nobody knows."""
    scheme, host, port, path = parse(url, private=private)
    try:
        async with asyncio.timeout(_RESOLVE_S):
            found = await resolver.addresses(owner, host, port)
    except TimeoutError:
        raise BadAddressError(
            f"{host} could not be resolved: no answer within {_RESOLVE_S:.0f} s."
        ) from None
    except (OSError, UnicodeError) as error:
        raise BadAddressError(f"{host} could not be resolved: {error}.") from None
    addresses = [ip_address(each) for each in found]
    allowed = addresses if private else [each for each in addresses if is_public(each)]
    if len(allowed) < len(addresses) or not allowed:
        # One that is not: whoever owns the name may be trying.
        raise BadAddressError(
            f"{host} resolves to {addresses[0] if addresses else 'nowhere'}. Webhooks are only "
            "sent to public addresses, unless the operator allows others."
        )
    return Target(scheme, host, port, allowed[0], path)
