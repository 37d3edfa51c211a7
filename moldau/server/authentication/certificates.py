"""What a certificate says: its name, until when it is valid, and the rules that make a user name of
a client's (KIP-371).

Owns what `ssl.principal.mapping.rules` mean. Must not verify a certificate: OpenSSL has done so
when one comes here. Invariant: the same certificate has the same name as in Apache Kafka, which
takes the RFC 2253 form that Java writes.
"""

from __future__ import annotations

import datetime
import re
import ssl
from collections.abc import Iterator
from typing import Final, NamedTuple

from moldau.runtime.authentication.tls import certificates_of

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attribute types that RFC 2253 has words for; any other is written by its numbers."""

_TEXT_TAGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
"""The string types of ASN.1 that Java writes as text, the bytes of each read as UTF-8."""
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
_EXPLICIT_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
_FEWEST_FIELDS: Final = 6
"""Serial number, algorithm, issuer, validity, subject and key."""
_UTC_TIME: Final = 0x17
_TIMES: Final = {_UTC_TIME: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""The types of a time in a certificate (RFC 5280, section 4.1.2.5), and how each is written."""
_SHORT_YEARS_END: Final = 2050
"""Years of two digits are those of a hundred years before."""


class _Element(NamedTuple):
    """One element of DER: its tag, its contents, and itself with tag and length."""

    tag: int
    contents: bytes
    whole: bytes


def _elements(data: bytes) -> Iterator[_Element]:
    at = 0
    while at < len(data):
        start, tag, length = at, data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size])
            at += size
        yield _Element(tag, data[at : at + length], data[start : at + length])
        at += length


def certificates_in(text: str) -> Iterator[bytes]:
    """The certificates in PEM text, in DER. Behind a trusted one stands what it is trusted for."""
    for each in certificates_of(text):
        yield ssl.PEM_cert_to_DER_cert(each.replace(" X509 ", " ").replace(" TRUSTED ", " "))


def first_certificate(chain: str) -> bytes:
    """The first certificate of a PEM chain, in DER. Raises: ValueError: there is none."""
    first, *_ = certificates_in(chain)
    return first


def subject_name(certificate: bytes) -> str:
    """The subject of a certificate in DER, as in `CN=alice,OU=orders,C=CZ`; "" for an empty one.
    Raises: ValueError: it is not in DER.
    """
    subject = _fields(certificate)[4]  # behind serial number, algorithm, issuer and validity
    parts = [
        "+".join(_attribute(*_elements(each.contents)) for each in _elements(part.contents))
        for part in _elements(subject.contents)
    ]
    return ",".join(reversed(parts))


def end_of(certificate: bytes) -> datetime.datetime:
    """The last moment at which a certificate is valid, in UTC. Raises: ValueError: it is not in
    DER, or its time is written in none of the two ways.
    """
    _, after = _elements(_fields(certificate)[3].contents)
    form = _TIMES.get(after.tag, "")
    at = datetime.datetime.strptime(after.contents.decode("latin-1"), form)
    if after.tag == _UTC_TIME and at.year >= _SHORT_YEARS_END:
        at = at.replace(year=at.year - 100)
    return at.replace(tzinfo=datetime.UTC)


def alternative_names(certificate: bytes) -> frozenset[bytes]:
    """The subject's alternative names of a certificate in DER, each as its DER."""
    for part in _fields(certificate):
        if part.tag != _EXTENSIONS:
            continue
        [extensions] = _elements(part.contents)
        for extension in _elements(extensions.contents):
            kind, *_critical, value = _elements(extension.contents)
            if _dotted(kind.contents) == _ALTERNATIVE_NAMES:
                [names] = _elements(value.contents)
                return frozenset(each.whole for each in _elements(names.contents))
    return frozenset()


