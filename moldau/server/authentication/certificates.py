"""Certificates in PEM, and the rules that make a user name of a client's (KIP-371).

Owns what `ssl.principal.mapping.rules` mean. Must not verify a certificate: OpenSSL has done so
when one comes here.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from typing import Final, NamedTuple

from moldau.runtime.authentication.tls import certificates_of


def certificates_in(text: str) -> Iterator[bytes]:
    """The certificates in PEM text, in DER. Behind a trusted one stands what it is trusted for."""
    for each in certificates_of(text):
        yield ssl.PEM_cert_to_DER_cert(each.replace(" X509 ", " ").replace(" TRUSTED ", " "))


def first_certificate(chain: str) -> bytes:
    """The first certificate of a PEM chain, in DER. Raises: ValueError: there is none."""
    first, *_ = certificates_in(chain)
    return first


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
