"""What can be wrong with a peer's or our own identity. Neither is a passing fault."""

from __future__ import annotations


class AuthenticationError(Exception):
    """The peer refuses our credentials or mechanism, or could not prove who it is itself."""


class TlsError(Exception):
    """No TLS connection came about, for a reason that trying again does not change."""


class SecuritySettingError(ValueError):
    """Keys, certificates or credentials that cannot be used; the text says which and why."""