def _fields(certificate: bytes) -> list[_Element]:
    """What is signed, without the version, which older certificates do not name."""
    try:
        whole = next(_elements(certificate))
        signed = next(_elements(whole.contents))
        found = [each for each in _elements(signed.contents) if each.tag != _EXPLICIT_VERSION]
    except (IndexError, StopIteration):
        found = []
    if len(found) < _FEWEST_FIELDS:
        raise ValueError("no certificate in DER")
    return found


def _attribute(kind: _Element, value: _Element) -> str:
    dotted = _dotted(kind.contents)
    keyword = _KEYWORDS.get(dotted)
    if keyword is None or value.tag not in _TEXT_TAGS:
        return f"{keyword or dotted}=#{value.whole.hex()}"
    text = value.contents.decode("utf-8", "replace")
    escaped = _ESCAPED.sub(r"\\\g<0>", text).replace("\0", "\\00")
    inner = escaped.strip(" ")
    before = len(escaped) - len(escaped.lstrip(" "))
    after = len(escaped) - len(inner) - before if inner else 0
    return f"{keyword}=" + "\\ " * before + inner + "\\ " * after


def _dotted(data: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


# A pattern and a replacement may hold anything but a bare slash or backslash.
_PART: Final = r"((?:\\.|[^\\/])*)"
_RULE: Final = re.compile(rf"RULE:{_PART}/{_PART}/([LU]?)")
_SEPARATOR: Final = re.compile(r"\s*,\s*|\s*\Z")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d)(\d*)", re.DOTALL)


class MappingRuleError(ValueError):
    """`ssl.principal.mapping.rules` cannot be read; the text says where."""


class NoMatchingRule(Exception):
    """No rule makes a user name of the certificate's: its client is refused."""


class _Rule(NamedTuple):
    """What one rule does; a pattern of None is DEFAULT, which keeps the whole name."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if not self.pattern.fullmatch(name):
            return None
        mapped = self.pattern.sub(self._replaced, name)
        if self.case == "L":
            return mapped.lower()
        return mapped.upper() if self.case == "U" else mapped

    def _replaced(self, found: re.Match[str]) -> str:
        """The replacement as Java reads it: `$1` is a group, a backslash takes the next one as is.
        A group that the pattern lacks stays as it is written.
        """

        def reference(part: re.Match[str]) -> str:
            if part[1] is not None:
                return part[1]
            digits = part[2] + part[3]
            used = next(
                (n for n in range(len(digits), 0, -1) if int(digits[:n]) <= found.re.groups), 0
            )
            if not used:
                return part[0]
            return (found[int(digits[:used])] or "") + digits[used:]

        return _REFERENCE.sub(reference, self.replacement)


class PrincipalMapping:
    """The rules of `ssl.principal.mapping.rules`, of which the first that matches decides."""

    __slots__ = ("_rules",)

    def __init__(self, text: str) -> None:
        """Raises: MappingRuleError."""
        self._rules = tuple(_parsed(text.strip()))

    def user_name(self, subject: str) -> str:
        """The user name for a certificate's subject. Raises: NoMatchingRule."""
        for rule in self._rules:
            mapped = rule.apply(subject)
            if mapped is not None:
                return mapped
        raise NoMatchingRule(f"no rule of ssl.principal.mapping.rules matches {subject!r}")


def _parsed(text: str) -> Iterator[_Rule]:
    at = 0
    while at < len(text):
        rule = _RULE.match(text, at)
        if rule is not None:
            at = rule.end()
            try:
                yield _Rule(re.compile(rule[1]), rule[2], rule[3])
            except re.error as error:
                raise MappingRuleError(f"{rule[1]!r} is no pattern: {error}") from None
        elif text.startswith("DEFAULT", at):
            at += len("DEFAULT")
            yield _Rule(None)
        elif text[at] != ",":
            raise MappingRuleError(
                f"{text[at : at + 60]!r} is neither RULE:PATTERN/NAME/ nor DEFAULT"
            )
        separator = _SEPARATOR.match(text, at)
        if separator is None:
            raise MappingRuleError(f"a comma is missing before {text[at : at + 60]!r}")
        at = separator.end()
