"""TLS contexts of listeners: which stores serve, what is offered, and files that change."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.listener_tls import (
    ListenerTlsSettings,
    listener_context,
)
from moldau.runtime.authentication.store_contexts import StoreContexts
from moldau.runtime.authentication.tls import Store, openssl_name


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def pem(leaf: trustme.LeafCert) -> bytes:
    return leaf.private_key_pem.bytes() + b"".join(each.bytes() for each in leaf.cert_chain_pems)


def stored(authority: trustme.CA, path: Path) -> Store:
    path.write_bytes(pem(authority.issue_cert("localhost")))
    return Store("ssl.keystore", str(path))


def shown_by(context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a client is shown."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = context.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    certificate = ours.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate).serial_number


def contexts_of(own: Store) -> StoreContexts:
    settings = ListenerTlsSettings(own=own)
    return StoreContexts(lambda: listener_context(settings), (own, settings.trust), "listener SSL")


def serial(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


async def test_a_new_certificate_is_shown_as_soon_as_its_file_is_there(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "broker.pem"
    contexts = contexts_of(stored(authority, path))
    before = await contexts.current()
    assert await contexts.current() is before
    assert shown_by(before) == serial(path)
    stored(authority, tmp_path / "new.pem")
    os.replace(tmp_path / "new.pem", path)
    after = await contexts.current()
    assert after is not before
    assert shown_by(after) == serial(path) != shown_by(before)
    with caplog.at_level(logging.ERROR):
        path.write_bytes(b"half a key st")
        assert await contexts.current() is after
        assert await contexts.current() is after
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "listener SSL keeps its certificate" in caplog.text
    path.unlink()
    assert await contexts.current() is after
    stored(authority, path)
    assert shown_by(await contexts.current()) == serial(path)


async def test_a_link_that_is_swapped_is_followed(authority: trustme.CA, tmp_path: Path) -> None:
    """As certificate managers do it: the path is a link into a directory of one version."""
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        stored(authority, tmp_path / name / "tls.pem")
    (tmp_path / "current").symlink_to("v1")
    path = tmp_path / "current" / "tls.pem"
    contexts = contexts_of(Store("ssl.keystore", str(path)))
    assert shown_by(await contexts.current()) == serial(tmp_path / "v1" / "tls.pem")
    (tmp_path / "next").symlink_to("v2")
    os.replace(tmp_path / "next", tmp_path / "current")
    assert shown_by(await contexts.current()) == serial(tmp_path / "v2" / "tls.pem")


def test_pkcs12_and_inline_pem(authority: trustme.CA, tmp_path: Path) -> None:
    leaf = authority.issue_cert("localhost")
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    [certificate] = x509.load_pem_x509_certificates(leaf.cert_chain_pems[0].bytes())
    path = tmp_path / "broker.p12"
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"broker",
            key,
            certificate,
            None,
            serialization.BestAvailableEncryption(b"open"),  # type: ignore[arg-type]
        )
    )
    for store_type in (None, "PKCS12", "JKS"):  # Java's default is JKS, whatever the file is
        store = Store("ssl.keystore", str(path), store_type, "open")
        assert shown_by(listener_context(ListenerTlsSettings(own=store))) == (
            certificate.serial_number
        )
    inline = Store(
        "ssl.keystore",
        certificates=leaf.cert_chain_pems[0].bytes().decode(),
        key=leaf.private_key_pem.bytes().decode(),
    )
    assert shown_by(listener_context(ListenerTlsSettings(own=inline))) == (
        certificate.serial_number
    )
    with pytest.raises(SecuritySettingError, match="is the password right") as refused:
        listener_context(
            ListenerTlsSettings(own=Store("ssl.keystore", str(path), None, "a-secret"))
        )
    assert "a-secret" not in str(refused.value)


def test_a_key_with_a_password(authority: trustme.CA, tmp_path: Path) -> None:
    leaf = authority.issue_cert("localhost")
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"s3cret"),
    )
    path = tmp_path / "broker.pem"
    path.write_bytes(locked + leaf.cert_chain_pems[0].bytes())
    own = Store("ssl.keystore", str(path))
    shown_by(listener_context(ListenerTlsSettings(own=own, key_password="s3cret")))
    for password in (None, "wr0ng"):
        with pytest.raises(SecuritySettingError, match=r"does ssl\.key\.password") as refused:
            listener_context(ListenerTlsSettings(own=own, key_password=password))
        assert "wr0ng" not in str(refused.value)
    assert "s3cret" not in repr(ListenerTlsSettings(own=own, key_password="s3cret"))


def test_stores_that_cannot_serve(authority: trustme.CA, tmp_path: Path) -> None:
    jks = tmp_path / "broker.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed rest")
    lone = tmp_path / "certificate.pem"
    lone.write_bytes(authority.cert_pem.bytes())
    other = tmp_path / "other.pem"
    other.write_bytes(
        authority.issue_cert("a").private_key_pem.bytes()
        + authority.issue_cert("b").cert_chain_pems[0].bytes()
    )
    for store, reason in (
        (Store("ssl.keystore"), r"ssl\.keystore\.location .* is needed"),
        (Store("ssl.keystore", str(tmp_path / "none.pem")), "No such file"),
        (Store("ssl.keystore", str(lone)), "has no private key"),
        (Store("ssl.keystore", str(other)), "does it belong to the first certificate"),
        (
            Store("ssl.keystore", str(jks)),
            f"keytool -importkeystore -srckeystore {jks} -destkeystore {jks}.p12",
        ),
    ):
        with pytest.raises(SecuritySettingError, match=reason):
            listener_context(ListenerTlsSettings(own=store))


def test_what_is_offered(authority: trustme.CA, tmp_path: Path) -> None:
    own = stored(authority, tmp_path / "broker.pem")

    def context(*suites: str, versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")) -> ssl.SSLContext:
        return listener_context(
            ListenerTlsSettings(own=own, cipher_suites=suites, enabled_protocols=versions)
        )

    old, new = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    both, recent = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"
    for made, versions in (
        (context(), (old, new)),
        (context(both), (old, old)),
        (context(recent), (new, new)),
        (context(both, recent), (old, new)),
        (context(versions=("TLSv1.3",)), (new, new)),
    ):
        assert (made.minimum_version, made.maximum_version) == versions
    names = [each["name"] for each in context(both).get_ciphers()]
    assert [name for name in names if not name.startswith("TLS_")] == [openssl_name(both)]
    with pytest.raises(SecuritySettingError, match="belongs to a version"):
        context(both, versions=("TLSv1.3",))
    with pytest.raises(SecuritySettingError, match="OpenSSL knows none"):
        context("TLS_RSA_WITH_NOTHING_AT_ALL")
    with pytest.raises(SecuritySettingError, match=r"ssl\.protocol: SSLv3"):
        listener_context(ListenerTlsSettings(own=own, protocol="SSLv3"))


@pytest.mark.parametrize(
    ("iana", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA256", "AES128-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_128_CCM", "DHE-RSA-AES128-CCM"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
    ],
)
def test_names_of_suites(iana: str, openssl: str) -> None:
    assert openssl_name(iana) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)
