"""What a node shows other nodes: by which keys, and what cannot work."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from moldau.config import ConfigError, NodeConfig
from moldau.metadata.scram_users import ScramUsers
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.tls import check_handshake
from moldau.runtime.connector import PeerSecurity
from moldau.sasl.gssapi.client import KerberosLogin, RenewalRules
from moldau.sasl.login import Value
from moldau.sasl.plain import PlainLogin
from moldau.sasl.scram import ScramLogin
from moldau.server.authentication.peer_security import (
    change_login,
    check_own_certificate,
    peer_security,
)
from moldau.server.authentication.tls_settings import peer_tls_settings
from tests.kit.gssapi_double import installed
from tests.kit.manual_clock import ManualClock

MECHANISM_KEY = "sasl.mechanism.inter.broker.protocol"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
KRB5 = "com.sun.security.auth.module.Krb5LoginModule"


def config(protocol: str, **keys: str | None) -> NodeConfig:
    """A key of None is left out."""
    values: dict[str, str | None] = {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "c:1",
        "controller.listener.names": "CONTROLLER",
        "listeners": "NODES://:1",
        "inter.broker.listener.name": "NODES",
        "listener.security.protocol.map": f"NODES:{protocol},CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
        **keys,
    }
    return NodeConfig({key: text for key, text in values.items() if text is not None})


def peers(protocol: str, **keys: str) -> PeerSecurity | None:
    return peer_security(config(protocol, **keys), "NODES", MECHANISM_KEY, clock=ManualClock())


def jaas(mechanism: str, module: str, options: str) -> dict[str, str]:
    key = f"listener.name.nodes.{mechanism.lower()}.sasl.jaas.config"
    more = {MECHANISM_KEY: mechanism, "sasl.enabled.mechanisms": mechanism}
    return {**more, key: f"{module} required {options};"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A certificate, and its authority."""
    authority, folder = trustme.CA(), tmp_path_factory.mktemp("stores")
    leaf = authority.issue_cert("localhost")
    leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / "own.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return {
        "ssl.keystore.location": str(folder / "own.pem"),
        "ssl.truststore.location": str(folder / "ca.pem"),
    }


def test_plaintext_needs_nothing() -> None:
    assert peers("PLAINTEXT") is None


def test_tls_has_the_stores_of_the_listener(stores: dict[str, str]) -> None:
    made = peers("SSL", **stores)
    assert made is not None
    assert (made.listener_name, made.login) == ("NODES", None)
    assert made.contexts is not None
    assert made.contexts.last.check_hostname
    unchecked = peers("SSL", **{**stores, "ssl.endpoint.identification.algorithm": ""})
    assert unchecked is not None
    assert unchecked.contexts is not None
    assert not unchecked.contexts.last.check_hostname
    with pytest.raises(ConfigError, match=r"listener NODES: https, or nothing"):
        peers("SSL", **{**stores, "ssl.endpoint.identification.algorithm": "ftp"})
    peers("SSL", **{**stores, "ssl.endpoint.identification.algorithm": "HTTPS"})
    with pytest.raises(ConfigError, match=r"listener NODES.*nowhere"):
        peers("SSL", **{**stores, "ssl.truststore.location": "/nowhere"})


def test_the_type_of_a_store_is_what_the_configuration_says_or_the_file_shows(
    stores: dict[str, str],
) -> None:
    given = peer_tls_settings(config("SSL", **stores), "NODES", {})
    assert (given.own.type, given.trust.type) == ("PEM", "PEM")
    keys = {**stores, "listener.name.nodes.ssl.keystore.type": "pkcs12"}
    assert peer_tls_settings(config("SSL", **keys), "NODES", {}).own.type == "PKCS12"


def test_a_type_that_is_set_while_the_node_runs_goes_before_the_configuration_s() -> None:
    plain = {"ssl.keystore.type": None, "ssl.truststore.type": None}
    bare = config("SSL", **plain)
    settings = peer_tls_settings(bare, "NODES", {})
    assert (settings.own.type, settings.trust.type) == (None, None)
    for store in ("keystore", "truststore"):
        now = {f"listener.name.nodes.ssl.{store}.type": "pkcs12"}
        for node in (bare, config("SSL")):
            settings = peer_tls_settings(node, "NODES", now)
            types = {"keystore": settings.own.type, "truststore": settings.trust.type}
            assert types.pop(store) == "PKCS12"
            assert set(types.values()) == {None if node is bare else "PEM"}
        settings = peer_tls_settings(bare, "NODES", {f"listener.name.other.ssl.{store}.type": "x"})
        assert (settings.own.type, settings.trust.type) == (None, None)


def test_only_a_location_that_is_set_while_the_node_runs_is_bound_to_directories(
    stores: dict[str, str],
) -> None:
    node = config("SSL", **stores)
    settings = peer_tls_settings(node, "NODES", {})
    assert (settings.own.directories, settings.trust.directories) == (None, None)
    now = {"listener.name.nodes.ssl.keystore.location": "/elsewhere"}
    settings = peer_tls_settings(node, "NODES", now)
    assert settings.own.location == "/elsewhere"
    assert settings.own.directories is not None
    assert settings.trust.location == stores["ssl.truststore.location"]
    assert settings.trust.directories is None


