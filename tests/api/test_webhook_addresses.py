"""Where webhooks go, and where not: whatever is written, nothing is connected to that is not of the
public internet."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.webhooks.addresses import BadAddressError, is_public, parse, target_of
from tenora_platform.webhooks.resolver import Resolver

INSIDE = [
    "127.0.0.1",
    "127.9.9.9",
    "10.0.0.1",
    "172.16.3.4",
    "192.168.1.1",
    "169.254.169.254",  # the clouds' metadata
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "::1",
    "::",
    "fe80::1",
    "fec0::1",
    "fc00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.1.2.3",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2001:db8::1",
]


@pytest.mark.parametrize("address", INSIDE)
def test_what_is_inside(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "64:ff9b::101:101"])
def test_what_is_outside(address: str) -> None:
    assert is_public(ip_address(address))


@given(st.ip_addresses(v=4))
def test_an_address_is_what_it_is_however_it_is_written(address: Any) -> None:
    for written in (f"::ffff:{address}", f"64:ff9b::{address}"):
        assert is_public(ip_address(written)) == is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "https://",
        "https:///path",
        "https://user@example.com/",
        "https://user:secret@example.com/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://exa mple.com/",
        "https://example.com/\r\nx: y",
        "https://exämple.com/",
        "https://[::1/",
        "file:///etc/passwd",
        "https://example.com/" + "x" * 2000,
    ],
)
def test_what_is_no_url_of_ours(url: str) -> None:
    with pytest.raises(BadAddressError):
        parse(url, private=False)


def resolver(*addresses: str) -> Resolver:
    """Knows every name, by these addresses."""
    return Resolver(lambda _, port: [(0, 0, 6, "", (each, port)) for each in addresses])


@pytest.mark.parametrize("address", INSIDE)
async def test_a_name_that_leads_inside_is_refused(address: str) -> None:
    with pytest.raises(BadAddressError, match="only sent to public addresses"):
        await target_of("https://rebound.example/", resolver(address), "ten", private=False)


async def test_one_address_inside_is_enough() -> None:
    both = resolver("1.1.1.1", "10.0.0.1")
    with pytest.raises(BadAddressError):
        await target_of("https://rebound.example/", both, "ten", private=False)
    target = await target_of("http://inside.example:8080/a?b=c", both, "ten", private=True)
    assert (target.url, target.host_header) == (
        "http://1.1.1.1:8080/a?b=c",
        "inside.example:8080",
    )


async def test_the_address_that_was_checked_is_the_one_in_the_url() -> None:
    known = resolver("2606:4700::1111")
    target = await target_of("https://hooks.example/x", known, "ten", private=False)
    assert target.url == "https://[2606:4700::1111]:443/x"
    assert (target.host, target.host_header) == ("hooks.example", "hooks.example")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "0x7f.1", "2130706433", "localhost"])
async def test_addresses_in_disguise(host: str) -> None:
    """As the system's own resolver reads them."""
    with pytest.raises(BadAddressError):
        await target_of(f"https://{host}/", Resolver(), "ten", private=False)
