"""Which expressions are compiled at all: what RE2 takes long to refuse never reaches it."""

from __future__ import annotations

from typing import Any

import pytest
import re2

from moldau.broker.coordinator.core import expressions
from moldau.broker.coordinator.core.expressions import (
    MAX_REPETITIONS,
    MAX_UNICODE_CLASSES,
    InvalidExpression,
    compile_expression,
    compile_once_more,
)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The expressions that reach RE2."""
    reached: list[str] = []
    compile_with_re2 = re2.compile

    def recorded(expression: str, options: Any) -> Any:
        reached.append(expression)
        return compile_with_re2(expression, options)

    monkeypatch.setattr(re2, "compile", recorded)
    return reached


@pytest.mark.parametrize(
    "expression",
    [
        r"\pL" * 341,
        r"(?i)[" + r"\P{L}" * 200 + "]",
        r"\pL" * (MAX_UNICODE_CLASSES + 1),
        r"\\\pL" * (MAX_UNICODE_CLASSES + 1),
        r"a{0,1000}" * 100,
        f"a{{0,{MAX_REPETITIONS + 1}}}",
        f"a{{{MAX_REPETITIONS + 1}}}",
        f"a{{{MAX_REPETITIONS + 1},}}",
        f"(?:a{{2}}b{{0,{MAX_REPETITIONS - 1}}}?)",
        rf"\\x{{{MAX_REPETITIONS + 1}}}",
        "a{" + "9" * 900 + "}",
    ],
)
def test_what_is_costly_to_compile_does_not_reach_re2(expression: str, compiled: list[str]) -> None:
    with pytest.raises(InvalidExpression, match="are allowed"):
        compile_expression(expression)
    assert compiled == []


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (r"[\pL\pN][\pL\pN_]+", "topic_1"),
        (r"\p{Greek}" * MAX_UNICODE_CLASSES, "\u03b1" * MAX_UNICODE_CLASSES),
        (r"\\p" * (MAX_UNICODE_CLASSES + 1), r"\p" * (MAX_UNICODE_CLASSES + 1)),
        ("[a-z._-]{1,249}", "a" * 249),
        (f"a{{{MAX_REPETITIONS}}}", "a" * MAX_REPETITIONS),
        (f"a{{{MAX_REPETITIONS}}}b{{0}}", "a" * MAX_REPETITIONS),
        (f"a{{{MAX_REPETITIONS},}}", "a" * MAX_REPETITIONS),
        (r"\x{4000}\x{4001}", "\u4000\u4001"),
        (r"a\{1000}", "a{1000}"),
        ("a{,1000}", "a{,1000}"),
    ],
)
def test_what_a_limit_does_not_mean_is_taken(
    expression: str, text: str, compiled: list[str]
) -> None:
    assert compile_expression(expression).fullmatch(text) is not None
    assert compiled == [expression]


def test_a_broken_expression_is_refused_with_the_reason_and_is_so_again(
    compiled: list[str],
) -> None:
    for _ in range(2):
        with pytest.raises(InvalidExpression, match=r"broken-\(.*: missing"):
            compile_expression("broken-(")
    assert compiled == ["broken-("]


def test_without_re2_every_expression_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "_re2", lambda: None)
    with pytest.raises(InvalidExpression, match="google-re2"):
        compile_expression("a")


def test_what_is_compiled_again_was_not_remembered_by_re2_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled_count = 0
    make = re2._re2.RE2

    def counted(*args: Any) -> Any:
        nonlocal compiled_count
        compiled_count += 1
        return make(*args)

    monkeypatch.setattr(re2._re2, "RE2", counted)
    for count, compile_it in enumerate(
        (compile_expression, compile_once_more, compile_once_more), 1
    ):
        compile_it("compiled once more")
        assert compiled_count == count
    compile_expression("compiled once more")
    assert compiled_count == 3
