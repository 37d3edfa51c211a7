"""How a client comes to a listener, in no client's own words.

Owns the ways, which are the columns of the table in docs/compatibility.md, and the kinds of
credentials that a listener must refuse. Must not know a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MTLS: Final = "mTLS"
SIGNED: Final = "OAUTHBEARER"
CLIENT_CREDENTIALS: Final = "OAUTHBEARER, client credentials"
UNSECURED: Final = "OAUTHBEARER, unsecured"
TOKEN: Final = "delegation token"


@dataclass(frozen=True, slots=True)
class Way:
    """A column of the table.

    Attributes:
        listener: its name at the node, where the one called PLAINTEXT speaks TLS 1.2 alone.
        protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        user: as whom the node knows the client, without `User:`.
        password: of PLAIN and SCRAM.
    """

    listener: str
    protocol: str
    user: str
    mechanism: str = ""
    password: str = ""


WAYS: Final = {
    "SSL": Way("SSL", "SSL", "ANONYMOUS"),
    "SSL, TLS 1.2": Way("PLAINTEXT", "SSL", "ANONYMOUS"),
    MTLS: Way("MTLS", "SSL", "orders-client"),
    "PLAIN": Way("SASL_SSL", "SASL_SSL", "alice", "PLAIN", "a-secret"),
    "SCRAM-SHA-256": Way("SASL_SSL", "SASL_SSL", "carol", "SCRAM-SHA-256", "c-secret"),
    "SCRAM-SHA-512": Way("SASL_SSL", "SASL_SSL", "dave", "SCRAM-SHA-512", "d-secret"),
    SIGNED: Way("SASL_SSL", "SASL_SSL", "erin", "OAUTHBEARER"),
    CLIENT_CREDENTIALS: Way("SASL_SSL", "SASL_SSL", "orders", "OAUTHBEARER"),
    TOKEN: Way("SASL_SSL", "SASL_SSL", "frank", "SCRAM-SHA-256"),
    "PLAIN, no TLS": Way("SASL_PLAINTEXT", "SASL_PLAINTEXT", "alice", "PLAIN", "a-secret"),
    "SCRAM-SHA-512, no TLS": Way(
        "SASL_PLAINTEXT", "SASL_PLAINTEXT", "dave", "SCRAM-SHA-512", "d-secret"
    ),
    UNSECURED: Way("SASL_PLAINTEXT", "SASL_PLAINTEXT", "grace", "OAUTHBEARER"),
}


@dataclass(frozen=True, slots=True)
class Access:
    """A way with an address and credentials.

    Attributes:
        trust: the authority's certificate; None without TLS.
        certificate: a PEM file with the client's key and certificate.
        name: the user name, or a delegation token's id.
        password: the password, or a delegation token's secret.
        is_token: whether name and password are a delegation token's.
        bearer: what the client's own code gives to OAUTHBEARER.
        bearer_path: the same in a file, for clients that take it from there.
        token_url: where to ask for a token with a client's id and secret, which are `name` and
            `password` then.
        unsecured: the subject of an unsecured token that the client makes up.
    """

    bootstrap: str
    protocol: str
    trust: Path | None = None
    certificate: Path | None = None
    mechanism: str = ""
    name: str = ""
    password: str = ""
    is_token: bool = False
    bearer: str = ""
    bearer_path: Path | None = None
    token_url: str = ""
    unsecured: str = ""
