"""Where webhooks go, and where not: whatever is written, nothing is connected to that is not of the
public internet."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.public_addresses import is_public
from tenora_platform.webhooks.addresses import BadAddressError, parse, target_of
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
    "192.0.0.1",
    "192.0.0.9",
    "192.0.0.192",  # Oracle's metadata
    "168.63.129.16",  # Azure's host agent
    "100.100.100.200",  # Alibaba's metadata
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.7",
    "240.0.0.1",
    "fd00:ec2::254",  # Amazon's metadata
    "64:ff9b::a83f:8110",  # 168.63.129.16 by the well-known translator
    "64:ff9b::c000:1",
    "64:ff9b:1::808:808",  # by a local one
    "64:ff9b:1:2::1",
    "64:ff9b:1:ffff:ffff:ffff:808:808",
    "::ffff:168.63.129.16",
    "::ffff:192.0.0.192",
    "::10.0.0.1",  # compatible
    "::8.8.8.8",
    "::ffff:0:10.0.0.1",  # translated
    "::ffff:0:8.8.8.8",
    "2002:a00:1::1",
    "2002:a83f:8110::",
    "2001:0:808:808::f5ff:fffe",  # Teredo: the client 10.0.0.1
    "2001:0:a00:1::f7f7:f7f7",  # Teredo: the server 10.0.0.1
    "2001:470:1:2:0:5efe:a00:1",  # ISATAP
    "2001:470:1:2:200:5efe:a9fe:a9fe",
    "2001:2::1",
    "2001:10::1",
    "3fff::1",
    "5f00::1",
    "100::1",
    "4000::1",
]

OUTSIDE = [
    "1.1.1.1",
    "8.8.8.8",
    "168.63.129.17",
    "192.0.1.1",
    "192.88.98.255",
    "2606:4700::1111",
    "2a00:1450:4001::200e",
    "2620:4f:8000::1",
    "2001:200::1",
    "64:ff9b::101:101",
    "::ffff:8.8.8.8",
    "2002:808:808::1",
    "2001:0:808:808::f7f7:f7f7",
    "2001:470:1:2:200:5efe:808:808",
]


@pytest.mark.parametrize("address", INSIDE)
def test_what_is_inside(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", OUTSIDE)
def test_what_is_outside(address: str) -> None:
    assert is_public(ip_address(address))


@given(st.ip_addresses(v=4))
def test_an_address_is_what_it_is_however_it_is_written(address: Any) -> None:
    high, low = divmod(int(address), 2**16)
    for written in (f"::ffff:{address}", f"64:ff9b::{address}", f"2002:{high:x}:{low:x}::1"):
        assert is_public(ip_address(written)) == is_public(address)
    client = f"{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}"
    assert is_public(ip_address(f"2001:0:808:808::{client}")) == is_public(address)
    assert is_public(ip_address(f"2001:470::5efe:{high:x}:{low:x}")) == is_public(address)
    for local in (f"::{address}", f"::ffff:0:{address}", f"64:ff9b:1::{address}"):
        assert not is_public(ip_address(local))


@given(st.ip_addresses())
def test_nothing_is_public_that_the_standard_library_knows_as_special(address: Any) -> None:
    if is_public(address) and address.version == 4:
        assert address.is_global
        assert not any((address.is_private, address.is_multicast, address.is_reserved))


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
