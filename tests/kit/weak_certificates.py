"""Certificates that OpenSSL's security level refuses, and that Java serves.

Owns: their making. `cryptography` signs nothing with SHA-1 any more, so the signature is made by
hand (RFC 8017, section 9.2).
"""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_RSA_WITH: Final = bytes.fromhex("06092a864886f70d0101")
_SHA_256, _SHA_1 = _RSA_WITH + b"\x0b", _RSA_WITH + b"\x05"
_DIGEST_INFO: Final = bytes.fromhex("3021300906052b0e03021a05000414")
"""What stands in front of a digest by SHA-1."""


def weak_certificate(directory: Path, weakness: str) -> tuple[Path, Path]:
    """Paths of a PEM with key and certificate of localhost, and of its authority's certificate.

    Args:
        weakness: "SHA-1", of the signature, or "short key", of 1024 bits.
    """
    authority_key = rsa.generate_private_key(65_537, 2_048)
    own_key = rsa.generate_private_key(65_537, 1_024 if weakness == "short key" else 2_048)
    authority = _certificate("authority", authority_key, "authority", authority_key)
    own = _certificate("localhost", own_key, "authority", authority_key)
    if weakness == "SHA-1":
        own = _signed_with_sha_1(own, authority_key)
    key = own_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    paths = directory / "weak.pem", directory / "weak-authority.pem"
    paths[0].write_bytes(key + own.public_bytes(Encoding.PEM))
    paths[1].write_bytes(authority.public_bytes(Encoding.PEM))
    return paths


def _certificate(
    name: str, key: rsa.RSAPrivateKey, issuer: str, issuer_key: rsa.RSAPrivateKey
) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(name == issuer, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _signed_with_sha_1(
    certificate: x509.Certificate, issuer_key: rsa.RSAPrivateKey
) -> x509.Certificate:
    signed = certificate.tbs_certificate_bytes.replace(_SHA_256, _SHA_1)
    size, numbers = issuer_key.key_size // 8, issuer_key.private_numbers()
    digest = _DIGEST_INFO + hashlib.sha1(signed, usedforsecurity=False).digest()
    padded = b"\0\1" + b"\xff" * (size - 3 - len(digest)) + b"\0" + digest
    number = pow(int.from_bytes(padded), numbers.d, numbers.public_numbers.n)
    whole = certificate.public_bytes(Encoding.DER)
    whole = whole.replace(certificate.tbs_certificate_bytes, signed).replace(_SHA_256, _SHA_1)
    return x509.load_der_x509_certificate(
        whole.replace(certificate.signature, number.to_bytes(size))
    )
