"""Kerberos principals, and the rules that make user names of them.

Owns the grammar of `sasl.kerberos.principal.to.local.rules`. Must not know Kerberos' messages.
Invariants: the same principal has the same user name as in Apache Kafka; a user name never has a
`/` or an `@` in it, so no rule makes one principal look like another's whole name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

RULE_FORM: Final = "DEFAULT or RULE:[n:string](regexp)s/pattern/replacement/g/L"

_PRINCIPAL: Final = re.compile(r"(?P<primary>[^/@]*)(?:/(?P<instance>[^/@]*))?@(?P<realm>[^/@]*)")
_RULE: Final = re.compile(
    r"RULE:\[(?P<count>\d*):(?P<form>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<pattern>[^/]*)/(?P<replacement>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU]?)",
    re.ASCII,
)
_FORM_PIECE: Final = re.compile(r"([^$]+)|\$(\d*)", re.ASCII)
_REPLACEMENT_PIECE: Final = re.compile(
    r"\\(?P<escaped>.)|\$(?P<number>\d+)|\$\{(?P<name>[A-Za-z][A-Za-z0-9]*)\}"
    r"|(?P<bad>[\\$])|(?P<text>[^\\$]+)",
    re.ASCII | re.DOTALL,
)
_NOT_SIMPLE: Final = re.compile(r"[/@]")
_NAMED_GROUP: Final = re.compile(r"(?<!\\)\(\?<(?=[A-Za-z])")
"""How Java begins a group with a name."""

_MOST_DIGITS: Final = 4


class LocalRuleError(ValueError):
    """`sasl.kerberos.principal.to.local.rules` cannot be read; the text says which rule and why."""


class NoLocalName(Exception):
    """No rule makes a user name of a principal, or what one makes is none."""


class KerberosPrincipal(NamedTuple):
    """`primary/instance@REALM`.

    Attributes:
        instance: a service's host, as a rule; None without one.
        realm: None where the name has none.
    """

    primary: str
    instance: str | None = None
    realm: str | None = None

    @classmethod
    def parse(cls, text: str) -> KerberosPrincipal:
        """Raises: ValueError for a name of more than two components, or with escaped characters."""
        found = _PRINCIPAL.fullmatch(text)
        if found is not None:
            return cls(found["primary"], found["instance"], found["realm"])
        if "@" in text:
            raise ValueError(f"{text!r} is not PRIMARY@REALM or PRIMARY/INSTANCE@REALM")
        return cls(text)


class _Rule(NamedTuple):
    """What one rule does.

    Attributes:
        component_count: of the names it is for: 1, or 2 with an instance.
        form: literal texts, and numbers of components (0 for the realm).
        match: what the formed name must be as a whole; None for anything.
        pattern, replacement: a substitution within it; a replacement's pieces are literal texts,
            and numbers or names of groups in a tuple.
    """

    component_count: int
    form: tuple[str | int, ...]
    match: re.Pattern[str] | None
    pattern: re.Pattern[str] | None
    replacement: tuple[str | tuple[int | str], ...]
    replaces_all: bool
    case: str

    def apply(self, parts: Sequence[str]) -> str | None:
        """A name for a realm and its components; None where the rule is not for them."""
        if len(parts) - 1 != self.component_count:
            return None
        formed = "".join(parts[each] if isinstance(each, int) else each for each in self.form)
        if self.match is not None and not self.match.fullmatch(formed):
            return None
        if self.pattern is not None:
            formed = self.pattern.sub(self._replaced, formed, count=0 if self.replaces_all else 1)
        return _simple(formed, self.case)

    def _replaced(self, found: re.Match[str]) -> str:
        return "".join(
            each if isinstance(each, str) else found[each[0]] or "" for each in self.replacement
        )


class LocalNames:
    """The rules, of which the first that applies decides.

    Args:
        rules: each `DEFAULT`, for the primary of what is in the default realm, or
            `RULE:[n:string](regexp)s/pattern/replacement/g/L`; regular expressions without `)` and
            `/`, as in Apache Kafka, whose list of rules is split at commas.
        default_realm: "" where there is none.

    Raises:
        LocalRuleError: one cannot be read.
    """

    __slots__ = ("_default_realm", "_rules")

    def __init__(self, rules: Sequence[str], default_realm: str) -> None:
        self._default_realm = default_realm
        self._rules = tuple(None if each == "DEFAULT" else _parsed(each) for each in rules)

    def user_name(self, principal: KerberosPrincipal) -> str:
        """Raises: NoLocalName."""
        if principal.realm is None and principal.instance is None:
            return principal.primary
        parts = [principal.realm or "", principal.primary]
        if principal.instance is not None:
            parts.append(principal.instance)
        for rule in self._rules:
            if rule is not None:
                name = rule.apply(parts)
            elif parts[0] == self._default_realm:
                name = _simple(parts[1])
            else:
                continue
            if name is not None:
                return name
        raise NoLocalName("no rule of sasl.kerberos.principal.to.local.rules applies to it")


def _simple(name: str, case: str = "") -> str:
    if _NOT_SIMPLE.search(name):
        raise NoLocalName(
            f"sasl.kerberos.principal.to.local.rules make {name!r} of it, which is no simple name"
        )
    if case == "L":
        return name.lower()
    return name.upper() if case == "U" else name


def _parsed(text: str) -> _Rule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise LocalRuleError(f"{text!r} is not {RULE_FORM}")
    if not 0 < len(found["count"]) < _MOST_DIGITS:
        raise LocalRuleError(f"{text!r}: a number of components comes before the colon")
    component_count = int(found["count"])
    match, pattern = (_compiled(text, found[group]) for group in ("match", "pattern"))
    return _Rule(
        component_count,
        _form(text, found["form"], component_count),
        match,
        pattern,
        () if pattern is None else tuple(_replacement(text, found["replacement"], pattern)),
        found["all"] is not None,
        found["case"],
    )


def _compiled(rule: str, pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(_NAMED_GROUP.sub("(?P<", pattern))
    except re.error as error:
        raise LocalRuleError(f"{rule!r}: {pattern!r} is no pattern: {error}") from None


def _form(rule: str, form: str, component_count: int) -> tuple[str | int, ...]:
    pieces: list[str | int] = []
    for literal, number in _FORM_PIECE.findall(form):
        if literal:
            pieces.append(literal)
        elif not 0 < len(number) < _MOST_DIGITS or int(number) > component_count:
            raise LocalRuleError(f"{rule!r}: ${number} is not one of $0 to ${component_count}")
        else:
            pieces.append(int(number))
    return tuple(pieces)


def _replacement(rule: str, text: str, pattern: re.Pattern[str]) -> list[str | tuple[int | str]]:
    """A replacement as Java reads it: `$1` is a group, a backslash takes the next one as is."""
    pieces: list[str | tuple[int | str]] = []
    for found in _REPLACEMENT_PIECE.finditer(text):
        if found["number"] is not None:
            digits = found["number"]
            used = 1
            while used < len(digits) and int(digits[: used + 1]) <= pattern.groups:
                used += 1
            if int(digits[:used]) > pattern.groups:
                raise LocalRuleError(f"{rule!r}: the pattern has no group ${digits[:used]}")
            pieces += [(int(digits[:used]),), digits[used:]]
        elif found["name"] is not None:
            if found["name"] not in pattern.groupindex:
                raise LocalRuleError(f"{rule!r}: the pattern has no group {found['name']}")
            pieces.append((found["name"],))
        elif found["bad"] is not None:
            raise LocalRuleError(f"{rule!r}: in a replacement, $ and \\ stand behind a \\")
        else:
            pieces.append(found["escaped"] or found["text"] or "")
    return pieces
