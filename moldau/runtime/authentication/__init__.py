"""TLS contexts, the client side of SASL and its tokens; here what can be wrong with an identity.

None of these errors is a passing fault. The modules of this package read settings and exchange
messages; connections are opened by their callers.
"""

from __future__ import annotations


class AuthenticationError(Exception):
    """The peer refuses our credentials or mechanism, or could not prove its own identity."""


class TlsError(Exception):
    """No TLS connection came about, for a reason that trying again does not change."""


class SecuritySettingError(ValueError):
    """Keys, certificates or credentials that cannot be used; the text says which and why."""
