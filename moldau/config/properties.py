"""Where configuration texts come from: `.properties` files, and `KAFKA_LOG_DIRS`-style variables.

The reader and `java.util.Properties` read the same from the same text. The translation of
environment variables, and which of them are for scripts only, are those of Kafka's container
images.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

from moldau.config.definition import ConfigError
from moldau.config.small_files import read_small_file

MAX_FILE_BYTES = 4 * 1024 * 1024
"""A file above this size is a mistake (a log segment, a device), not configuration."""

_SIMPLE_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_PROPERTY = re.compile(r"((?:[^\\=: \t\f]++|\\.?)*+)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
"""The key, up to the first separator that is not escaped, and the value."""
_ESCAPE = re.compile(r"\\(u.{0,4}|.?)", re.DOTALL)
_FOUR_DIGITS = re.compile(r"[0-9a-fA-F]{4}")

SERVER_PROPERTIES: Final = "server.properties"
MOST_LEVELS: Final = 3
MOST_PROPOSED: Final = 3

PREFIX: Final = "KAFKA_"

NOT_CONFIGURATION: Final = frozenset(
    {
        "KAFKA_CLUSTER_ID",
        "KAFKA_DEBUG",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_HOME",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)

_UNDERSCORES = re.compile(r"_{1,3}")
_TRANSLATION = {"_": ".", "__": "_", "___": "-"}
# What Kubernetes injects for a service called "kafka": KAFKA_PORT=tcp://…, KAFKA_SERVICE_HOST, …
_SERVICE_LINK = re.compile(r"KAFKA_(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP)(_.*)?)?)")


def parse_properties(text: str, *, source: str = "properties") -> dict[str, str]:
    """Reads properties text into a dict; the last of several equal keys wins, as in Java.

    Args:
        text: the file's content.
        source: what to call it in an error.

    Raises:
        ConfigError: a malformed unicode escape.
    """
    result: dict[str, str] = {}
    for line_number, line in _logical_lines(text):
        match = _PROPERTY.match(line)
        assert match is not None, "every part may be empty"
        where = f"{source}:{line_number}"
        result[_unescape(match[1], where)] = _unescape(match[2], where)
    return result


def read_properties_file(path: str, *, takes_pipe: bool = True) -> dict[str, str]:
    """Reads a `.properties` file (UTF-8).

    Args:
        takes_pipe: False for a path out of a configuration (see `read_small_file`).

    Raises ConfigError: the file cannot be read, is not text, or is larger than `MAX_FILE_BYTES`.
    """
    try:
        data = read_small_file(path, MAX_FILE_BYTES, takes_pipe=takes_pipe)
    except OSError as error:
        raise ConfigError(path, None, f"cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(path, None, f"is not UTF-8 text (byte {error.start})") from error
    return parse_properties(text, source=path)


def read_node_properties(path: str) -> dict[str, str]:
    """As `read_properties_file`. Where the directory of a node, or of several, is given in the
    file's place, the error names the file in it. Raises: ConfigError
    """
    try:
        return read_properties_file(path)
    except ConfigError as error:
        from glob import escape, glob  # only when there is something to complain about

        for levels in range(MOST_LEVELS):
            found = glob(os.path.join(escape(path), *["*"] * levels, SERVER_PROPERTIES))
            if found:
                hint = f"; did you mean {' or '.join(sorted(found)[:MOST_PROPOSED])}?"
                raise ConfigError(path, None, error.allowed + hint) from error
        raise


def key_of_variable(variable: str) -> str:
    """`log.dirs` of `KAFKA_LOG_DIRS`: `_` is a dot, `__` an underscore, `___` a dash."""
    name = variable[len(PREFIX) :]
    return _UNDERSCORES.sub(lambda match: _TRANSLATION[match[0]], name).lower()


def properties_of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The configuration that an environment holds, by dotted key."""
    return {
        key_of_variable(variable): value
        for variable, value in sorted(environ.items())
        if variable.startswith(PREFIX)
        and len(variable) > len(PREFIX)
        and variable not in NOT_CONFIGURATION
        and not _SERVICE_LINK.fullmatch(variable)
    }


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Joins continuation lines and drops blanks and comments; yields (first line number, line)."""
    pending: list[str] = []
    first_line = 0
    for number, raw in enumerate(_LINE_END.split(text), start=1):
        line = raw.lstrip(_BLANKS)
        if not pending:
            if not line or line[0] in "#!":
                continue
            first_line = number
        if _continues(line):
            pending.append(line[:-1])
            continue
        pending.append(line)
        yield first_line, "".join(pending)
        pending = []
    if pending:
        yield first_line, "".join(pending)


def _continues(line: str) -> bool:
    """Whether the line ends in an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text

    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if not escape.startswith("u"):
            return _SIMPLE_ESCAPES.get(escape, escape)
        if not _FOUR_DIGITS.fullmatch(escape[1:]):
            rule = "a unicode escape needs four hexadecimal digits"
            raise ConfigError(where, match[0], rule)
        return chr(int(escape[1:], 16))

    # Two \u escapes may form one character outside the basic plane.
    unescaped = _ESCAPE.sub(character, text)
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
