"""Client settings: Kafka's names, ranges, and one clear error for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.client import ClientConfig, ConfigurationError
from moldau.client.config.client import parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("broker-1", ("broker-1", 9092)),
        ("[::1]:19092", ("::1", 19092)),
        ("[fe80::2]", ("fe80::2", 9092)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", ":9092", "host:", "host:0", "host:65536", "host:x", "[::1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not HOST:PORT"):
        parse_address(text)


def test_dotted_keys_and_keyword_arguments_mean_the_same() -> None:
    dotted = ClientConfig.from_properties(
        {"bootstrap.servers": "a:1, b:2", "request.timeout.ms": "7", "client.id": "me"}
    )
    assert dotted == ClientConfig("a:1,b:2", request_timeout_ms=7, client_id="me")


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean request\.timeout\.ms"):
        ClientConfig.from_properties({"bootstrap.servers": "a:1", "request.timeout.mss": "1"})
    with pytest.raises(ConfigurationError, match="did you mean client_id"):
        ClientConfig("a:1", clientid="x")


@pytest.mark.parametrize(
    ("key", "value"),
    [("request.timeout.ms", "soon"), ("request.timeout.ms", "-1"), ("security.protocol", "TLS")],
)
def test_bad_values_name_the_key(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        ClientConfig.from_properties({"bootstrap.servers": "a:1", key: value})


def test_no_bootstrap_server() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        ClientConfig("")


def test_a_file_and_an_option_that_wins(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=a:1\nclient.id=tool\n")
    assert ClientConfig.from_file(str(path)).bootstrap_servers == ("a:1",)
    assert ClientConfig.from_file(str(path), "b:2").bootstrap_servers == ("b:2",)
    with pytest.raises(ConfigurationError, match="No such file"):
        ClientConfig.from_file(str(tmp_path / "absent"))
