"""YAML with the line of every value, so that an error can say where it is.

Owns the reading of mappings by declared keys: types, ranges, unknown keys with the nearest known
one, duplicates, `${VARIABLE}`. Must not know what a file is about. Invariant: reading never stops
at the first problem; every problem is noted with file, line and dotted key, and a value that could
not be read is replaced by one that is never used, because a file with problems is refused as a
whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, TypeVar

import yaml

from moldau.spark_connector.errors import PipelineFileError, Problem
from moldau.text import did_you_mean

MAX_FILE_BYTES: Final = 1 << 20
MAX_NODES: Final = 10_000
"""A pipeline is a page; what is bigger is something else, or aliases that multiply. Other files say
what they have at most.
"""

MAX_DEPTH: Final = 32

_VARIABLE: Final = re.compile(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_NULL_TAG: Final = "tag:yaml.org,2002:null"

Made = TypeVar("Made")


class Reading:
    """One file while it is read: its variables and the problems found so far.

    Attributes:
        what: what the file has one or more of, in a problem's words.
        max_nodes: how many values each of them may have.
    """

    def __init__(
        self,
        file_name: str,
        variables: Mapping[str, str],
        *,
        what: str = "pipeline",
        max_nodes: int = MAX_NODES,
    ) -> None:
        self.file_name = file_name
        self.what = what
        self.max_nodes = max_nodes
        self.problems: list[Problem] = []
        self._variables = variables

    def note(self, line: int, key: str, text: str) -> None:
        """Remember a problem; the line counts from 1."""
        self.problems.append(Problem(self.file_name, line, key, text))

    def refuse_problems(self) -> None:
        if self.problems:
            raise PipelineFileError(sorted(self.problems, key=lambda each: each.line))

    def expand(self, text: str, line: int, key: str) -> str:
        """The text with `${NAME}` and `${NAME:-default}` replaced; `$${` stays `${`."""

        def value_of(match: re.Match[str]) -> str:
            if match[1]:
                return match[0][1:]
            value = self._variables.get(match[2], match[3])
            if value is None:
                self.note(
                    line, key, f"the environment has no variable {match[2]}, and no default is here"
                )
                return ""
            return value

        return _VARIABLE.sub(value_of, text)


def read_documents(text: str, reading: Reading) -> Iterator[Section]:
    """The mappings of a file, one for each document; empty documents are left out. Raises:
    PipelineFileError: the text is no YAML; nothing more can be said about it
    """
    if len(text.encode()) > MAX_FILE_BYTES:
        reading.note(1, "", f"more than {MAX_FILE_BYTES:,} bytes: this is no {reading.what}")
        reading.refuse_problems()
    try:
        nodes = [] if _is_too_deep(text, reading) else list(yaml.compose_all(text, yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or str(error)
        reading.note(line, "", f"not YAML: {' '.join(str(problem).split())}")
        reading.refuse_problems()
        return
    for node in nodes:
        if node is None or _is_null(node):
            continue
        most, what = reading.max_nodes, reading.what
        if _has_more_nodes(node, most):
            reading.note(_line_of(node), "", f"more than {most:,} values in one {what}")
        elif not isinstance(node, yaml.MappingNode):
            reading.note(_line_of(node), "", f"a {what} is a mapping, not {_kind_of(node)}")
        else:
            yield Section(reading, "", node)


class Section:
    """One mapping. Each key is asked for once; `finish` complains about the others."""

    def __init__(
        self, reading: Reading, path: str, node: yaml.MappingNode, line: int | None = None
    ) -> None:
        self.reading = reading
        self.path = path
        self.line = _line_of(node) if line is None else line
        self._asked: set[str] = set()
        self._values: dict[str, yaml.Node] = {}
        self._lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = _line_of(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                reading.note(line, path, f"a key is a word, not {_kind_of(key_node)}")
                continue
            key = key_node.value
            if key == "<<":
                reading.note(line, path, "merge keys (<<) are not supported: write the keys out")
            elif key in self._values:
                reading.note(
                    line, self.key(key), f"is here twice (first on line {self._lines[key]})"
                )
            else:
                self._values[key], self._lines[key] = value_node, line

    def key(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def line_of(self, name: str) -> int:
        """The line of a key; of the section when the key is not there."""
        return self._lines.get(name, self.line)

    def complain(self, name: str, text: str) -> None:
        self.reading.note(self.line_of(name), self.key(name), text)

    def has(self, name: str) -> bool:
        """Whether the file has the key, with something behind it."""
        node = self._values.get(name)
        return node is not None and not _is_null(node)

    def names(self) -> list[str]:
        return list(self._values)

    def is_text(self, name: str) -> bool:
        return isinstance(self._values.get(name), yaml.ScalarNode)

    def is_mapping(self, name: str) -> bool:
        return isinstance(self._values.get(name), yaml.MappingNode)

    def leave(self, *names: str) -> None:
        """Accept these keys without reading them."""
        self._asked.update(names)

    # -- values ----------------------------------------------------------------------------------

    def text(self, name: str, default: str | None = None) -> str:
        """One value as text. Without a default it must be there."""
        node = self._node(name)
        if node is None:
            if default is None:
                self._missing(name)
                return ""
            return default
        return self._scalar(name, node)

    def optional_text(self, name: str) -> str | None:
        if not self.has(name):
            self.leave(name)
            return None
        return self.text(name)

    def choice(self, name: str, allowed: Collection[str], default: str | None = None) -> str:
        given = self.text(name, default)
        if given not in allowed and (given or self.has(name)):
            self.complain(
                name, f"{given!r} is none of {', '.join(allowed)}{did_you_mean(given, allowed)}"
            )
        return given

    def whole_number(
        self, name: str, default: int | None, *, lowest: int = 1, highest: int = 2**31 - 1
    ) -> int | None:
        """A whole number in the range, both ends included."""
        if not self.has(name):
            self.leave(name)
            return default
        given = self.text(name).replace("_", "")
        if not re.fullmatch(r"-?\d{1,18}", given) or not lowest <= int(given) <= highest:
            self.complain(name, f"{given!r} is no whole number from {lowest} to {highest}")
            return default
        return int(given)

    def words(self, name: str) -> tuple[str, ...]:
        """A list of values, or one value as a list of one; empty when it is not there."""
        node = self._node(name)
        if node is None:
            return ()
        if isinstance(node, yaml.SequenceNode):
            found = [self._scalar(name, each) for each in node.value]
            if not found:
                self.complain(name, "the list is empty")
            return tuple(found)
        return (self._scalar(name, node),)

    def mapping(self, name: str) -> dict[str, str]:
        """Plain values by key; empty when it is not there."""
        section = self.section(name, required=False)
        if section is None:
            return {}
        return {key: section.text(key) for key in section.names()}

    def section(self, name: str, *, required: bool = True) -> Section | None:
        node = self._node(name)
        if node is None:
            if required:
                self._missing(name)
            return None
        if not isinstance(node, yaml.MappingNode):
            self.complain(name, f"a mapping is wanted here, not {_kind_of(node)}")
            return None
        return Section(self.reading, self.key(name), node, self.line_of(name))

    def sections(self, name: str) -> dict[str, Section]:
        """A mapping of mappings; empty when it is not there."""
        outer = self.section(name, required=False)
        if outer is None:
            return {}
        found = {key: outer.section(key) for key in outer.names()}
        return {key: section for key, section in found.items() if section is not None}

    def entries(self, name: str) -> list[Section]:
        """A list of mappings; empty when it is not there."""
        node = self._node(name)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.complain(name, f"a list is wanted here, not {_kind_of(node)}")
            return []
        found = []
        for index, each in enumerate(node.value):
            key = f"{self.key(name)}[{index}]"
            if isinstance(each, yaml.MappingNode):
                found.append(Section(self.reading, key, each))
            else:
                self.reading.note(
                    _line_of(each), key, f"a mapping is wanted here, not {_kind_of(each)}"
                )
        return found

    def made(
        self, name: str, make: Callable[[str], Made], default: Made, *, required: bool = False
    ) -> Made:
        """The text as `make` reads it; its ValueError becomes the problem's text."""
        if not self.has(name):
            self.text(name, None if required else "")
            return default
        try:
            return make(self.text(name))
        except ValueError as error:
            self.complain(name, str(error))
            return default

    def finish(self, elsewhere: Mapping[str, str] | None = None) -> None:
        """Complain about every key that was not asked for; `elsewhere` has the text for some."""
        for name in self._values:
            if name in self._asked:
                continue
            if elsewhere is not None and name in elsewhere:
                self.complain(name, elsewhere[name])
                continue
            known = sorted(self._asked)
            what = f" in {self.path}" if self.path else ""
            hint = f"{did_you_mean(name, known)}; there are {', '.join(known)}"
            self.complain(name, f"there is no such key{what}{hint}")

    # -- how -------------------------------------------------------------------------------------

    def _node(self, name: str) -> yaml.Node | None:
        self._asked.add(name)
        return self._values[name] if self.has(name) else None

    def _missing(self, name: str) -> None:
        line = self._lines.get(name)
        text = "is missing" if line is None else "has no value"
        self.reading.note(line or self.line, self.key(name), text)

    def _scalar(self, name: str, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or _is_null(node):
            self.complain(name, f"one value is wanted here, not {_kind_of(node)}")
            return ""
        return self.reading.expand(node.value, _line_of(node), self.key(name))


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL_TAG


def _kind_of(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if _is_null(node) else "a single value"


def _is_too_deep(text: str, reading: Reading) -> bool:
    """Note a file that is nested deeper than any pipeline, before time and stack go into it."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            line = 1 if event.start_mark is None else int(event.start_mark.line) + 1
            text = f"nested more than {MAX_DEPTH} deep: this is no {reading.what}"
            reading.note(line, "", text)
            return True
    return False


def _has_more_nodes(node: yaml.Node, most: int) -> bool:
    """Whether there are more values than that, aliases followed."""
    count, waiting = 0, [node]
    while waiting and count <= most:
        each = waiting.pop()
        count += 1
        if isinstance(each, yaml.SequenceNode):
            waiting += each.value
        elif isinstance(each, yaml.MappingNode):
            for key_node, value_node in each.value:
                waiting += (key_node, value_node)
    return count > most
