"""TLS contexts from stores of all kinds, and what is wrong with one in words."""

from __future__ import annotations

import asyncio
import base64
import datetime
import re
import ssl
import sys
import textwrap
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from moldau.runtime.authentication import SecuritySettingError, StoreUnreadable
from moldau.runtime.authentication.listener_tls import ListenerTlsSettings, listener_context
from moldau.runtime.authentication.tls import (
    Store,
    TlsSettings,
    check_handshake,
    client_context,
    contents,
    is_tls_1_3_suite,
    openssl_name,
    tls_error,
)
from moldau.runtime.tls_transport import SHUTDOWN_TIMEOUT_S
from tests.kit.dated_certificates import dated, key_pem
from tests.kit.dated_certificates import pem as dated_pem
from tests.kit.weak_certificates import weak_certificate
from tests.virtual.machine import MachineLoop, pass_time

pytestmark = [pytest.mark.real, pytest.mark.virtual_too]


@pytest.fixture(autouse=True)
async def ended() -> AsyncIterator[None]:
    """What is still said at the end of a connection is heard, where that takes no real time."""
    yield
    if isinstance(asyncio.get_running_loop(), MachineLoop):
        await pass_time(2 * SHUTDOWN_TIMEOUT_S * 1000)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def own(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("client")


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


def chain_of(own: trustme.LeafCert) -> str:
    return "".join(each.bytes().decode() for each in own.cert_chain_pems)


async def handshake(
    client: TlsSettings,
    authority: trustme.CA,
    name: str = "localhost",
    *,
    clients: trustme.CA | None = None,
) -> str | None:
    """Talk to a server of this authority that demands a certificate, of the authority `clients` if
    that is another one; returns what the server read.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    (clients or authority).configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    read: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read.set_result(await reader.readexactly(2))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        _, writer = await asyncio.open_connection(
            *server.sockets[0].getsockname(), ssl=client_context(client), server_hostname=name
        )
        writer.write(b"hi")
        received = await read
        writer.transport.abort()
    return received.decode()


async def test_inline_pem(authority: trustme.CA, own: trustme.LeafCert):
    settings = TlsSettings(
        trust=Store("ssl.truststore", certificates=pem(authority)),
        own=Store(
            "ssl.keystore",
            certificates=chain_of(own),
            key=own.private_key_pem.bytes().decode(),
        ),
    )
    assert await handshake(settings, authority) == "hi"
    assert "PRIVATE" not in repr(settings)


async def test_pem_files_with_an_encrypted_key(
    authority: trustme.CA, own: trustme.LeafCert, tmp_path: Path
):
    key = serialization.load_pem_private_key(own.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"open"),
    )
    store = tmp_path / "own.pem"
    store.write_text(chain_of(own) + encrypted.decode())
    trust = tmp_path / "trust.pem"
    authority.cert_pem.write_to_path(trust)
    settings = TlsSettings(
        trust=Store("ssl.truststore", str(trust)),
        own=Store("ssl.keystore", str(store), "PEM"),
        key_password="open",
    )
    assert await handshake(settings, authority) == "hi"
    for password in ("wrong", None):
        bad = TlsSettings(trust=settings.trust, own=settings.own, key_password=password)
        with pytest.raises(SecuritySettingError, match=r"ssl\.key\.password"):
            client_context(bad)


def test_why_a_key_cannot_be_used_is_said(authority: trustme.CA, own: trustme.LeafCert) -> None:
    keys = Store(
        "ssl.keystore", certificates=chain_of(own), key=own.private_key_pem.bytes().decode()
    )
    other = authority.issue_cert("other").private_key_pem.bytes().decode()
    damaged = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    for store, reason in (
        (replace(keys, key=other), "KEY_VALUES_MISMATCH"),
        (replace(keys, key=damaged), r"\[SSL\].*"),
    ):
        with pytest.raises(
            SecuritySettingError,
            match=rf"^ssl\.keystore: the key cannot be used \({reason}\): does ssl\.key\.password",
        ):
            client_context(TlsSettings(own=store))


def test_why_two_contexts_refuse_one_another_is_said_in_one_word(
    authority: trustme.CA, own: trustme.LeafCert
) -> None:
    keys = Store(
        "ssl.keystore", certificates=chain_of(own), key=own.private_key_pem.bytes().decode()
    )
    server = listener_context(ListenerTlsSettings(own=keys))
    trust = Store("ssl.truststore", certificates=pem(authority))
    check_handshake(server, client_context(TlsSettings(trust=trust)))
    stranger = Store("ssl.truststore", certificates=pem(trustme.CA()))
    told = r"^nodes with these settings refuse one another \({}\): is the authority of"
    with pytest.raises(SecuritySettingError, match=told.format("unable to get[a-z ]+")):
        check_handshake(server, client_context(TlsSettings(trust=stranger)))
    old = listener_context(ListenerTlsSettings(own=keys, enabled_protocols=("TLSv1.2",)))
    new = client_context(TlsSettings(trust=trust, enabled_protocols=("TLSv1.3",)))
    with pytest.raises(SecuritySettingError, match=told.format("[A-Z0-9_]+")):
        check_handshake(old, new)


WEAK = "DEFAULT@SECLEVEL=0", "TLS_AES_256_GCM_SHA384"
"""What the advice says; TLS 1.3 is among it."""


@pytest.mark.parametrize("weakness", ["SHA-1", "short key"])
def test_a_weak_certificate_is_named_and_served_where_that_is_asked_for(
    tmp_path: Path, weakness: str
) -> None:
    """Java shows its own certificate whatever it is signed with."""
    own, trust = weak_certificate(tmp_path, weakness)
    told = r"too (weak|small).*SHA-1.*ssl\.cipher\.suites=" + re.escape(",".join(WEAK))
    serving = ListenerTlsSettings(own=Store("ssl.keystore", str(own)))
    trusting = TlsSettings(trust=Store("ssl.truststore", str(trust)))
    with pytest.raises(SecuritySettingError, match=told) as caught:
        listener_context(serving)
    assert "ssl.key.password" not in str(caught.value)
    with pytest.raises(SecuritySettingError, match=told):
        client_context(TlsSettings(own=serving.own))
    server = listener_context(replace(serving, cipher_suites=WEAK))
    assert server.maximum_version is ssl.TLSVersion.TLSv1_3
    with pytest.raises(SecuritySettingError, match=told) as caught:
        check_handshake(server, client_context(trusting))
    assert "is the authority" not in str(caught.value)
    check_handshake(server, client_context(replace(trusting, cipher_suites=WEAK)))


@pytest.mark.parametrize("weakness", ["SHA-1", "short key"])
async def test_the_clients_error_says_that_the_brokers_certificate_is_weak(
    tmp_path: Path, weakness: str
) -> None:
    own, trust = weak_certificate(tmp_path, weakness)
    serving = ListenerTlsSettings(own=Store("ssl.keystore", str(own)), cipher_suites=WEAK)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=listener_context(serving))
    async with server:
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            await asyncio.open_connection(
                *server.sockets[0].getsockname(),
                ssl=client_context(TlsSettings(trust=Store("ssl.truststore", str(trust)))),
                server_hostname="localhost",
            )
    told = str(tls_error("localhost:1", caught.value))
    assert "too weak" in told
    assert "ssl.cipher.suites=" in told
    assert "ssl.truststore" not in told


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
async def test_comments_in_pem_files_are_in_any_encoding(
    authority: trustme.CA, own: trustme.LeafCert, tmp_path: Path, encoding: str
):
    trust, store = tmp_path / "ca.pem", tmp_path / "own.pem"
    trust.write_text(f"# Autorité de Genève\n{pem(authority)}", encoding=encoding)
    store.write_text(
        f"friendlyName: Schlüssel\n{own.private_key_pem.bytes().decode()}\nsubject=Zürich\n"
        + chain_of(own),
        encoding=encoding,
    )
    settings = TlsSettings(
        trust=Store("ssl.truststore", str(trust)), own=Store("ssl.keystore", str(store))
    )
    assert await handshake(settings, authority) == "hi"


async def test_pkcs12_files(authority: trustme.CA, own: trustme.LeafCert, tmp_path: Path):
    certificates = x509.load_pem_x509_certificates(chain_of(own).encode())
    key = serialization.load_pem_private_key(own.private_key_pem.bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"open")
    store = tmp_path / "own.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"me",
            key,  # type: ignore[arg-type]
            certificates[0],
            certificates[1:],
            encryption,
        )
    )
    trust = tmp_path / "trust.p12"
    trust.write_bytes(
        pkcs12.serialize_key_and_certificates(
            None, None, None, x509.load_pem_x509_certificates(pem(authority).encode()), encryption
        )
    )
    settings = TlsSettings(
        # Java's default type; what the file is decides.
        trust=Store("ssl.truststore", str(trust), "JKS", "open"),
        own=Store("ssl.keystore", str(store), None, "open"),
    )
    assert await handshake(settings, authority) == "hi"
    with pytest.raises(SecuritySettingError, match="is the password right"):
        client_context(TlsSettings(trust=Store("ssl.truststore", str(trust), None, "wrong")))


async def test_the_hostname_is_checked_unless_configured_not_to(
    authority: trustme.CA, own: trustme.LeafCert
):
    trust = Store("ssl.truststore", certificates=pem(authority))
    key = Store(
        "ssl.keystore", certificates=chain_of(own), key=own.private_key_pem.bytes().decode()
    )
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        await handshake(TlsSettings(trust=trust, own=key), authority, "elsewhere")
    assert "ssl.endpoint.identification.algorithm" in str(tls_error("a:1", caught.value))
    settings = TlsSettings(trust=trust, own=key, checks_hostname=False)
    assert await handshake(settings, authority, "elsewhere") == "hi"


async def test_a_certificate_of_an_unknown_authority_names_the_truststore(authority: trustme.CA):
    other = TlsSettings(trust=Store("ssl.truststore", certificates=pem(trustme.CA())))
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        await handshake(other, authority)
    assert "ssl.truststore.location" in str(tls_error("a:1", caught.value))


def trusted_block(authority: trustme.CA) -> str:
    """The authority's certificate as `openssl x509 -trustout` writes it: a plain one, then
    CERT_AUX, here SEQUENCE { UTF8String alias }.
    """
    alias = b"\x0c\x02me"
    auxiliary = b"\x30" + bytes([len(alias)]) + alias
    data = ssl.PEM_cert_to_DER_cert(pem(authority)) + auxiliary
    body = "\n".join(textwrap.wrap(base64.b64encode(data).decode(), 64))
    return f"-----BEGIN TRUSTED CERTIFICATE-----\n{body}\n-----END TRUSTED CERTIFICATE-----\n"


async def test_openssl_s_trusted_certificates_are_read(
    authority: trustme.CA, own: trustme.LeafCert, tmp_path: Path
):
    store = tmp_path / "trusted.pem"
    store.write_text(trusted_block(authority))
    keys = Store(
        "ssl.keystore", certificates=chain_of(own), key=own.private_key_pem.bytes().decode()
    )
    for trust in (
        Store("ssl.truststore", str(store)),
        Store("ssl.truststore", certificates=store.read_text()),
    ):
        assert await handshake(TlsSettings(trust=trust, own=keys), authority) == "hi"


async def test_a_certificate_that_another_authority_has_signed_is_trusted_by_itself(
    own: trustme.LeafCert, authority: trustme.CA
):
    middle = authority.create_child_ca()
    settings = TlsSettings(
        trust=Store("ssl.truststore", certificates=pem(middle)),
        own=Store(
            "ssl.keystore", certificates=chain_of(own), key=own.private_key_pem.bytes().decode()
        ),
    )
    assert await handshake(settings, middle, clients=authority) == "hi"


def test_a_truststore_without_a_certificate_never_means_the_system_s(
    own: trustme.LeafCert, tmp_path: Path
):
    key_alone = tmp_path / "key.pem"
    key_alone.write_bytes(own.private_key_pem.bytes())
    key = serialization.load_pem_private_key(own.private_key_pem.bytes(), None)
    store = tmp_path / "key.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"k",
            key,
            None,
            None,
            serialization.NoEncryption(),  # type: ignore[arg-type]
        )
    )
    damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    for trust, text in (
        (Store("ssl.truststore", str(key_alone)), "no certificates in it"),
        (Store("ssl.truststore", str(store)), "no certificates in it"),
        (Store("ssl.truststore", certificates=""), "no certificates in it"),
        (Store("ssl.truststore", certificates=damaged), r"in it is damaged \(\[X509\].+\)$"),
    ):
        with pytest.raises(SecuritySettingError, match=text):
            client_context(TlsSettings(trust=trust))


def test_stores_that_cannot_be_used(authority: trustme.CA, tmp_path: Path):
    jks = tmp_path / "store.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xff")
    damaged = tmp_path / "damaged.pem"
    damaged.write_text(pem(authority).replace("MII", "MÏI", 1))
    inline = pem(authority)
    for store, reason in (
        (Store("ssl.truststore", str(tmp_path / "absent")), "No such file"),
        (Store("ssl.truststore", str(jks)), "keytool -importkeystore"),
        (Store("ssl.truststore", str(empty)), "no PEM in it"),
        (Store("ssl.truststore", str(binary)), "neither PEM nor PKCS12"),
        (Store("ssl.truststore", str(damaged)), "a character in it is not ASCII"),
        (Store("ssl.truststore", certificates="nothing"), "no certificates in it"),
        (Store("ssl.truststore", "x", certificates=inline), "exclude each other"),
        (Store("ssl.truststore", type="PKCS12", certificates=inline), "inline text is PEM"),
    ):
        with pytest.raises(SecuritySettingError, match=reason):
            client_context(TlsSettings(trust=store))
    with pytest.raises(SecuritySettingError, match=r"ssl\.keystore: a key is missing"):
        client_context(TlsSettings(own=Store("ssl.keystore", certificates=inline)))


def test_versions_and_ciphers():
    context = client_context(TlsSettings(enabled_protocols=("TLSv1.3",)))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    with pytest.raises(SecuritySettingError, match=r"ssl\.enabled\.protocols: SSLv3"):
        client_context(TlsSettings(enabled_protocols=("SSLv3",)))
    client_context(
        TlsSettings(cipher_suites=("TLS_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"))
    )
    with pytest.raises(SecuritySettingError, match="OpenSSL knows none"):
        client_context(TlsSettings(cipher_suites=("TLS_RSA_WITH_NOTHING_AT_ALL",)))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("WRONG_VERSION_NUMBER", "h:1 does not speak TLS"),
        ("RECORD_LAYER_FAILURE", "h:1 does not speak TLS"),
        ("UNEXPECTED_MESSAGE", "h:1 does not speak TLS"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "h:1 wants a certificate, and none was shown (TL"),
        ("TLSV1_ALERT_UNKNOWN_CA", "h:1 refuses our certificate (TLSV1_ALERT_UNKNOWN_CA)"),
        ("TLSV1_ALERT_ACCESS_DENIED", "h:1 refuses our certificate (TLSV1_ALERT_ACCESS"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "h:1: no TLS connection (TLSV1_ALERT_PROTOCOL_VERSION)"),
        (None, "h:1: no TLS connection ("),
    ],
)
def test_a_handshake_that_fails_says_what_to_do(reason: str | None, words: str):
    error = ssl.SSLError(1, "what was said")
    error.reason = reason  # type: ignore[assignment]
    assert str(tls_error("h:1", error)).startswith(words)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("Hostname mismatch, certificate is not valid for 'h'", "connect by a name"),
        ("IP address mismatch, certificate is not valid for 'h'", "connect by a name"),
        ("EE certificate key too weak", "ssl.cipher.suites="),
        ("unable to get local issuer certificate", "is its authority in ssl.truststore.location"),
    ],
)
def test_a_certificate_that_is_refused_says_what_to_do(message: str, advice: str):
    error = ssl.SSLCertVerificationError("refused")
    error.verify_message = message
    told = str(tls_error("h:1", error))
    assert told.startswith(f"h:1: its certificate is refused: {message}; ")
    assert advice in told


def test_a_trial_of_two_contexts_changes_neither_s_rules(
    authority: trustme.CA, own: trustme.LeafCert
) -> None:
    keys = Store(
        "ssl.keystore", certificates=chain_of(own), key=own.private_key_pem.bytes().decode()
    )
    server = listener_context(ListenerTlsSettings(own=keys))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    check_handshake(server, client)
    assert (client.check_hostname, client.verify_mode) == (False, ssl.CERT_NONE)


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA256", "AES128-SHA256"),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
        ),
        ("TLS_DHE_RSA_WITH_CAMELLIA_256_CBC_SHA", "DHE-RSA-CAMELLIA256-SHA"),
        ("ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
        ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("DEFAULT@SECLEVEL=0", "DEFAULT@SECLEVEL=0"),
    ],
)
def test_cipher_suites_have_two_names(name: str, known_as: str) -> None:
    assert openssl_name(name) == known_as


@pytest.mark.parametrize(
    ("name", "is_newer"),
    [
        ("TLS_AES_128_GCM_SHA256", True),
        ("TLS_CHACHA20_POLY1305_SHA256", True),
        ("TLS_RSA_WITH_AES_128_CBC_SHA256", False),
        ("ECDHE-RSA-CHACHA20-POLY1305", False),
    ],
)
def test_suites_of_tls_1_3_are_known_by_their_names(name: str, is_newer: bool) -> None:
    assert is_tls_1_3_suite(name) is is_newer


def test_a_store_of_pkcs12_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "own.p12"
    store.write_bytes(b"\x30\x82")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(SecuritySettingError, match=r"needs the package cryptography: install"):
        contents(Store("ssl.keystore", str(store)))


def test_a_comment_before_a_certificate_begins_with_anything(
    authority: trustme.CA, tmp_path: Path
) -> None:
    store = tmp_path / "ca.pem"
    store.write_text("0 is no sign of PKCS12\n" + pem(authority))
    certificates, key = contents(Store("ssl.truststore", str(store)))
    assert certificates is not None
    assert (certificates.strip(), key) == (pem(authority).strip(), None)


def test_without_a_truststore_the_system_s_authorities_are_trusted(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[ssl.Purpose] = []
    monkeypatch.setattr(
        ssl.SSLContext, "load_default_certs", lambda _context, purpose: loaded.append(purpose)
    )
    client_context(TlsSettings(trust=Store("ssl.truststore", certificates=pem(authority))))
    assert loaded == []
    client_context(TlsSettings())
    assert loaded == [ssl.Purpose.SERVER_AUTH]


def test_a_machine_that_gives_no_place_for_a_store_is_reported(
    authority: trustme.CA, own: trustme.LeafCert, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_place(_: bytes) -> object:
        raise OSError(24, "Too many open files")

    keys = Store(
        "ssl.keystore", certificates=chain_of(own), key=own.private_key_pem.bytes().decode()
    )
    trust = Store("ssl.truststore", certificates=pem(authority))
    monkeypatch.setattr("moldau.runtime.authentication.tls._private_file", no_place)
    for settings in (TlsSettings(trust=trust), TlsSettings(own=keys)):
        with pytest.raises(StoreUnreadable, match=r"^ssl\.[a-z]+: Too many open files$"):
            client_context(settings)


@pytest.mark.parametrize(
    ("password", "reason"),
    [("\ud800", "surrogates not allowed"), ("wrong", "[A-Z][^()]+"), (None, "[A-Za-z][^()]+")],
)
def test_why_a_store_of_pkcs12_cannot_be_opened_is_said(
    tmp_path: Path, password: str | None, reason: str
) -> None:
    store = tmp_path / "own.p12"
    store.write_bytes(b"\x30\x03\x02\x01\x03")
    told = rf"own\.p12: the PKCS12 store cannot be opened \({reason}\); is the password right\?$"
    with pytest.raises(SecuritySettingError, match=told):
        contents(Store("ssl.keystore", str(store), None, password))


def test_what_is_said_to_be_pkcs12_is_read_as_nothing_else(
    authority: trustme.CA, tmp_path: Path
) -> None:
    store = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(store)
    for kind in (None, "PEM", "JKS"):
        assert contents(Store("ssl.truststore", str(store), kind))[0] is not None
    with pytest.raises(SecuritySettingError, match="the PKCS12 store cannot be opened"):
        contents(Store("ssl.truststore", str(store), "PKCS12"))


def test_an_expired_certificate_is_to_be_renewed() -> None:
    """Whichever side says it: a node that would refuse itself, or a client."""
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    day = datetime.timedelta(days=1)
    authority = dated("ca", now + day, is_authority=True)
    keys = Store(
        "ssl.keystore",
        certificates=dated_pem(dated("node", now - day, by="ca")),
        key=key_pem("node"),
    )
    trust = Store("ssl.truststore", certificates=dated_pem(authority))
    server = listener_context(ListenerTlsSettings(own=keys))
    client = client_context(TlsSettings(trust=trust, checks_hostname=False))
    with pytest.raises(SecuritySettingError, match=r"\(certificate has expired\): it, or an auth"):
        check_handshake(server, client)
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "certificate has expired"
    told = str(tls_error("h:9092", error))
    assert told.startswith("h:9092: its certificate is refused: certificate has expired; it, or an")
    assert "moldau certificates renew" in told
