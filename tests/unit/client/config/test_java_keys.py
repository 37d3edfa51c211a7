"""Every key of Kafka's Java clients is known here, with its default unless we say otherwise."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from moldau.client import (
    AdminConfig,
    ClientConfig,
    ConfigurationError,
    ConsumerConfig,
    ProducerConfig,
)
from moldau.client.config import keywords
from moldau.config.client_keys import (
    CLIENT,
    FILE,
    KINDS,
    areas_of,
    client_keys,
    unserved_client_keys,
)
from moldau.config.definition import Status
from moldau.config.rows import read_rows


class JavaKey(NamedTuple):
    """A line of the table."""

    name: str
    type: str
    default: str
    clients: list[str]


CLIENTS: dict[str, type[ClientConfig]] = {
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
OTHERWISE = {key.name for kind in KINDS for key in client_keys(kind).values() if key.note}
"""Where our default is another one on purpose: the row says why, and docs/client.md."""
STUB = {
    each.name: {field.target.id for field in each.body if isinstance(field, ast.AnnAssign)}
    for each in ast.parse(Path(keywords.__file__).with_suffix(".pyi").read_text()).body
    if isinstance(each, ast.ClassDef)
}
"""The names of what each class of settings has, for type checkers."""
BEFORE_ALL = {"config.providers"}
"""What says how to read the others, and is no setting of a client."""


def test_the_table_has_more_than_130_keys():
    assert len(TABLE) > 130


@pytest.mark.parametrize("client", list(CLIENTS))
def test_every_key_is_known_and_has_javas_default(client: str):
    kind = CLIENTS[client]
    default = kind("a:1")
    for key in TABLE:
        if client not in key.clients or key.name in {*unserved_client_keys(), *BEFORE_ALL}:
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


@pytest.mark.parametrize("client", list(CLIENTS))
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
        made = CLIENTS[client].from_properties({**properties, "bootstrap.servers": "a:1"})
    assert made.request_timeout_ms == 30_000


def test_no_key_is_both_served_and_not():
    served = {name.replace("_", ".") for kind in CLIENTS.values() for name in kind.KEYS}
    assert served.isdisjoint(unserved_client_keys())


def test_a_second_row_of_a_key_gives_one_client_another_default():
    rows = list(read_rows(FILE))
    pairs = [(area, row["key"]) for row in rows for area in areas_of(row)]
    assert len(pairs) == len(set(pairs))
    assert {area for area, _ in pairs} == {CLIENT, *KINDS}
    of_all = {row["key"]: row for row in rows if row["area"] == CLIENT}
    for row in rows:
        if row["area"] != CLIENT and row["key"] in of_all:
            common = of_all[row["key"]]
            assert {column for column in row if row[column] != common[column]} == {
                "area",
                "default",
            }


def test_every_row_says_what_its_status_needs():
    for row in read_rows(FILE):
        if row["status"] == "served":
            kind = row["type"].split()[0]
            assert row["limits"] or kind in ("boolean", "string", "password", "list"), row
            assert row["annotation"] or kind != "class", row
        else:
            assert row["area"] == CLIENT, row
            assert bool(row["reason"]) == (row["status"] == "refused"), row


@pytest.mark.parametrize(
    "name",
    sorted(key.name for key in unserved_client_keys().values() if key.status is Status.REFUSED),
)
def test_what_would_not_do_what_it_says_is_refused_with_what_to_do(name: str):
    with pytest.raises(ConfigurationError, match=rf"{name}: .*(give|come from|put)"):
        ClientConfig.from_properties({"bootstrap.servers": "a:1", name: "com.example.Mine"})


@pytest.mark.parametrize("kind", [ClientConfig, *CLIENTS.values()])
def test_type_checkers_know_the_keyword_arguments_and_the_attributes(kind: type[ClientConfig]):
    arguments, attributes = STUB["ClientSettings"], STUB["ClientValues"]
    if kind is not ClientConfig:
        arguments = arguments | STUB[kind.__name__.replace("Config", "Settings")]
        attributes = attributes | STUB[kind.__name__.replace("Config", "Values")]
    assert arguments == set(kind.KEYS) - {"bootstrap_servers"}
    assert attributes == set(kind.KEYS)


def test_names_of_types_are_the_same_for_type_checkers_and_at_run_time():
    here = {name for name, each in vars(keywords).items() if isinstance(each, type)}
    assert here == set(STUB)