def test_passwords_are_those_of_the_listener_s_login_module() -> None:
    made = peers("SASL_PLAINTEXT", **jaas("PLAIN", PLAIN, 'username="n" password="p"'))
    assert made is not None
    assert made.contexts is None
    assert made.login == PlainLogin("n", "p")
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
    made = peers("SASL_PLAINTEXT", **jaas("SCRAM-SHA-256", scram, 'username="n" password="p"'))
    assert made is not None
    assert made.login == ScramLogin("SCRAM-SHA-256", "n", "p")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ('user_a="b"', "needs username and password"),
        ('username="n"', "needs username and password"),
        ('password="p"', "needs username and password"),
    ],
)
def test_a_login_needs_its_name_and_its_password(options: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        peers("SASL_PLAINTEXT", **jaas("PLAIN", PLAIN, options))


def test_kerberos_logs_in_by_the_listener_s_login_module(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(ConfigError, match="is needed, for this node to log in to the others"):
        peers("SASL_PLAINTEXT", **{MECHANISM_KEY: "GSSAPI", "sasl.enabled.mechanisms": "GSSAPI"})
    keyed = jaas("GSSAPI", KRB5, 'useKeyTab=true keyTab="/k" principal="kafka/h@R"')
    with pytest.raises(ConfigError, match=r"needs sasl\.kerberos\.service\.name"):
        peers("SASL_PLAINTEXT", **keyed)
    settings = {
        **keyed,
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.ticket.renew.window.factor": "0.5",
        "sasl.kerberos.ticket.renew.jitter": "0.25",
        "sasl.kerberos.min.time.before.relogin": "1000",
    }
    made = peers("SASL_PLAINTEXT", **settings)
    assert made is not None
    login = made.login
    assert isinstance(login, KerberosLogin)
    assert (login.service_name, login.principal, login.keytab) == ("kafka", "kafka/h@R", "/k")
    assert login.rules == RenewalRules(0.5, 0.25, 1_000.0)


class Login:
    """Remembers the rules that it is to go by."""

    mechanism = "GSSAPI"

    def __init__(self) -> None:
        self.rules: list[RenewalRules] = []

    def change(self, value: Value) -> None:
        self.rules.append(RenewalRules.of(value))


def test_tickets_are_renewed_by_the_rules_of_now() -> None:
    node, login = config("PLAINTEXT"), Login()
    now: Any = {
        "sasl.kerberos.ticket.renew.window.factor": 0.5,
        "sasl.kerberos.ticket.renew.jitter": 0.1,
        "sasl.kerberos.min.time.before.relogin": 7,
    }
    change_login(node, PeerSecurity("NODES", None, login), now)  # type: ignore[arg-type]
    assert login.rules == [RenewalRules(0.5, 0.1, 7.0)]
    for other in (None, PlainLogin("n", "p")):
        change_login(node, PeerSecurity("NODES", None, other), now)


def test_a_node_accepts_one_like_itself(stores: dict[str, str], tmp_path: Path) -> None:
    from moldau.server.authentication.listener_security import ListenerSecurity

    def both(**keys: str) -> tuple[ListenerSecurity | None, PeerSecurity | None]:
        node = config("SSL", **{**stores, **keys})
        own = ListenerSecurity.of(node, node.listeners[0], ScramUsers())
        return own, peer_security(node, "NODES", MECHANISM_KEY)

    own, other = both()
    assert own is not None
    assert other is not None
    check_own_certificate(own, other)
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    _, strict = both(**{"ssl.truststore.location": str(tmp_path / "ca.pem")})
    with pytest.raises(ConfigError, match=r"listener NODES.*refuse one another"):
        check_own_certificate(own, strict)
    # Where one side has no TLS nothing can be refused.
    bare = PeerSecurity("NODES", None, None)
    without = SimpleNamespace(contexts=None)
    for pair in ((None, strict), (own, None), (own, bare), (without, strict), (None, None)):
        check_own_certificate(*pair)  # type: ignore[arg-type]


def test_stores_may_be_texts(stores: dict[str, str]) -> None:
    whole = Path(stores["ssl.keystore.location"]).read_text()
    at = whole.index("-----BEGIN CERTIFICATE")
    keys = {
        "ssl.keystore.certificate.chain": whole[at:],
        "ssl.keystore.key": whole[:at],
        "ssl.truststore.certificates": Path(stores["ssl.truststore.location"]).read_text(),
        "ssl.key.password": "open",
    }
    settings = peer_tls_settings(config("SSL", **keys), "NODES", {})
    assert (settings.own.location, settings.own.certificates) == (None, whole[at:].strip())
    assert settings.own.key == whole[:at].strip()
    assert settings.trust.certificates == keys["ssl.truststore.certificates"].strip()
    assert settings.trust.key is None
    assert settings.key_password == "open"


def test_a_trial_of_certificates_leaves_the_names_to_be_checked(stores: dict[str, str]) -> None:
    made = peers("SSL", **stores)
    assert made is not None
    assert made.contexts is not None
    client = made.contexts.last
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(stores["ssl.keystore.location"])
    check_handshake(server, client)
    assert client.check_hostname
    stranger = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost").configure_cert(stranger)
    with pytest.raises(SecuritySettingError, match="refuse one another"):
        check_handshake(stranger, client)
    assert client.check_hostname
