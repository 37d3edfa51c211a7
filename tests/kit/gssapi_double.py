"""A double of the GSSAPI library, which says what a test has it say: no KDC is asked."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FIRST_CODE = 2**32 - 1_765_328_384
"""Kerberos' error 0, as the library's unsigned numbers have it."""


class GSSError(Exception):
    """As the library raises it: a major code, a minor one, and their texts."""

    def __init__(self, number: int | None, *texts: str, major_texts: tuple[str, ...] = ()) -> None:
        super().__init__(number)
        self.min_code = 0 if number is None else FIRST_CODE + number
        self.maj_code = 851_968
        self._texts = {False: texts, True: major_texts}

    def get_all_statuses(self, code: int, is_major: bool) -> list[str]:
        assert code == (self.maj_code if is_major else self.min_code)
        return list(self._texts[is_major])


class ExpiredCredentialsError(GSSError):
    """The library's own kind."""


class Library(ModuleType):
    """The double: what it is asked is in `asked`, what it answers is set by the test."""

    GSSError = GSSError
    ExpiredCredentialsError = ExpiredCredentialsError
    NameType = SimpleNamespace(kerberos_principal="principal", hostbased_service="service")
    MechType = SimpleNamespace(kerberos="krb5")
    RequirementFlag = SimpleNamespace(
        mutual_authentication="mutual", integrity="integrity", replay_detection="replay"
    )

    def __init__(self) -> None:
        super().__init__("gssapi.raw")
        self.asked: list[tuple[Any, ...]] = []
        self.lifetime: int | None = 3_600
        self.refused: dict[str, GSSError] = {}
        """An error for each usage."""
        self.steps: list[SimpleNamespace] = []
        self.realm = b"x@EXAMPLE.COM"
        self.name = b"alice@EXAMPLE.COM"

    def import_name(self, name: bytes, kind: str) -> tuple[bytes, str]:
        return name, kind

    def canonicalize_name(self, name: Any, mechanism: str) -> Any:
        assert (name, mechanism) == ((b"x", "principal"), "krb5")
        return "realm"

    def display_name(self, name: Any, with_kind: bool) -> SimpleNamespace:
        assert with_kind is False
        return SimpleNamespace(name=self.realm if name == "realm" else self.name)

    def acquire_cred_from(self, store: Any, name: Any, *, mechs: set[str], usage: str) -> Any:
        assert mechs == {"krb5"}
        self.asked.append((usage, store, name))
        if usage in self.refused:
            raise self.refused[usage]
        number = sum(each[0] == "initiate" for each in self.asked)
        return SimpleNamespace(creds=f"credentials {number}", lifetime=self.lifetime)

    def _step(self, *question: Any) -> SimpleNamespace:
        self.asked.append(question)
        step = self.steps.pop(0)
        if isinstance(step, GSSError):
            raise step
        return step

    def init_sec_context(
        self, name: Any, creds: Any, context: Any, mech: str, flags: set[str], *, input_token: Any
    ) -> SimpleNamespace:
        assert mech == "krb5"
        assert flags == {"mutual", "integrity", "replay"}
        return self._step("init", name, creds, context, input_token)

    def accept_sec_context(self, token: bytes, creds: Any, context: Any) -> SimpleNamespace:
        return self._step("accept", token, creds, context)

    def wrap(self, context: Any, message: bytes, conceals: bool, quality: Any) -> SimpleNamespace:
        assert (conceals, quality) == (False, None)
        return SimpleNamespace(message=bytearray(b"signed " + message))

    def unwrap(self, context: Any, token: bytes) -> SimpleNamespace:
        return SimpleNamespace(message=token.removeprefix(b"signed "))


def installed(monkeypatch: pytest.MonkeyPatch) -> Library:
    """The double, in the place of the package until the test is over."""
    package, made = ModuleType("gssapi"), Library()
    package.raw = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gssapi", package)
    monkeypatch.setitem(sys.modules, "gssapi.raw", made)
    return made
