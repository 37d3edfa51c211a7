"""Addresses in one form, so that texts of the same address are equal, and names as TLS has them.

What Java calls `2001:db8:0:0:0:0:0:5` is `2001:db8::5` to sockets here.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address


def canonical_address(text: str) -> str:
    """An address in its one form: IPv6 short, in lower case and without a zone (which names an
    interface of one node, and nothing that other nodes know), IPv4 inside IPv6 as IPv4. What is no
    address stays as it is.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return text
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address).partition("%")[0]


def network_of(host: str) -> str:
    """Whom an address counts for where each client has a share: of IPv6 the network of 64 bits, of
    which one client has all addresses.

    Args:
        host: an address in its one form.
    """
    if ":" not in host:
        return host
    try:
        return str(IPv6Network((host, 64), strict=False))
    except ValueError:
        return host


def tls_name(host: str) -> str:
    """The name of a host in SNI and in certificates: without the final dot that makes a name
    complete to a resolver (RFC 6066, section 3).
    """
    return host.removesuffix(".")
