"""Golden scripts: what is compared, and what is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.golden_scripts import check_script

SCRIPT = """\
# A comment.
> double 2
4

> double a b
aa
bb
"""


def double(words: list[str]) -> list[str]:
    command, *rest = words
    assert command == "double"
    return [str(int(each) * 2) if each.isdigit() else each * 2 for each in rest]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MOLDAU_WRITE_SCRIPTS", raising=False)
    return tmp_path / "script.txt"


def test_a_script_that_says_what_happens_passes(path: Path) -> None:
    path.write_text(SCRIPT)
    check_script(path, double)


@pytest.mark.parametrize(
    ("right", "wrong"), [("4\n", "5\n"), ("4\n", ""), ("aa\n", "aa\naa\n"), ("bb\n", "bb\ncc\n")]
)
def test_a_script_that_says_something_else_fails_and_stays(
    path: Path, right: str, wrong: str
) -> None:
    text = SCRIPT.replace(right, wrong)
    path.write_text(text)
    with pytest.raises(AssertionError):
        check_script(path, double)
    assert path.read_text() == text


def test_a_script_is_written_from_its_commands(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLDAU_WRITE_SCRIPTS", "1")
    path.write_text(SCRIPT.replace("4\n", "").replace("aa\n", "zz\n"))
    check_script(path, double)
    assert path.read_text() == SCRIPT


@pytest.mark.parametrize("line", ["", "# no comment", "> no command"])
def test_an_answer_that_would_not_be_read_as_one_is_refused(path: Path, line: str) -> None:
    path.write_text("> answer\n")
    with pytest.raises(AssertionError):
        check_script(path, lambda words: [line])
