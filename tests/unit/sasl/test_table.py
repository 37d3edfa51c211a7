"""The table of mechanisms, and what is taken from it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from moldau.client import ClientConfig
from moldau.config.mechanisms import MECHANISMS
from moldau.config.table import BROKER_KEYS
from moldau.protocol.scram import HASH_NAMES
from moldau.runtime.authentication import SecuritySettingError
from moldau.sasl.login import SaslLogin
from moldau.sasl.mechanism import MechanismConfig, Offer, login, login_module_of, offer
from tests.kit.gssapi_double import installed
from tests.kit.manual_clock import ManualClock

OPTIONS = (
    'username="u" password="p" user_a="b" unsecuredLoginStringClaim_sub="s" '
    'serviceName="kafka" useKeyTab=true keyTab="/no/keytab" principal="kafka/h@R"'
)
LISTENER: dict[str, Any] = {
    "connections.max.reauth.ms": 5,
    "sasl.kerberos.principal.to.local.rules": ("DEFAULT",),
}


def config(mechanism: str, **more: Any) -> MechanismConfig:
    """A client's, or with a `place` a listener's, that suits every mechanism."""
    client = ClientConfig.from_properties({"bootstrap.servers": "a:1"})
    module = f"x.{MECHANISMS[mechanism].login_module} required {OPTIONS};"
    return MechanismConfig(
        mechanism,
        lambda key: LISTENER.get(key, getattr(client, key.replace(".", "_"), None)),
        login_module_of(module, mechanism),
        ManualClock(),
        context=lambda: pytest.fail("no URL of https"),
        **more,
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_has_both_sides(monkeypatch: pytest.MonkeyPatch, mechanism: str) -> None:
    installed(monkeypatch)
    made = login(config(mechanism))
    assert isinstance(made, SaslLogin)
    assert made.mechanism == mechanism
    listener = offer(config(mechanism, place="listener L", find_keys=pytest.fail))
    assert isinstance(listener, Offer)
    assert listener.max_session_ms == 5.0
    assert listener.begin() is not listener.begin()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_module_of_another_mechanism_is_refused(mechanism: str) -> None:
    with pytest.raises(SecuritySettingError, match=f"{mechanism} needs ") as refused:
        login_module_of('s3cret required a="s3cret";', mechanism)
    assert "s3cret" not in str(refused.value)


def test_every_family_is_a_separate_module() -> None:
    families = {row.family for row in MECHANISMS.values()}
    modules = {import_module(f"moldau.sasl.{each}") for each in families}
    assert len(modules) == len(families)
    assert {name for name, row in MECHANISMS.items() if row.family == "scram"} == set(HASH_NAMES)


@pytest.mark.parametrize(
    "key",
    [
        "sasl.enabled.mechanisms",
        "sasl.mechanism.controller.protocol",
        "sasl.mechanism.inter.broker.protocol",
    ],
)
def test_the_meaning_of_a_key_names_every_mechanism(key: str) -> None:
    assert all(name in BROKER_KEYS[key].documentation for name in MECHANISMS)
