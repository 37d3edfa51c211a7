"""The key tables agree with what Apache Kafka 4.3 itself declares."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.config import (
    BROKER_KEYS,
    GROUP_KEYS,
    TOPIC_KEYS,
    ConfigError,
    Status,
)
from moldau.config.definition import REQUIRED, ConfigKey, Importance, Scope
from moldau.config.keys import GROUP_AREA, NODE_AREAS, SERVED_KEYS, TOPIC_AREA
from moldau.config.table import REMOVED_KEYS, REMOVED_TOPIC_KEYS, keys_of_area
from moldau.config.values import format_value, parse_value
from moldau.runtime.authentication.tls import store_of
from moldau.storage.log_config import LogConfig
from tests.unit.config.facts import KeyFacts, ValueFacts, key_facts, value_facts

ROOT = Path(__file__).resolve().parents[3]
KEYS = {"broker": BROKER_KEYS, "topic": TOPIC_KEYS}
ALL_KEYS = [*BROKER_KEYS.values(), *TOPIC_KEYS.values(), *GROUP_KEYS.values()]
FACTS = key_facts()
VALUES = value_facts()
# Their elements are checked when the addresses are parsed, not by a validator.
AUTHORIZER_KEYS = ("allow.everyone.if.no.acl.found", "super.users")
"""Read by Kafka's authorizer, without a declaration among the broker's."""
PARSED_ELSEWHERE = {"controller.quorum.voters", "controller.quorum.bootstrap.servers"}
OUR_OWN = ("moldau.", *AUTHORIZER_KEYS)


def test_every_kafka_key_is_in_the_table_and_nothing_else_but_our_own():
    for kind, table in KEYS.items():
        kafka = {fact.name for fact in FACTS if fact.kind == kind}
        assert kafka - set(table) == set()
        assert {name for name in table if not name.startswith(OUR_OWN)} - kafka == set()


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact.kind}-{fact.name}")
def test_declaration_equals_kafkas(fact: KeyFacts):
    key = KEYS[fact.kind][fact.name]
    assert key.type.name == fact.type
    assert key.scope is Scope(fact.update_mode)
    assert key.importance is Importance(fact.importance.lower())
    assert key.internal is fact.internal
    if fact.default == "<required>":
        assert key.default is REQUIRED
    else:
        expected = None if fact.default == "<null>" else fact.default
        assert format_value(key, key.default) == expected
        assert key.default is None or parse_value(key, fact.default) == key.default


@pytest.mark.parametrize(
    "fact",
    [fact for fact in VALUES if fact.name not in PARSED_ELSEWHERE],
    ids=lambda fact: f"{fact.kind}-{fact.name}",
)
def test_values_are_accepted_and_rejected_as_kafka_does(fact: ValueFacts):
    key = KEYS[fact.kind][fact.name]
    for text, canonical in fact.accepted.items():
        assert format_value(key, parse_value(key, text)) == canonical
    for text in fact.rejected:
        with pytest.raises(ConfigError, match=re.escape(fact.name)):
            parse_value(key, text)


def test_no_key_is_declared_twice_and_areas_are_sorted():
    for areas in (NODE_AREAS, (TOPIC_AREA,), (GROUP_AREA,)):
        names = [key.name for area in areas for key in keys_of_area(area)]
        assert len(names) == len(set(names))
    for keys in SERVED_KEYS.values():
        names = [key.name for key in keys]
        assert names == sorted(names)


def test_served_keys_are_declared_in_code_and_the_others_in_the_data_file():
    assert {key.status for keys in SERVED_KEYS.values() for key in keys} == {Status.SERVED}
    in_code = {id(key) for keys in SERVED_KEYS.values() for key in keys}
    served = [key for key in ALL_KEYS if key.status is Status.SERVED]
    assert in_code == {id(key) for key in served}


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.name)
def test_every_key_is_documented_and_says_why_it_is_not_served(key: ConfigKey):
    assert key.documentation.endswith(".")
    assert key.documentation[0].isupper()
    assert (key.status is Status.SERVED) != bool(key.note)
    assert bool(key.refused_values or key.idle_elements) == bool(key.refusal)
    for synonym in key.synonyms:
        assert synonym in BROKER_KEYS


def test_refused_key_keeps_its_default():
    for key in ALL_KEYS:
        if key.refused_values and key.default is not REQUIRED:
            given = key.default if isinstance(key.default, tuple) else (key.default,)
            assert not set(given) & set(key.refused_values), key.name


def test_removed_keys_are_not_known_and_their_answers_name_known_ones():
    assert not set(REMOVED_KEYS) & set(BROKER_KEYS)
    assert not set(REMOVED_TOPIC_KEYS) & set(TOPIC_KEYS)
    for answers, table in ((REMOVED_KEYS, BROKER_KEYS), (REMOVED_TOPIC_KEYS, TOPIC_KEYS)):
        for answer in answers.values():
            for name in re.findall(r"[a-z]+(?:\.[a-z]+)+", answer):
                assert name in table or name == "metadata.version", answer


def _words_in_source() -> str:
    parts = []
    for path in sorted((ROOT / "moldau").rglob("*.py")):
        relative = path.relative_to(ROOT / "moldau").as_posix()
        if relative not in ("config/keys.py", "config/table.py"):
            parts.append(path.read_text(encoding="utf-8"))
    return "\n".join(parts)


def test_served_keys_are_read_somewhere():
    """A status of SERVED is a promise: some code outside the table has to look at the key."""
    source = _words_in_source()
    spelled = {name for name in BROKER_KEYS if f'"{name}"' in source}
    spelled |= {name for name in TOPIC_KEYS if f'"{name}"' in source}
    # Those of a store are read by their common beginning.
    for prefix in ("ssl.keystore", "ssl.truststore"):
        store_of(prefix, spelled.add)
    # The keys of TLS and of tokens are read once more, with a prefix.
    spelled |= {f"moldau.http.{name}" for name in spelled if name.startswith(("ssl.", "sasl."))}
    # The log's settings are read by field name.
    spelled |= {field.name.replace("_", ".") for field in dataclasses.fields(LogConfig)}
    served_through_topics = {
        synonym for name, key in TOPIC_KEYS.items() if name in spelled for synonym in key.synonyms
    }
    unread = [
        key.name
        for key in [*BROKER_KEYS.values(), *TOPIC_KEYS.values()]
        if key.status is Status.SERVED and key.name not in spelled | served_through_topics
    ]
    assert unread == []


@pytest.mark.real
def test_importing_the_tables_loads_nothing_heavy():
    program = (
        "import sys; before = set(sys.modules); import moldau.config.table;"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(run.stdout.split())
    assert "moldau.config.table" in loaded
    assert not loaded & {"asyncio", "dataclasses", "difflib", "inspect", "socket"}
    ours = {name for name in loaded if name.startswith("moldau.")}
    lightweight = ("moldau.config", "moldau.constants", "moldau.first_use", "moldau.text")
    assert all(name.startswith(lightweight) for name in ours), ours
