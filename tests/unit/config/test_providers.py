"""References in values to files, directories and the environment: what is found, and refusals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client import ClientConfig, ConfigurationError
from moldau.config import ConfigError, NodeConfig
from moldau.config.providers import PROVIDERS, resolved, without_providers

PACKAGE = "org.apache.kafka.common.config.provider."
SECRET = "s3cret = with \\ signs, ${and} more"
ENVIRONMENT = {"MOLDAU_TEST_PASSWORD": SECRET, "HOME_OF_IT": "/data"}


def configured(kind: str, **parameters: str) -> dict[str, str]:
    """One provider, named `p`."""
    return {
        PROVIDERS: "p",
        f"{PROVIDERS}.p.class": f"{PACKAGE}{kind}ConfigProvider",
        **{f"{PROVIDERS}.p.param.{name.replace('_', '.')}": v for name, v in parameters.items()},
    }


def value_of(text: str, properties: dict[str, str]) -> object:
    return resolved({**properties, "key": text}, ENVIRONMENT)["key"]


def refusal_of(text: str, properties: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved({**properties, "key": text}, ENVIRONMENT)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_a_key_of_a_file(tmp_path: Path):
    path = tmp_path / "secrets.properties"
    path.write_text("password = deep\\u0020blue\nother = x\n")
    properties = configured("File")
    assert value_of(f"${{p:{path}:password}}", properties) == "deep blue"
    assert value_of(f"<${{p:{path}:password}}|${{p:{path}:other}}>", properties) == "<deep blue|x>"
    assert refusal_of(f"${{p:{path}:pass}}", properties) == (
        f"key: ${{p:{path}:pass}}: {path} has no key 'pass'"
    )
    assert "No such file" in refusal_of(f"${{p:{path}.no:password}}", properties)
    assert "a path is missing" in refusal_of("${p:password}", properties)


def test_a_file_of_a_directory(tmp_path: Path):
    (tmp_path / "password").write_text(SECRET)
    (tmp_path / "binary").write_bytes(b"\xff")
    properties = configured("Directory")
    assert value_of(f"${{p:{tmp_path}:password}}", properties) == SECRET
    assert "No such file" in refusal_of(f"${{p:{tmp_path}:missing}}", properties)
    assert "not UTF-8" in refusal_of(f"${{p:{tmp_path}:binary}}", properties)
    for name in ("", "..", "a/b"):
        assert "no name of a file" in refusal_of(f"${{p:{tmp_path}:{name}}}", properties)


def test_a_variable_of_the_environment():
    properties = configured("EnvVar")
    assert value_of("${p:HOME_OF_IT}/logs", properties) == "/data/logs"
    assert value_of("${p:MOLDAU_TEST_PASSWORD}", properties) == SECRET, "taken as it is"
    assert "no variable 'MISSING'" in refusal_of("${p:MISSING}", properties)
    assert "no path" in refusal_of("${p:some/path:HOME_OF_IT}", properties)


def test_what_may_be_read_is_limited(tmp_path: Path):
    inside, outside = tmp_path / "in", tmp_path / "inside-not"
    for directory in (inside, outside):
        directory.mkdir()
        (directory / "f").write_text("k=v")
    (inside / "link").symlink_to(outside / "f")
    properties = configured("File", allowed_paths=f"{inside}, {tmp_path}/other")
    assert value_of(f"${{p:{inside}/f:k}}", properties) == "v"
    for path in (f"{outside}/f", f"{inside}/../inside-not/f", f"{inside}/link"):
        assert "not below any of allowed.paths" in refusal_of(f"${{p:{path}:k}}", properties)
    properties = configured("EnvVar", allowlist_pattern="HOME_.*")
    assert value_of("${p:HOME_OF_IT}", properties) == "/data"
    assert "allowlist.pattern" in refusal_of("${p:MOLDAU_TEST_PASSWORD}", properties)


@pytest.mark.parametrize("kind", ["Vault", "", "File\n"])
def test_a_provider_that_is_not_served(kind: str):
    properties = {**configured("File"), f"{PROVIDERS}.p.class": kind}
    assert f"{PROVIDERS}.p.class: must be one of {PACKAGE}" in refusal_of("x", properties)


def test_a_pattern_that_is_none():
    properties = configured("EnvVar", allowlist_pattern="(")
    assert "allowlist.pattern: is no pattern" in refusal_of("x", properties)


@given(text=st.text(alphabet="${}:p q", max_size=12))
def test_without_providers_every_text_is_itself(text: str):
    assert resolved({"key": text}, ENVIRONMENT) == {"key": text}
    if "${p:" not in text:
        assert value_of(text, configured("EnvVar")) == text


def test_values_about_providers_are_not_replaced():
    properties = {**configured("EnvVar"), f"{PROVIDERS}.p.param.x": "${p:HOME_OF_IT}"}
    assert resolved(properties, ENVIRONMENT) == properties
    assert without_providers({**properties, "a": "b"}) == {"a": "b"}


def test_a_node_reads_its_values_so(tmp_path: Path):
    (tmp_path / "log.dirs").write_text("/from/a/file")
    path = tmp_path / "server.properties"
    path.write_text(
        f"""
config.providers=p,e
config.providers.p.class={PACKAGE}DirectoryConfigProvider
config.providers.e.class={PACKAGE}EnvVarConfigProvider
process.roles=broker,controller
node.id=${{e:NODE}}
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=localhost:9093
log.dirs=${{p:{tmp_path}:log.dirs}}
"""
    )
    config = NodeConfig.load(str(path), {"broker.rack": "${e:ZONE}"}, {"NODE": "7", "ZONE": "b"})
    assert (config["node.id"], config["log.dirs"]) == (7, ("/from/a/file",))
    assert config["broker.rack"] == "b"
    assert config.warnings == ()
    more = NodeConfig.load(str(path), {"config.providers.x.class": "y"}, {"NODE": "7"})
    assert more.warnings == (
        "config.providers.x.class has no effect: config.providers does not name this provider",
    )
    with pytest.raises(ConfigError, match="no variable 'NODE'"):
        NodeConfig.load(str(path), {}, {})


def test_a_client_reads_its_settings_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOLDAU_TEST_PASSWORD", SECRET)
    properties = {
        **configured("EnvVar"),
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "${p:MOLDAU_TEST_PASSWORD}",
        "request.timeout.ms": 1_000,
    }
    config = ClientConfig.from_properties(properties)
    assert config.sasl_password == SECRET
    assert SECRET not in repr(config)
    del os.environ["MOLDAU_TEST_PASSWORD"]
    with pytest.raises(ConfigurationError, match=r"sasl\.password: .*no variable"):
        ClientConfig.from_properties(properties)
