"""sasl.jaas.config as Java users have it."""

from __future__ import annotations

import pytest

from moldau.runtime.authentication import SecuritySettingError
from moldau.sasl.jaas import parse_jaas


@pytest.mark.parametrize(
    ("text", "module", "options"),
    [
        (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="alice" password="alice-secret";',
            "PlainLoginModule",
            {"username": "alice", "password": "alice-secret"},
        ),
        ("X required;", "X", {}),
        ("  a.X\n REQUIRED\n  a=b   c = 'd e' ;  ", "X", {"a": "b", "c": "d e"}),
        (r'X required p="a\"b\\c;=";', "X", {"p": r'a"b\c;='}),
        (r"X required p='a\'b\\c' q='\"';", "X", {"p": r"a'b\c", "q": '"'}),
        ('X required p="one\ntwo" q="a\\\nb";', "X", {"p": "one\ntwo", "q": "a\nb"}),
        ("X optional a=1 b='' c=\"\" a=2;", "X", {"a": "2", "b": "", "c": ""}),
        ("X Sufficient;", "X", {}),
        ("a.b.X requisite a=b;\t\n", "X", {"a": "b"}),
    ],
)
def test_entries(text: str, module: str, options: dict[str, str]):
    entry = parse_jaas(text)
    assert (entry.module, entry.options) == (module, options)
    assert all(value not in repr(entry) for value in options.values() if len(value) > 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "X",
        "X required",
        'X required password="hunter2"',
        'X maybe password="hunter2";',
        'X required password "hunter2";',
        "X required password=;",
        'X required password="hunter2;',
        'X required "password"="hunter2";',
        'X required password="hunter2"; Y required;',
        '"hunter2" required password="hunter2";',
        "= required password=hunter2;",
        "; required password=hunter2;",
        'X "required" password="hunter2";',
        'X "hunter2" password="hunter2";',
        "X = password=hunter2;",
        "X required password=hunter2",
        "X required password=hunter2 user",
        "X required password=hunter2 '';",
        "X required password=hunter2 ';'",
        "X required user password hunter2;",
        "X required user '=' hunter2;",
        "X required user ; hunter2;",
        "X required = = hunter2;",
        "X required password==;",
        "X required password=hunter2 user;",
        "X required password=hunter2 user=;",
        "X required 'hunter2;",
        "; ; ;",
        "X;",
    ],
)
def test_what_is_not_wholly_understood_is_refused_without_showing_it(text: str):
    with pytest.raises(SecuritySettingError, match=r"sasl\.jaas\.config") as caught:
        parse_jaas(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("X maybe a=b;", "the second word is one of required, requisite, sufficient, optional"),
        ("'X' maybe a=b;", "and nothing else"),
        ("X required a=b", "and nothing else"),
        ("X required a=b c;", "and nothing else"),
        ("X required a=;", "and nothing else"),
        ('X required a="b;', "a quote is opened and not closed"),
        ("X required a='b;", "a quote is opened and not closed"),
    ],
)
def test_what_is_wrong_is_said(text: str, complaint: str) -> None:
    with pytest.raises(SecuritySettingError) as caught:
        parse_jaas(text)
    assert str(caught.value).endswith(complaint)
