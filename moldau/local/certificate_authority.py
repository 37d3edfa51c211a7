"""A certificate authority for one cluster: it signs the certificates of nodes and of clients.

Owns the authority's key and certificate, and the PEM key stores that it writes: a private key, its
certificate and the authority's, in one file. Must not know what a node is configured with.
Invariants: a file with a private key is readable by its owner alone, and is replaced whole, so that
a node that reads it meets the old one or the new one; a renewed certificate has the subject and the
names of the one before, and a new key.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from moldau.addresses import tls_name
from moldau.runtime.private_files import OWNER_ONLY, READABLE, replace_file

AUTHORITY_FILE: Final = "ca.pem"
AUTHORITY_KEY_FILE: Final = "ca-key.pem"
NEXT_FILE: Final = "next-ca.pem"
NEXT_KEY_FILE: Final = "next-ca-key.pem"
"""Those of an authority that is to take the other's place."""
AUTHORITY_DAYS: Final = 3_650
DAYS: Final = 365
"""How long the certificate of a node or a client is valid, unless said otherwise."""
MOST_DAYS: Final = 3_650
#: Clocks of other machines may be behind.
_BEFORE: Final = datetime.timedelta(hours=1)
_CURVE: Final = ec.SECP256R1()


class CertificateError(Exception):
    """A certificate that cannot be made or read; one line that says why."""


@dataclass(frozen=True, slots=True)
class CertificateSummary:
    """What a certificate says.

    Attributes:
        subject: as in `CN=broker-1,OU=nodes`.
        hosts: names and addresses that it is valid for.
        signed_by: the authority's common name; its own for an authority's certificate.
        expires_at: in UTC.
    """

    path: Path
    subject: str
    signed_by: str
    hosts: tuple[str, ...]
    expires_at: datetime.datetime


