"""What users of other tools type: one line, with the form that is right here."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from moldau.cli.habits import ARGUMENTS, COMMANDS, OPTIONS
from moldau.cli.main import app
from tests.kit.commands import run_here

TYPED = {
    # kafka-topics.sh, kafka-consumer-groups.sh, kafka-configs.sh, kafka-acls.sh
    "topics --create --topic orders --partitions 3": "topics create orders",
    "topics --list --bootstrap-server h:1": "topics list",
    "topics --describe --topic orders": "topics describe orders",
    "topics --alter --topic=orders": "topics alter orders --partitions NUMBER",
    "topics --delete --topic 'two words'": "topics delete 'two words'",
    "topics create --topic orders": "topics create orders",
    "topics describe --topic orders": "topics describe orders",
    "topics delete --topic orders": "topics delete orders",
    "topics alter --topic orders": "topics alter orders",
    "topics list --topic orders": "topics describe orders",
    "topics list orders": "topics describe orders",
    "topics list --zookeeper z:2181": "topics list … -b HOST:PORT",
    "produce --broker-list h:1 orders": "produce … -b h:1",
    "topics create orders 3 1": "topics create orders --partitions 3",
    "groups --describe --group g": "groups describe g",
    "groups --reset-offsets --group g --topic t": "groups reset-offsets g --topic t --to-earliest",
    "groups describe --group g": "groups describe g",
    "groups delete --group g": "groups delete g",
    "groups list g": "groups describe g",
    "groups list --group g": "groups describe g",
    "configs --describe --entity-type topics --entity-name t": "configs describe topics t",
    "configs describe --entity-type brokers --entity-name 1": "configs describe brokers 1",
    "configs describe --topic t": "configs describe topics t",
    "configs alter topics t --add-config a=1": "configs alter topics t --set a=1",
    "configs alter topics t --delete-config a": "configs alter topics t --delete a",
    "configs alter --entity-type topics --entity-name t --add-config a=1": (
        "configs alter topics t --set a=1"
    ),
    "configs --alter --entity-type brokers --entity-name 1 --delete-config a": (
        "configs alter brokers 1 --delete a"
    ),
    "configs --alter --entity-type topics": "configs alter topics NAME --set KEY=VALUE",
    "acls --add --allow-principal User:a --topic t": (
        "acls create --allow User:a --operation Read --topic t"
    ),
    "acls create --allow-principal User:a --topic t": (
        "acls create --allow User:a --operation Read --topic t"
    ),
    "console-consumer --topic t": "consume t",
    "kafka-console-producer.sh --topic t": "produce t",
    "kafka-consumer-groups --list": "groups list",
    "metadata-quorum describe": "quorum status",
    "quorum describe": "quorum status",
    # kcat
    "-C -t orders -b h:1": "consume orders",
    "-b h:1 -t orders -C": "consume orders",
    "-b h:1 -t orders -P": "produce orders",
    "-b h:1 -L": "topics describe",
    "-G g -t orders": "consume orders --group g",
    "consume -t orders": "consume orders",
    "consume -torders": "consume orders",
    "consume orders -c 10": "consume orders --max-messages 10",
    "consume orders -G g": "consume orders --group g",
    "consume orders -K :": "consume orders --fields key,value --key-separator :",
    "produce -t orders": "produce orders",
    "produce orders -K :": "produce orders --key-separator :",
    "produce orders -X acks=all": "produce orders --property acks=all",
    "topics list -t orders": "topics describe orders",
    # rpk
    "topic consume orders": "consume orders",
    "topic produce orders": "produce orders",
    "topic add-partitions orders --num 3": "topics alter orders --partitions NUMBER",
    "topic alter-config orders --set a=1": "topics alter orders --config KEY=VALUE",
    "consume orders --num 10": "consume orders --max-messages 10",
    "cluster info": "brokers list",
    # everywhere
    "-b h:1 topics list": "COMMAND … -b h:1",
    "topics ls": "topics list",
    "topics rm orders": "topics delete orders",
    "start server.properties": "server start FILE",
    "broker start server.properties": "server start FILE",
    "server run server.properties": "server start server.properties",
    "topics help": "topics --help",
    "help": "--help",
}


@pytest.mark.parametrize(("typed", "form"), TYPED.items(), ids=TYPED)
def test_what_other_tools_take_gets_the_form_of_this_one(typed: str, form: str):
    ended = run_here(*shlex.split(typed))
    assert (ended.status, ended.output) == (2, "")
    [line] = ended.errors.splitlines()
    assert f"; here it is `moldau {form}` (see `moldau" in line
    assert line.startswith(("moldau: No such ", "moldau: Got unexpected extra arg"))


def test_an_offset_of_kcat_is_not_taken_for_a_file(tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    for word, form in (
        ("beginning", "--from-beginning"),
        ("end", "--offset latest"),
        ("-10", "--offset -10"),
        ("120", "--offset 120"),
    ):
        ended = run_here("consume", "orders", "-o", word, "-b", "127.0.0.1:1")
        assert ended.status == 2
        assert f"{form} is where to begin here (./{word} for the file)" in ended.complaint
    assert [*tmp_path.iterdir()] == []


def test_what_no_other_tool_has_is_only_refused():
    for typed in ("topics describe --mistake", "topics describe x --replicas", "topicz"):
        line = run_here(*typed.split()).complaint
        assert "here it is" not in line
        assert "(see `moldau" in line


def test_every_form_is_a_command_line_that_exists():
    tree: Any = typer.main.get_command(app)
    tree.load_all()
    for form in {*OPTIONS.values(), *COMMANDS.values(), *ARGUMENTS.values()}:
        command, words = tree, form.split()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {name for each in command.params for name in each.opts} | {"--help"}
        assert {each for each in words if each.startswith("-")} <= known, form
        assert "--help" in words or not hasattr(command, "commands"), form
