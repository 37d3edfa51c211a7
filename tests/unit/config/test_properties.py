"""Properties text is read as java.util.Properties reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.config import ConfigError, parse_properties, read_properties_file
from moldau.config.properties import MAX_FILE_BYTES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t=\t1  ", {"a": "1  "}),
        ("  a = b = c", {"a": "b = c"}),
        ("# comment\n! another\n\n   # third\na=1", {"a": "1"}),
        ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a=1,\\\n    2,\\\n\t3", {"a": "1,2,3"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a=x\\\\\nb=1", {"a": "x\\", "b": "1"}),
        ("a=\\", {"a": ""}),
        (r"a\ b\=c=d", {"a b=c": "d"}),
        (r"a=\t\n\r\f\q\"", {"a": '\t\n\r\fq"'}),
        (r"a=caf\u00e9", {"a": "café"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        ("a", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=1\na=2", {"a": "2"}),
        ("", {}),
        ("a=#no comment", {"a": "#no comment"}),
    ],
)
def test_reads(text: str, expected: dict[str, str]):
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\uzzzz", r"a=\u"])
def test_malformed_unicode_escape_names_the_line(text: str):
    with pytest.raises(ConfigError, match=r"server:2\b.*four hexadecimal"):
        parse_properties("# first line\n" + text, source="server")


@given(st.text(max_size=300))
def test_arbitrary_text_parses_or_is_refused_in_one_line(text: str):
    outcome = _outcome(text)
    if isinstance(outcome, ConfigError):
        assert "\n" not in str(outcome)
    else:
        assert all(isinstance(value, str) for value in outcome.values())


def _outcome(text: str) -> dict[str, str] | ConfigError:
    try:
        return parse_properties(text)
    except ConfigError as error:
        return error


_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", " ": "\\ "}
_ESCAPES |= {sign: "\\" + sign for sign in "=:#!"}


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=6))
def test_whatever_is_escaped_comes_back(values: dict[str, str]):
    def escaped(text: str) -> str:
        return "".join(_ESCAPES.get(character, character) for character in text)

    def plain(text: str) -> bool:
        return "\x85" not in text and not any("\ud800" <= c <= "\udfff" for c in text)

    values = {key: value for key, value in values.items() if plain(key) and plain(value)}
    text = "\n".join(f"{escaped(key)}={escaped(value)}" for key, value in values.items())
    assert parse_properties(text) == values


def test_file_errors_are_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.properties: cannot be read: No such file"):
        read_properties_file(str(tmp_path / "missing.properties"))
    binary = tmp_path / "binary"
    binary.write_bytes(b"a=1\n\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_properties_file(str(binary))
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ConfigError, match="cannot be read: larger than"):
        read_properties_file(str(huge))


def test_byte_order_mark_is_not_part_of_the_first_key(tmp_path):
    path = tmp_path / "server.properties"
    path.write_bytes(b"\xef\xbb\xbfnode.id=1\n")
    assert read_properties_file(str(path)) == {"node.id": "1"}
