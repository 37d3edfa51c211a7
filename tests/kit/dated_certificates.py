"""Certificates that expire when a test says."""

from __future__ import annotations

import datetime
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN = datetime.datetime(1950, 1, 1, tzinfo=datetime.UTC)


@cache
def key_of(name: str) -> ec.EllipticCurvePrivateKey:
    """The key that goes with a name."""
    return ec.generate_private_key(ec.SECP256R1())


def dated(
    name: str,
    expires_at: datetime.datetime,
    *,
    by: str | None = None,
    is_authority: bool = False,
    begins_at: datetime.datetime = _BEGIN,
) -> x509.Certificate:
    """A certificate of CN=name, signed by the key of another name; by its own without one."""

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])

    return (
        x509.CertificateBuilder(named(by or name), named(name), key_of(name).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins_at)
        .not_valid_after(expires_at)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(key_of(by or name), hashes.SHA256())
    )


def pem(*certificates: x509.Certificate) -> str:
    """One below the other."""
    return "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in certificates)


def key_pem(name: str) -> str:
    """The private key that goes with a name."""
    return (
        key_of(name)
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )
