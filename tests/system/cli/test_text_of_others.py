"""What tenants choose (names of groups, transactions and users, keys, values, headers) in the
terminal of an administrator: nothing of it acts there, and nothing of it makes a new line.
"""

from __future__ import annotations

import pty
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from moldau.client import CommittedOffset, NewTopic, TopicPartition
from moldau.client.sync import Admin, Producer
from tests.system.cli.conftest import Cli, all_of, heard

ACTS = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e[red]\n\rforged"
SHOWN = r"\x1b]0;owned\x07\x1b[31m\x9b2J\u202e[red]\n\rforged"
IN_JSON = r"\u001b]0;owned\u0007\u001b[31m\u009b2J\u202e[red]\n\rforged"
IN_ERROR = SHOWN.replace(r"\n\r", " ")
IN_RECORD = SHOWN.replace(r"\n", "\r\n")
"""Records keep their lines and tabs; a terminal begins a line at a line feed."""

RAW = ("\x1b]0;", "\x07", "\x1b[31m", "\x9b", "\u202e", "\rforged", "\nforged")


class Tenant(NamedTuple):
    """What exists of one: a topic, and the name of all else."""

    topic: str
    name: str


@pytest.fixture(scope="module")
def tenant(cli: Cli) -> Iterator[Tenant]:
    topic = f"hostile-{uuid.uuid4().hex[:8]}"
    name = ACTS + topic
    with Admin(cli.bootstrap) as admin, Producer(cli.bootstrap, transactional_id=name) as producer:
        admin.create_topics([NewTopic(topic, 1, 1)])
        assert admin.alter_group_offsets(name, {TopicPartition(topic, 0): CommittedOffset(0)}) == {
            TopicPartition(topic, 0): None
        }
        admin.alter_client_quotas({(("user", name),): {"producer_byte_rate": 1e6}})
        with producer.transaction():
            producer.send(topic, ACTS.encode(), key=ACTS.encode(), headers=[(ACTS, b"x")])
        yield Tenant(topic, name)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("groups list", SHOWN),
        ("groups describe NAME", SHOWN),
        ("groups describe NAME-gone", IN_ERROR),
        ("groups delete NAME-gone", SHOWN),
        ("groups delete-offsets NAME --topic TOPIC", IN_ERROR),
        ("groups delete-offsets NAME --topic TOPIC --yes", SHOWN),
        ("groups reset-offsets NAME --topic TOPIC --to-latest", SHOWN),
        ("transactions list", SHOWN),
        ("transactions describe NAME", SHOWN),
        ("transactions describe NAME-gone", IN_ERROR),
        ("transactions force-terminate NAME", IN_ERROR),
        ("transactions force-terminate NAME --yes", SHOWN),
        ("quotas describe", SHOWN),
        ("topics describe NAME", SHOWN),
        ("topics delete NAME", IN_ERROR),
        ("consume TOPIC --from-beginning --until-end --fields key,value,headers", IN_RECORD),
        ("consume TOPIC --from-beginning --until-end --json", IN_JSON),
        ("consume TOPIC --from-beginning --until-end --format %k:%v:%h", IN_RECORD),
        ("groups list --json", IN_JSON),
        ("transactions list --json", IN_JSON),
        ("groups delete NAME", IN_ERROR),
        ("groups delete NAME --yes", SHOWN),
    ],
)
def test_names_and_records_do_nothing_to_a_terminal(
    cli: Cli, tenant: Tenant, command: str, shown: str
) -> None:
    words = [
        word.replace("NAME", tenant.name).replace("TOPIC", tenant.topic) for word in command.split()
    ]
    with heard(all_of, pty.openpty) as (terminal, drawn):
        cli.end(*words, stdout=terminal, stderr=terminal)
    text = drawn.result()
    assert [each for each in RAW if each in text] == []
    assert shown in text


def test_what_goes_elsewhere_means_what_it_did(cli: Cli, tenant: Tenant) -> None:
    consume = ("consume", tenant.topic, "--from-beginning", "--until-end")
    assert cli.json(*consume)["value"] == ACTS
    with heard(all_of) as (pipe, read):
        cli.end(*consume, stdout=pipe)
    assert read.result() == f"{ACTS}\n"
    assert tenant.name in [each["transactional_id"] for each in cli.json("transactions", "list")]
