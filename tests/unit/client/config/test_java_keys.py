"""Every key of Kafka's Java clients is known here, with its default unless we say otherwise."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from moldau.client import AdminConfig, ConfigurationError, ConsumerConfig, ProducerConfig
from moldau.client.config import settings
from moldau.client.config.client import AdminSettings, ClientConfig
from moldau.client.config.consumer import ConsumerSettings
from moldau.client.config.producer import ProducerSettings
from moldau.client.config.settings import java_keys


class JavaKey(NamedTuple):
    """A line of the table."""

    name: str
    type: str
    default: str
    clients: list[str]


KINDS: dict[str, type[ClientConfig]] = {
    "producer": ProducerConfig,
    "consumer": ConsumerConfig,
    "admin": AdminConfig,
}
TABLE = [
    JavaKey(name, kind, default, clients.split())
    for name, kind, default, clients in (
        [part.strip() for part in line.split("|")]
        for line in Path(__file__).with_name("java_keys.txt").read_text().splitlines()
        if not line.startswith("#")
    )
]
OTHERWISE = {
    "client.id",  # a name that says who it is, not an empty one
    "partition.assignment.strategy",  # names instead of Java's classes
    "receive.buffer.bytes",  # the system's own choice
    "send.buffer.bytes",
    "ssl.keystore.type",  # read off the file
    "ssl.truststore.type",
}
"""Where our default is another one on purpose (docs/client.md says why)."""
BEFORE_ALL = {"config.providers"}
"""What says how to read the others, and is no setting of a client."""


def test_the_table_is_there():
    assert len(TABLE) > 130


@pytest.mark.parametrize("client", list(KINDS))
def test_every_key_is_known_and_has_javas_default(client: str):
    kind = KINDS[client]
    default = kind("a:1")
    for key in TABLE:
        if client not in key.clients or key.name in {*java_keys(), *BEFORE_ALL}:
            continue
        name = key.name.replace(".", "_")
        assert name in kind.KEYS, key
        if key.name in OTHERWISE or key.name == "bootstrap.servers" or key.default == "REQUIRED":
            continue
        ours = getattr(default, name)
        if key.name == "enable.auto.commit":
            # As in Java: without a group nothing is committed, whatever the default says.
            ours = ConsumerConfig("a:1", group_id="g").enable_auto_commit
        if isinstance(ours, tuple):
            shown = f"[{', '.join(map(str, ours))}]"
        elif isinstance(ours, bool):
            shown = str(ours).lower()
        else:
            shown = "null" if ours is None else str(ours)
        assert shown == key.default.removeprefix("class "), key


@pytest.mark.parametrize("client", list(KINDS))
def test_javas_defaults_written_out_are_accepted_without_a_word(client: str):
    properties = {
        key.name: key.default.strip("[]")
        for key in TABLE
        if client in key.clients
        and key.default not in ("REQUIRED", "null")
        and key.name not in ("ssl.keystore.type", "ssl.truststore.type")
        and key.type not in ("CLASS",)
        # Java says true for producers and consumers; nothing is pushed here, which is worth a word.
        and key.name != "enable.metrics.push"
    }
    if client == "consumer":
        properties["group.id"] = "g"
        properties["partition.assignment.strategy"] = "range,cooperative-sticky"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = KINDS[client].from_properties({**properties, "bootstrap.servers": "a:1"})
    assert made.request_timeout_ms == 30_000


def test_no_key_is_both_served_and_not():
    served = {name.replace("_", ".") for kind in KINDS.values() for name in kind.KEYS}
    assert served.isdisjoint(java_keys())


def test_every_key_has_one_row():
    rows = Path(settings.__file__).with_name("java_keys.tsv").read_text().splitlines()
    assert len(rows) - 1 == len(java_keys())


@pytest.mark.parametrize(
    "name", sorted(name for name, (_, reason) in java_keys().items() if reason)
)
def test_what_would_not_do_what_it_says_is_refused_with_what_to_do(name: str):
    with pytest.raises(ConfigurationError, match=rf"{name}: .*(give|come from|put)"):
        ClientConfig.from_properties({"bootstrap.servers": "a:1", name: "com.example.Mine"})


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ProducerConfig, ProducerSettings),
        (ConsumerConfig, ConsumerSettings),
        (AdminConfig, AdminSettings),
    ],
)
def test_the_keyword_arguments_are_the_keys(kind: type[ClientConfig], settings: type):
    assert set(settings.__optional_keys__) == set(kind.KEYS) - {"bootstrap_servers"}
