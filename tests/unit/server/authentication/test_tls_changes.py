"""Which key and trust stores a listener may change to while it runs (KIP-226, KIP-978)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from moldau.config import Endpoint, NodeConfig
from moldau.config.definition import ConfigError
from moldau.config.listeners import SecurityProtocol
from moldau.node.listener_changes import ListenerChanges
from moldau.runtime.authentication.listener_tls import ListenerContexts
from moldau.runtime.authentication.tls import Store, contents
from moldau.server.authentication.tls_changes import check_change
from moldau.server.authentication.tls_settings import tls_settings_of
from moldau.x509 import alternative_names

ENDPOINT = Endpoint("OUT", "127.0.0.1", 9092, SecurityProtocol.SSL)
SUBJECT = {"organization_name": "moldau", "organization_unit_name": "broker"}
LOCATION = "listener.name.out.ssl.keystore.location"
TYPE = "listener.name.out.ssl.keystore.type"
TRUST = "listener.name.out.ssl.truststore.location"

Issue = Callable[..., str]


class _InterBroker:
    """A configuration whose inter-broker listener is OUT, whatever NodeConfig takes."""

    inter_broker_listener_name = "OUT"

    def __init__(self, config: NodeConfig) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def __getitem__(self, name: str) -> Any:
        return self._config[name]


def config(**values: str) -> NodeConfig:
    return NodeConfig(
        {
            "node.id": "1",
            "process.roles": "broker",
            "listeners": "PLAINTEXT://127.0.0.1:9093,OUT://127.0.0.1:9092",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:SSL,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": "127.0.0.1:9094",
            "moldau.ssl.store.directories": "/",
            **{name.replace("_", "."): text for name, text in values.items()},
        }
    )


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def issue(authority: trustme.CA, tmp_path: Path) -> Issue:
    def made(*names: str, by: trustme.CA = authority, **subject: str) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pem"
        leaf = by.issue_cert(*(names or ("a", "b")), **(subject or SUBJECT))
        leaf.private_key_and_cert_chain_pem.write_to_path(path)
        return str(path)

    return made


def check(node: Any, first: str, second: str, **dynamic: str) -> None:
    before = {LOCATION: first, **dynamic}
    contexts = ListenerContexts(tls_settings_of(node, ENDPOINT, before), "OUT")
    check_change(node, ENDPOINT, contexts, {**before, LOCATION: second})


def test_the_same_names_by_another_authority(issue: Issue) -> None:
    check(config(), issue(), issue(by=trustme.CA()))
    check(config(), issue("a", "b"), issue("b", "a", "c"))


def test_names_stay_unless_they_may_change(issue: Issue) -> None:
    other = issue(organization_name="m", organization_unit_name="x")
    with pytest.raises(ConfigError, match=r"'OU=x,O=m', and was 'OU=broker,O=moldau'"):
        check(config(), issue(), other)
    check(config(ssl_allow_dn_changes="true"), issue(), other)
    with pytest.raises(ConfigError, match="lacks 1 alternative names"):
        check(config(ssl_allow_dn_changes="true"), issue(), issue("a", "c"))
    check(config(**{"listener.name.out.ssl.allow.san.changes": "true"}), issue(), issue("c"))


def test_what_is_checked_is_what_is_shown(
    issue: Issue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is another one at each reading: a good one, one with another subject, which must not
    be shown, and so on.
    """
    first, second = issue(), issue()
    good = Path(second).read_bytes()
    bad = Path(issue(organization_name="m", organization_unit_name="x")).read_bytes()
    readings = [good, bad]

    def read(store: Store) -> tuple[str | None, str | None]:
        if store.location == second:
            readings.append(readings[0])
            Path(second).write_bytes(readings.pop(0))
        return contents(store)

    for module in ("runtime.authentication.listener_tls", "server.authentication.tls_changes"):
        monkeypatch.setattr(f"moldau.{module}.contents", read, raising=False)
    changes = ListenerChanges(config())
    before = tls_settings_of(config(), ENDPOINT, {LOCATION: first})
    contexts = changes._contexts[ENDPOINT] = ListenerContexts(before, "OUT")
    old = contexts.last
    asyncio.run(changes.take({LOCATION: second}))
    new = contexts.last
    assert new is not old
    assert contexts.last.chain.encode() in good
    asyncio.run(changes.take({LOCATION: second, TYPE: "PEM"}))
    assert contexts.last is new
    assert contexts.last.chain.encode() in good
    assert "listener OUT keeps its certificate, the new settings cannot be used" in caplog.text
    assert "'OU=x,O=m', and was 'OU=broker,O=moldau'" in caplog.text


def test_stores_that_cannot_be_used(issue: Issue, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location: .* No such file"):
        check(config(), issue(), str(tmp_path / "none"))
    (tmp_path / "empty").write_text("-----BEGIN X-----\n")
    with pytest.raises(ConfigError, match="listener OUT"):
        check(config(), issue(), str(tmp_path / "empty"))


def test_brokers_trust_each_other(issue: Issue, authority: trustme.CA, tmp_path: Path) -> None:
    trust = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trust))
    node: Any = _InterBroker(config())
    check(node, issue(), issue(), **{TRUST: str(trust)})
    stranger = issue(by=trustme.CA())
    with pytest.raises(ConfigError, match=r"is the authority of ssl\.keystore in ssl\.truststore"):
        check(node, issue(), stranger, **{TRUST: str(trust)})
    check(config(), issue(), stranger, **{TRUST: str(trust)})


def test_alternative_names(authority: trustme.CA) -> None:
    def names(*given: str) -> frozenset[bytes]:
        leaf = authority.issue_cert(*given)
        return alternative_names(ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode()))

    assert names("a.example", "b.example") == names("b.example", "a.example")
    assert names("a.example") < names("a.example", "10.0.0.1", "x@b.example")
    assert names("10.0.0.1") != names("10.0.0.2")
