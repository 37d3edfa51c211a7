"""Addresses in one form, however they are written."""

from __future__ import annotations

import random

import pytest

from moldau.addresses import canonical_address, network_of


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:0:0:0:0:5", "2001:db8::5"),
        ("2001:DB8::0005", "2001:db8::5"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:FFFF:A00:1", "10.0.0.1"),
        ("fe80:0:0:0:0:0:0:1%eth0", "fe80::1"),
        ("fe80::1%2", "fe80::1"),
        ("::1.2.3.4", "::102:304"),
    ],
)
def test_one_form_of_each_address(text: str, canonical: str) -> None:
    assert canonical_address(text) == canonical
    assert canonical_address(canonical) == canonical


@pytest.mark.parametrize(
    "text",
    ["", "*", "a.example", "10.0.0.0/8", "2001:db8::/32", "[::1]", "10.0.0.1%eth0", "fe80::1%",
     "010.0.0.1", " ::1", "::1\0", "1:2:3", "%", "\u0661.1.1.1", ":" * 30_000],
)  # fmt: skip
def test_what_is_no_address_stays_as_it_is(text: str) -> None:
    assert canonical_address(text) == text


@pytest.mark.parametrize("seed", range(20))
def test_the_form_of_java_is_the_form_of_sockets(seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    groups = [dice.choice((0, 0, dice.getrandbits(16))) for _ in range(7)] + [1]
    of_java = ":".join(f"{each:x}" for each in groups)
    in_full = ":".join(f"{each:04X}" for each in groups)
    assert canonical_address(of_java) == canonical_address(in_full)
    assert canonical_address(of_java) != canonical_address(of_java[:-1] + "0")


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::5", "2001:db8::/64"),
        ("2001:db8::5:0:0:1", "2001:db8::/64"),
        ("::1", "::/64"),
        ("no:address", "no:address"),
    ],
)
def test_a_client_has_a_network_of_ipv6(host: str, network: str) -> None:
    assert network_of(host) == network
