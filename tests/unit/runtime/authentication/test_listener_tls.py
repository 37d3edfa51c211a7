"""TLS contexts of listeners: which stores serve, what is offered, and files that change."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import ssl
import tempfile
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
from tests.kit.counting import collector_at_rest, descriptors


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


async def test_a_new_certificate_is_shown_as_soon_as_its_file_exists(
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


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("problem", [FULL, RuntimeError("can't start new thread"), MemoryError()])
async def test_the_last_good_context_stays_however_loading_fails(
    authority: trustme.CA,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    problem: Exception,
) -> None:
    """It is replaced as soon as loading goes well, although the file is the same one then."""
    path = tmp_path / "broker.pem"
    own = stored(authority, path)
    problems: list[Exception] = []
    tries: list[None] = []

    def make() -> ssl.SSLContext:
        tries.append(None)
        if problems:
            raise problems[0]
        return listener_context(ListenerTlsSettings(own=own))

    contexts = StoreContexts(make, (own,), "listener SSL")
    before = contexts.last
    stored(authority, path)
    problems.append(problem)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert await contexts.current() is before
        assert len(tries) == 4
        assert await asyncio.gather(*(contexts.current() for _ in range(9))) == [before] * 9
    assert len(tries) == 5, "those that waited for a failure do not repeat it"
    [line] = caplog.messages
    assert line.startswith("listener SSL keeps its certificate, the files that have changed cannot")
    assert line.endswith(f": {problem}" if str(problem) else ": MemoryError")
    assert not await contexts.replace(make, (own,))
    assert contexts.last is before
    problems.clear()
    assert shown_by(await contexts.current()) == serial(path) != shown_by(before)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has files in memory")
async def test_a_machine_without_descriptors_or_disk(
    authority: trustme.CA,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "broker.pem"
    own = stored(authority, path)
    settings = ListenerTlsSettings(own=own, trust=own, client_auth="requested")
    contexts = StoreContexts(lambda: listener_context(settings), (own,), "listener SSL")

    def no_descriptors(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    # Nothing needs a directory that can be written to.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    stored(authority, path)
    assert shown_by(await contexts.current()) == serial(path)
    before = contexts.last
    stored(authority, path)
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(os, "memfd_create", no_descriptors)
        assert await contexts.current() is before
        with pytest.raises(SecuritySettingError, match=r"ssl\.keystore: Too many open files"):
            listener_context(settings)
    assert "Too many open files" in caplog.text
    assert shown_by(await contexts.current()) == serial(path)


def test_private_keys_leave_no_file_and_no_descriptor(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is no memfd; there the file is gone as soon as the key is loaded."""
    own = stored(authority, tmp_path / "broker.pem")
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    settings = ListenerTlsSettings(own=own, trust=own, client_auth="requested")
    for _ in range(2):
        with collector_at_rest():
            before = descriptors()
            shown_by(listener_context(settings))
            assert not descriptors() - before
        assert not list(directory.iterdir())
        monkeypatch.delattr(os, "memfd_create", raising=False)


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
        (Store("ssl.keystore", "/x\0y"), r"ssl\.keystore\.location: '/x\\x00y': no file can"),
        (
            Store("ssl.keystore", certificates="-----BEGIN é", key="-----BEGIN é"),
            r"ssl\.keystore: a character in it is not ASCII",
        ),
        (Store("ssl.keystore", str(lone)), "has no private key"),
        (Store("ssl.keystore", str(other)), "does it belong to the first certificate"),
        (
            Store("ssl.keystore", str(jks)),
            f"keytool -importkeystore -srckeystore {jks} -destkeystore {jks}.p12",
        ),
    ):
        with pytest.raises(SecuritySettingError, match=reason):
            listener_context(ListenerTlsSettings(own=store))


def test_inline_authorities_that_are_not_ascii(authority: trustme.CA, tmp_path: Path) -> None:
    own = stored(authority, tmp_path / "broker.pem")
    text = authority.cert_pem.bytes().decode()

    def trusting(certificates: str) -> ListenerTlsSettings:
        trust = Store("ssl.truststore", certificates=certificates)
        return ListenerTlsSettings(own=own, trust=trust, client_auth="required")

    listener_context(trusting(f"# žluť, as some tools write the subject\n{text}"))
    with pytest.raises(SecuritySettingError, match=r"ssl\.truststore: a character in it is not"):
        listener_context(trusting(text.replace("MII", "MIIé", 1)))


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
