"""What a certificate in DER says: its name, until when it is valid, its alternative names.

Must not verify a certificate. Invariant: the same certificate has the same name as in Apache Kafka,
which takes the RFC 2253 form that Java writes.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

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