class CertificateAuthority:
    """The authority in one directory; `create` makes it, `load` reads it."""

    def __init__(
        self, directory: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> None:
        self.directory = directory
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, directory: Path, name: str) -> Self:
        """Make a new authority with that common name. Raises: CertificateError, OSError."""
        made = cls._made(directory, name)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        made._keep(AUTHORITY_KEY_FILE, AUTHORITY_FILE)
        return made

    @classmethod
    def _made(cls, directory: Path, name: str) -> Self:
        key = ec.generate_private_key(_CURVE)
        subject = _name(name, None)
        now = _now()
        certificate = (
            x509.CertificateBuilder(subject, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, SHA256())
        )
        return cls(directory, key, certificate)

    def _keep(self, key_file: str, certificate_file: str) -> None:
        """The key first: what signs is never without it."""
        replace_file(self.directory / key_file, _pem_of_key(self._key), OWNER_ONLY)
        replace_file(self.directory / certificate_file, _pem_of(self._certificate), READABLE)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the authority that `create` made; while another takes its place, the new one, as
        soon as it is trusted. Raises: CertificateError.
        """
        trusted = trusted_in(directory)
        new = directory / NEXT_FILE
        if new.exists() and (found := _certificate_in(new)) in trusted:
            is_kept = (directory / NEXT_KEY_FILE).exists()  # else it has taken its place
            return cls._loaded(directory, NEXT_KEY_FILE if is_kept else AUTHORITY_KEY_FILE, found)
        return cls._loaded(directory, AUTHORITY_KEY_FILE, trusted[0])

    @classmethod
    def _loaded(cls, directory: Path, key_file: str, certificate: x509.Certificate) -> Self:
        path = directory / key_file
        try:
            key = load_pem_private_key(path.read_bytes(), None)
        except OSError as error:
            raise CertificateError(f"{path}: {error.strerror or error}") from None
        except (ValueError, TypeError):
            raise CertificateError(f"{path}: no private key in PEM without a password") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificateError(f"{path}: a key on an elliptic curve is needed")
        if key.public_key() != certificate.public_key():
            raise CertificateError(f"{path}: not the key of {AUTHORITY_FILE} beside it")
        return cls(directory, key, certificate)

    @property
    def certificate_path(self) -> Path:
        """What clients and nodes trust."""
        return self.directory / AUTHORITY_FILE

    def issue(
        self, path: Path, name: str, unit: str, hosts: Iterable[str], days: int = DAYS
    ) -> CertificateSummary:
        """Write a key store with a new key, replacing an old one.

        Args:
            name, unit: the subject's CN and OU.
            hosts: names and IP addresses that the certificate is valid for.
            days: until it expires; never later than the authority itself.

        Raises:
            CertificateError: a name that no certificate can have, the days are not 1 to 3650, or
                the authority has expired.
            OSError: the file cannot be written.
        """
        names = [_general_name(host) for host in dict.fromkeys(hosts)]
        return self._write(path, _name(name, unit), names, days)

    def renew(self, path: Path, days: int = DAYS) -> CertificateSummary:
        """Write a key store again, with a new key for the same subject and hosts.

        Raises:
            CertificateError: the file has no certificate, another authority signed it, the days
                are not 1 to 3650, or the authority has expired.
            OSError: the file cannot be written.
        """
        before = _certificate_in(path)
        known = {each.subject for each in trusted_in(self.directory)}
        if before.issuer not in known:
            names = " or ".join(sorted(each.rfc4514_string() for each in known))
            raise CertificateError(
                f"{path}: signed by {before.issuer.rfc4514_string()}, not by {names} in "
                f"{self.directory}"
            )
        return self._write(path, before.subject, _hosts_in(before), days)

    def _write(
        self, path: Path, subject: x509.Name, hosts: Sequence[x509.GeneralName], days: int
    ) -> CertificateSummary:
        if not 1 <= days <= MOST_DAYS:
            raise CertificateError(f"{days} days: from 1 to {MOST_DAYS} can be asked for")
        now, end = _now(), self._certificate.not_valid_after_utc
        if end <= now:
            raise CertificateError(
                f"{self.certificate_path}: the authority has expired on {end:%Y-%m-%d}, and what "
                "it signs is not accepted; `moldau certificates rotate-authority` replaces it"
            )
        key = ec.generate_private_key(_CURVE)
        expires_at = min(now + datetime.timedelta(days=days), end)
        builder = (
            x509.CertificateBuilder(self._certificate.subject, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(expires_at)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = builder.sign(self._key, SHA256())
        chain = _pem_of(certificate) + _pem_of(self._certificate)
        replace_file(path, _pem_of_key(key) + chain, OWNER_ONLY)
        return _summary(path, certificate)


def summary_of(path: Path) -> CertificateSummary:
    """What the first certificate in a PEM file says. Raises: CertificateError."""
    return _summary(path, _certificate_in(path))


def summaries_of(path: Path) -> list[CertificateSummary]:
    """As `summary_of`, of all certificates in the file."""
    return [_summary(path, each) for each in _certificates_in(path)]


def trusted_in(directory: Path) -> list[x509.Certificate]:
    """The authorities that nodes and clients trust, the oldest first. Raises: CertificateError."""
    return _certificates_in(directory / AUTHORITY_FILE)


class AuthorityRotation:
    """A new authority in the place of the old one, in steps: trusted beside it → everything is
    signed by it → the old one is forgotten. Each step leaves every connection working, can be
    repeated, and what is done is seen from the files alone: a step that was interrupted goes on.

    Args:
        directory: the authority's.
        stores: the key stores that it has signed.
    """

    def __init__(self, directory: Path, stores: Iterable[Path]) -> None:
        self._directory = directory
        self._stores = tuple(stores)

    @property
    def is_trusted(self) -> bool:
        """Whether there is a new authority, which nodes and clients then trust."""
        new = self._directory / NEXT_FILE
        return new.exists() and _certificate_in(new) in trusted_in(self._directory)

    def unsigned(self) -> list[Path]:
        """The key stores whose certificate the new authority has yet to sign."""
        new = _certificate_in(self._directory / NEXT_FILE)
        return [each for each in self._stores if not _is_signed(_certificate_in(each), new)]

    def trust_both(self, name: str) -> None:
        """Make the new authority, with that common name, and have it trusted beside the old one.
        Raises: CertificateError, OSError.
        """
        new = self._directory / NEXT_FILE
        if not new.exists():
            CertificateAuthority._made(self._directory, name)._keep(NEXT_KEY_FILE, NEXT_FILE)
        self._trust(*trusted_in(self._directory), _certificate_in(new))

    def forget_the_old(self) -> None:
        """Have the new authority alone, when it has signed everything. Raises: CertificateError,
        OSError.
        """
        assert not self.unsigned(), "all are signed by the new one"
        new, key = self._directory / NEXT_FILE, self._directory / NEXT_KEY_FILE
        if key.exists():
            replace_file(self._directory / AUTHORITY_KEY_FILE, key.read_bytes(), OWNER_ONLY)
            self._trust(_certificate_in(new))
            key.unlink()
        new.unlink()  # last: without it, the next step would be the first of another rotation

    def _trust(self, *certificates: x509.Certificate) -> None:
        text = b"".join(map(_pem_of, dict.fromkeys(certificates)))
        replace_file(self._directory / AUTHORITY_FILE, text, READABLE)


def _is_signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _summary(path: Path, certificate: x509.Certificate) -> CertificateSummary:
    hosts = tuple(str(each.value) for each in _hosts_in(certificate))
    subject = certificate.subject.rfc4514_string()
    names = certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    signed_by = str(names[0].value) if names else certificate.issuer.rfc4514_string()
    return CertificateSummary(path, subject, signed_by, hosts, certificate.not_valid_after_utc)


def _certificate_in(path: Path) -> x509.Certificate:
    return _certificates_in(path)[0]


def _certificates_in(path: Path) -> list[x509.Certificate]:
    """One at least."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise CertificateError(f"{path}: no certificate in PEM") from None


def _hosts_in(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return list(found.value)


def _name(common_name: str, unit: str | None) -> x509.Name:
    parts = [] if unit is None else [(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)]
    parts.append((NameOID.COMMON_NAME, common_name))
    try:
        return x509.Name([x509.NameAttribute(kind, text) for kind, text in parts])
    except ValueError as error:
        raise CertificateError(f"{common_name!r} cannot be a certificate's name: {error}") from None


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(tls_name(host))
    except ValueError:
        raise CertificateError(
            f"{host!r}: a host name in ASCII (xn--… for others) or an IP address is needed"
        ) from None


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def _pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
