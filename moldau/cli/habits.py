"""What users of Kafka's scripts, kcat and rpk type, and how it is written here.

Must be imported only when a command line is wrong, and decide nothing: a wrong command line stays
wrong. Invariant: what is said of it is a command line that exists, with the names of the one typed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final

#: The options behind which a name stands, by what stands for it in a form.
NAMED_BY: Final = {
    "TOPIC": ("--topic", "-t"),
    "GROUP": ("--group", "-G"),
    "NAME": ("--entity-name",),
    "TYPE": ("--entity-type",),
    "USER": ("--allow-principal", "--deny-principal", "--allow", "--user"),
}
_TAKES_TOPIC: Final = (
    *("consume", "produce", "topics create", "topics describe", "topics alter", "topics delete"),
)
_TAKES_GROUP: Final = ("groups describe", "groups delete", "groups reset-offsets")
_ENTITY: Final = ("--entity-type", "--entity-name", "--topic")

#: By command and option, the form that is right here.
OPTIONS: Final[Mapping[tuple[str, str], str]] = {
    **{(path, each): f"{path} TOPIC" for path in _TAKES_TOPIC for each in NAMED_BY["TOPIC"]},
    **{(path, each): f"{path} GROUP" for path in _TAKES_GROUP for each in ("--group", "-g")},
    **{("configs describe", each): "configs describe TYPE NAME" for each in _ENTITY},
    **{("configs alter", each): "configs alter TYPE NAME --set KEY=VALUE" for each in _ENTITY},
    ("", "-C"): "consume TOPIC",
    ("", "-P"): "produce TOPIC",
    ("", "-G"): "consume TOPIC --group GROUP",
    ("", "-L"): "topics describe",
    ("", "-Q"): "consume TOPIC --timestamp TIME",
    ("topics", "--list"): "topics list",
    ("topics", "--create"): "topics create TOPIC",
    ("topics", "--describe"): "topics describe TOPIC",
    ("topics", "--alter"): "topics alter TOPIC --partitions NUMBER",
    ("topics", "--delete"): "topics delete TOPIC",
    ("topics list", "--topic"): "topics describe TOPIC",
    ("topics list", "-t"): "topics describe TOPIC",
    ("topics create", "--topic-config"): "topics create TOPIC --config VALUE",
    ("topics create", "-n"): "topics create TOPIC --partitions NUMBER",
    ("topics alter", "--set"): "topics alter TOPIC --config VALUE",
    ("groups", "--list"): "groups list",
    ("groups", "--describe"): "groups describe GROUP",
    ("groups", "--delete"): "groups delete GROUP",
    ("groups", "--reset-offsets"): "groups reset-offsets GROUP --topic TOPIC --to-earliest",
    ("groups list", "--group"): "groups describe GROUP",
    ("configs", "--describe"): "configs describe TYPE NAME",
    ("configs", "--alter"): "configs alter TYPE NAME --set KEY=VALUE",
    ("configs alter", "--add-config"): "configs alter TYPE NAME --set VALUE",
    ("configs alter", "--delete-config"): "configs alter TYPE NAME --delete VALUE",
    ("acls", "--list"): "acls list",
    ("acls", "--add"): "acls create --allow USER --operation Read --topic TOPIC",
    ("acls", "--remove"): "acls delete --principal USER --topic TOPIC",
    (
        "acls create",
        "--allow-principal",
    ): "acls create --allow VALUE --operation Read --topic TOPIC",
    ("acls create", "--deny-principal"): "acls create --deny VALUE --operation Read --topic TOPIC",
    ("acls create", "--allow-host"): "acls create --host VALUE",
    ("users create", "--user"): "users create USER",
    ("consume", "-c"): "consume TOPIC --max-messages VALUE",
    ("consume", "--num"): "consume TOPIC --max-messages VALUE",
    ("consume", "-s"): "consume TOPIC --value-format VALUE",
    ("consume", "-G"): "consume TOPIC --group VALUE",
    ("consume", "-K"): "consume TOPIC --fields key,value --key-separator VALUE",
    ("consume", "-X"): "consume TOPIC --property VALUE",
    ("consume", "--consumer-property"): "consume TOPIC --property VALUE",
    ("consume", "--consumer.config"): "consume TOPIC --command-config VALUE",
    ("consume", "-C"): "consume TOPIC",
    ("produce", "-P"): "produce TOPIC",
    ("produce", "-K"): "produce TOPIC --key-separator VALUE",
    ("produce", "-H"): "produce TOPIC --header VALUE",
    ("produce", "-X"): "produce TOPIC --property VALUE",
    ("produce", "--producer-property"): "produce TOPIC --property VALUE",
    ("produce", "--producer.config"): "produce TOPIC --command-config VALUE",
}
_ANYWHERE: Final = {
    "--broker-list": "COMMAND … -b VALUE",
    "--brokers": "COMMAND … -b VALUE",
    "--zookeeper": "COMMAND … -b HOST:PORT",
}
#: Options of every command, which some put before it.
_ADDRESS: Final = ("-b", "--bootstrap-server", "--command-config", "--profile", "--brokers")

#: By the tree of commands and a word that is none of them, the form that is right here.
COMMANDS: Final[Mapping[tuple[str, str], str]] = {
    ("", "cluster"): "brokers list",
    ("", "console-consumer"): "consume TOPIC",
    ("", "console-producer"): "produce TOPIC",
    ("", "consumer-groups"): "groups list",
    ("", "dump-log"): "log dump FILE",
    ("", "leader-election"): "topics elect-leaders TOPIC",
    ("", "metadata-quorum"): "quorum status",
    ("", "reassign-partitions"): "topics reassign --help",
    ("", "security"): "users --help",
    ("", "server-start"): "server start FILE",
    ("", "start"): "server start FILE",
    ("acls", "add"): "acls create --allow USER --operation Read --topic TOPIC",
    ("acls", "remove"): "acls delete --principal USER --topic TOPIC",
    ("brokers", "start"): "server start FILE",
    ("groups", "rm"): "groups delete WORD",
    ("quorum", "describe"): "quorum status",
    ("server", "run"): "server start WORD",
    ("topics", "add-partitions"): "topics alter WORD --partitions NUMBER",
    ("topics", "alter-config"): "topics alter WORD --config KEY=VALUE",
    ("topics", "config"): "configs describe topics WORD",
    ("topics", "consume"): "consume WORD",
    ("topics", "ls"): "topics list",
    ("topics", "produce"): "produce WORD",
    ("topics", "rm"): "topics delete WORD",
    ("topics reassign", "generate"): "topics reassign plan --help",
    ("users", "add"): "users create WORD",
    ("users", "rm"): "users delete WORD",
}
#: By command, the form that takes the arguments that are too many there.
ARGUMENTS: Final = {
    "brokers list": "brokers describe WORD",
    "groups list": "groups describe WORD",
    "topics create": "topics create TOPIC --partitions WORD",
    "topics list": "topics describe WORD",
}
#: What stands for a command's first or second argument, by the tree of commands.
ARGUMENT_OF: Final = (
    ("TOPIC", ("topics", "consume", "produce"), 0),
    ("GROUP", ("groups",), 0),
    ("USER", ("users",), 0),
    ("TYPE", ("configs",), 0),
    ("NAME", ("configs",), 1),
)
_SCRIPT: Final = re.compile(r"(?:kafka-)?([a-z-]+?)(?:\.sh)?")
_PLACE: Final = re.compile(r"(?<!=)\b(TOPIC|GROUP|NAME|TYPE|USER|VALUE|WORD)\b")


def right_form(path: str, words: Sequence[str], problem: str, option: str | None) -> str | None:
    """The command line that was meant, as far as it can be known.

    Args:
        path: the command that refuses, without the program's name.
        words: the arguments of the program.
        problem: what is wrong, in the framework's words.
        option: the option that is unknown, if that is wrong.
    """
    if option is not None:
        return _of_option(path, words, option)
    unknown = re.match(r"No such command '(.*?)'\.", problem)
    if unknown:
        return _of_command(path, words, unknown[1])
    too_many = re.match(r"Got unexpected extra arguments?(?:\(s\))? \((\S+)", problem)
    if too_many and path in ARGUMENTS:
        return _filled(ARGUMENTS[path], words, word=too_many[1].rstrip(")"), path=path)
    return None


def _of_option(path: str, words: Sequence[str], option: str) -> str | None:
    if not path:  # options come behind the command, where kcat has no commands
        known = [each for each in words if (path, each) in OPTIONS]
        if known:
            return _filled(OPTIONS[path, known[0]], words)
        if option in _ADDRESS:
            return _filled(f"COMMAND … {option} VALUE", words, option=option)
    form = OPTIONS.get((path, option))
    if form == OPTIONS["configs", "--alter"]:  # one of these further on says what is to be altered
        behind = ("--add-config", "--delete-config")
        option = next((each for each in behind if _value_of(words, each) is not None), option)
        form = OPTIONS.get(("configs alter", option), form)
    if form is None and option in _ANYWHERE:
        form = _ANYWHERE[option].replace("COMMAND", path or "COMMAND")
    return None if form is None else _filled(form, words, option=option, path=path)


def _of_command(path: str, words: Sequence[str], name: str) -> str | None:
    if name == "help":
        return f"{path} --help".strip()
    script = _SCRIPT.fullmatch(name) if not path else None
    form = COMMANDS.get((path, script[1] if script else name))
    return None if form is None else _filled(form, words, word=_behind(words, name))


def _behind(words: Sequence[str], word: str) -> str | None:
    """What stands behind a word, if that is no option."""
    if word not in words:
        return None
    rest = words[words.index(word) + 1 :]
    return rest[0] if rest and not rest[0].startswith("-") else None


def _filled(
    form: str,
    words: Sequence[str],
    *,
    path: str = "",
    option: str | None = None,
    word: str | None = None,
) -> str:
    """A form with the names of the command line in it; what is not known there stays as it is."""
    room = path.partition(" ")[0]
    own = [*takewhile(lambda each: not each.startswith("-"), words[len(path.split()) :])]
    found = {place: _first_value(words, options) for place, options in NAMED_BY.items()}
    found |= {"VALUE": _value_of(words, option), "WORD": word}
    if room == "configs" and found["TOPIC"] is not None:
        own = ["topics", found["TOPIC"]]
    for place, rooms, at in ARGUMENT_OF:
        if found[place] is None and room in rooms and len(own) > at:
            found[place] = own[at]
    return _PLACE.sub(lambda place: _quoted(found[place[0]]) or place[0], form)


def _first_value(words: Sequence[str], options: Iterable[str]) -> str | None:
    values = (_value_of(words, each) for each in options)
    return next((value for value in values if value is not None), None)


def _value_of(words: Sequence[str], option: str | None) -> str | None:
    """What stands behind an option, or at it: `--topic=T`, `-tT`."""
    if option is None:
        return None
    for at, each in enumerate(words):
        if each == option:
            return words[at + 1] if at + 1 < len(words) else None
        if option.startswith("--") and each.startswith(f"{option}="):
            return each.partition("=")[2]
        if not option.startswith("--") and each.startswith(option):
            return each.removeprefix(option)
    return None


def _quoted(text: str | None) -> str | None:
    return None if text is None else shlex.quote(text)
