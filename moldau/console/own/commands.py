"""The `moldau` commands that do what the console does, as text for a shell.

Must not run anything, and must not know the command: tests compare the two. Invariant: a text that
others have chosen is one word of the shell, and none that begins with "-" is taken for an option.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable

from moldau.client import TopicPartition
from moldau.protocol.types import by_topic


def command(*words: object, names: Collection[object] = ()) -> str:
    """A command line.

    Args:
        words: behind `moldau`; options that have a value with it, `--topic=orders`.
        names: of what it is about, the last words.
    """
    behind = [str(each) for each in names]
    end = ["--"] if any(each.startswith("-") for each in behind) else []
    return shlex.join(["moldau", *map(str, words), *end, *behind])


def option(name: str, value: object) -> tuple[str, ...]:
    """An option with its value, two words where that cannot be mistaken; nothing for None."""
    if value is None:
        return ()
    text = str(value)
    return (f"{name}={text}",) if text.startswith("-") or not text else (name, text)


def topic_options(partitions: Iterable[TopicPartition]) -> tuple[str, ...]:
    """`--topic orders:0,1` for each topic."""
    return tuple(
        word
        for topic, indexes in by_topic(sorted(partitions)).items()
        for word in option("--topic", f"{topic}:{','.join(map(str, indexes))}")
    )
