"""Which addresses are of the internet at large, by IANA's registries of special-purpose addresses.
Knows neither names nor what is sent there."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

_INSIDE_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",  # between carriers and customers; Alibaba's metadata is in it
            "127.0.0.0/8",
            "169.254.0.0/16",  # link-local: most clouds' metadata
            "172.16.0.0/12",
            "192.0.0.0/24",  # IETF protocol assignments; Oracle's metadata is in it
            "192.0.2.0/24",
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "168.63.129.16/32",  # Azure's host agent and DNS, in no registry
        ),
    )
)

_UNICAST = IPv6Network("2000::/3")
"""All that is global is in it; so `::/96`, `::ffff:0:0:0/96` (translated IPv4), `64:ff9b:1::/48`
(local translators), `100::/64`, `5f00::/16`, `fc00::/7`, `fe80::/10`, `fec0::/10` and `ff00::/8`
are not."""

_TEREDO = IPv6Network("2001::/32")
_INSIDE_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # IETF protocol assignments; Teredo is judged before
            "2001:db8::/32",
            "3fff::/20",
        ),
    )
)


def _low(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)


def _of_6to4(address: IPv6Address) -> tuple[IPv4Address, ...]:
    return (IPv4Address(int(address) >> 80 & 0xFFFFFFFF),)


def _of_teredo(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """Its server, and the client behind it, whose bits are turned over."""
    return IPv4Address(int(address) >> 64 & 0xFFFFFFFF), IPv4Address(~int(address) & 0xFFFFFFFF)


_CARRIERS: tuple[tuple[IPv6Network, Callable[[IPv6Address], tuple[IPv4Address, ...]]], ...] = (
    (IPv6Network("::ffff:0:0/96"), lambda address: (_low(address),)),  # mapped
    (IPv6Network("64:ff9b::/96"), lambda address: (_low(address),)),  # translated (NAT64)
    (IPv6Network("2002::/16"), _of_6to4),
    (_TEREDO, _of_teredo),
)
"""IPv6 addresses that stand for IPv4 ones, and for which."""

_ISATAP = (0x00005EFE, 0x02005EFE)
"""The upper half of an interface identifier whose lower half is an IPv4 address (RFC 5214)."""


def is_public(address: Address) -> bool:
    """Whether it is of the internet at large. An IPv4 address inside an IPv6 one counts as what it
    is, however it is written."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in each for each in _INSIDE_4)
    for network, carried in _CARRIERS:
        if address in network:
            return all(map(is_public, carried(address)))
    if address not in _UNICAST or any(address in each for each in _INSIDE_6):
        return False
    if int(address) >> 32 & 0xFFFFFFFF in _ISATAP and not is_public(_low(address)):
        return False
    return address.is_global
