"""Whether a request may come in at all, by its target and headers: rebound names, other sites,
tricks with paths.

Must not know routes, sessions or sockets: plain functions of text. Invariants: a target has one
spelling; a name that is not the console's is never answered; what a browser sends because another
site asked it to changes nothing and reads nothing.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from moldau.addresses import canonical_address
from moldau.console.problems import Problem

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
REQUEST_TOKEN: Final = "X-Moldau-Request-Token"
MAX_TARGET_CHARACTERS: Final = 8_000
MAX_SEGMENTS: Final = 16
MAX_CREDENTIALS_CHARACTERS: Final = 64 * 1024

_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,255}))(?::(\d{1,5}))?")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_DOTS: Final = frozenset({b".", b".."})
_OF_BROWSERS: Final = ("Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Cookie", "Referer")
_OWN_SITE: Final = ("same-origin", "none")
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


class Host(NamedTuple):
    """What the client calls the console; the port is "" where it is the scheme's."""

    name: str
    port: str


class Target(NamedTuple):
    """What is asked for.

    Attributes:
        segments: of the path, as they came; `/` has none.
        has_end: whether a slash ends the path.
        query: without the question mark.
    """

    segments: tuple[str, ...]
    has_end: bool
    query: str


def target_of(raw: str) -> Target:
    """The target of a request. Raises: Problem: it is spelled in a way that none of ours is."""
    if len(raw) > MAX_TARGET_CHARACTERS:
        raise Problem(414, "the target is too long")
    path, _, query = raw.partition("?")
    if not path.startswith("/") or not raw.isascii() or "\\" in path or "#" in raw:
        raise Problem(400, "the target is no path of this server")
    if _ESCAPE.search(raw):
        raise Problem(400, "a percent sign stands before two hexadecimal digits")
    if path == "/":
        return Target((), True, query)
    has_end = path.endswith("/")
    segments = tuple(path[1:-1].split("/") if has_end else path[1:].split("/"))
    if len(segments) > MAX_SEGMENTS or "" in segments:
        raise Problem(404, "no path has so many, or empty, segments")
    if any(unquote_to_bytes(each) in _DOTS for each in segments):
        raise Problem(404, "no path goes up")
    return Target(segments, has_end, query)


def decoded(segment: str) -> str:
    """The text of a segment that names something. Raises: Problem: it is no UTF-8."""
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise Problem(400, "a name in the path is no UTF-8") from None


def host_of(value: str | None) -> Host:
    """What the header `Host` says. Raises: Problem: it says nothing usable."""
    found = None if value is None else _HOST.fullmatch(value)
    if found is None:
        raise Problem(400, "the header Host is needed: NAME, or NAME:PORT")
    address, name, port = found.groups()
    return Host(canonical_address(address or name.lower().removesuffix(".")), port or "")


def cookie_name(host: Host) -> str:
    """The session's cookie. Browsers keep cookies of a host for all of its ports: consoles on
    several of them take different names.
    """
    return f"moldau-session-{host.port}" if host.port else "moldau-session"


def check_host(host: Host, names: Collection[str], local_address: str) -> None:
    """Refuse a name that is not the console's: a foreign page may have had it lead here.

    Args:
        names: what the listener is called, in lower case.
        local_address: where the connection came in. An address cannot be rebound, a name can.

    Raises:
        Problem
    """
    if host.name in names or host.name == canonical_address(local_address):
        return
    raise Problem(421, f"this console is not called {host.name}")


def is_of_browser(headers: Mapping[str, str]) -> bool:
    """Whether a request has a header that only browsers send by themselves."""
    return any(name in headers for name in _OF_BROWSERS)


def check_site(method: str, headers: Mapping[str, str], host: Host, *, is_page: bool) -> None:
    """Refuse what a browser sends for another site.

    Args:
        is_page: whether the page itself is asked for, to which links of others may lead.

    Raises:
        Problem
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None and site not in _OWN_SITE:
        is_link = method in SAFE_METHODS and headers.get("Sec-Fetch-Mode") == "navigate"
        if not (is_page and is_link):
            raise Problem(403, "a page of another site may not ask for this")
    origin = headers.get("Origin")
    if origin is None and method not in SAFE_METHODS:
        origin = headers.get("Referer")
    if origin is not None and not _is_own(origin, host):
        raise Problem(403, "a page of another site may not ask for this")


def _is_own(origin: str, host: Host) -> bool:
    """Whether a page's origin is this server. The scheme does not count: what ends TLS may stand
    before it.
    """
    try:
        parts = urlsplit(origin)
        name, port = parts.hostname, parts.port
    except ValueError:
        return False
    if parts.scheme not in _DEFAULT_PORTS or name is None:
        return False
    default = _DEFAULT_PORTS[parts.scheme]
    is_same_port = (str(port or default)) == (host.port or default)
    return canonical_address(name.removesuffix(".")) == host.name and is_same_port


class Basic(NamedTuple):
    """Name and password (RFC 7617)."""

    name: str
    password: str


class Bearer(NamedTuple):
    """A token (RFC 6750)."""

    token: str


def credentials_of(header: str) -> Basic | Bearer:
    """What the header `Authorization` says. Raises: Problem."""
    scheme, _, value = header.partition(" ")
    value = value.strip()
    unusable = Problem(401, "the header Authorization is neither Basic nor Bearer")
    if len(value) > MAX_CREDENTIALS_CHARACTERS:
        raise unusable
    if scheme.lower() == "bearer":
        if _TOKEN.fullmatch(value) is None:
            raise unusable
        return Bearer(value)
    if scheme.lower() != "basic":
        raise unusable
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        raise unusable from None
    name, colon, password = text.partition(":")
    if not colon or not name:
        raise unusable
    return Basic(name, password)
