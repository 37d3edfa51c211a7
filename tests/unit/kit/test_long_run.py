"""`make long` shares its minutes, counts what commands say, and is red when one found something."""

from __future__ import annotations

import pytest

from tests.kit import long_run
from tests.kit.long_run import LongRun, Search, main, searches, shares

pytestmark = pytest.mark.real


def search(name: str, script: str, **more: object) -> Search:
    """Commands that say something and end with a status."""
    return Search(name, [lambda seed, _minutes: ("-c", script, str(seed))], **more)


GOOD = "print('3 seeds, 70 events')"
BAD = "import sys; print('lost: record', sys.argv[1]); sys.exit(1)"
MISSING = "import sys; print('cannot run here: no root'); sys.exit(2)"
COUNTED = {"seeds": r"(\d+) seeds", "events": r"(\d+) events"}


@pytest.fixture
def once(monkeypatch):
    """A command takes all of its minutes."""
    ran = LongRun._command

    def command(self, search, seed, arguments, minutes):
        clock.append(minutes * 60)
        return ran(self, search, seed, arguments, minutes)

    clock: list[float] = []
    monkeypatch.setattr(LongRun, "_command", command)
    monkeypatch.setattr(long_run.time, "monotonic", lambda: sum(clock))


@pytest.mark.usefixtures("once")
def test_one_line_for_each_and_red_with_the_command_that_replays(tmp_path):
    said: list[str] = []
    found = [search("good", GOOD, **COUNTED), search("bad", BAD, events="x")]
    run = LongRun(7, tmp_path, 1, said.append)
    assert run.run(found, 2) == 1
    text = "\n".join(said)
    assert "good           3 seeds, 70 events, 0 violations, 1.0 minutes" in text
    assert "bad            1 seeds, 0 events, 1 violations, 1.0 minutes" in text
    (left,) = tmp_path.iterdir()
    assert left.read_text() == f"lost: record {left.stem.removeprefix('bad-')}\n"
    assert said[-1].startswith("bad: replay: MOLDAU_HYPOTHESIS=long ")
    assert f"MOLDAU_SEED={left.stem.removeprefix('bad-')}" in said[-1]


@pytest.mark.usefixtures("once")
def test_what_cannot_run_here_is_listed_and_green(tmp_path):
    said: list[str] = []
    assert LongRun(7, tmp_path, 2, said.append).run([search("no", MISSING, events="x")], 1) == 0
    assert "not here: cannot run here: no root" in said[-1]


@pytest.mark.usefixtures("once")
def test_a_report_is_printed_and_green(tmp_path):
    said: list[str] = []
    found = [search("mutants", BAD, events="x", is_report=True)]
    assert LongRun(7, tmp_path, 1, said.append).run(found, 1) == 0
    assert "1 violations" in said[-1]


def test_minutes_are_shared_by_weight_and_what_would_get_too_few_gets_none():
    light, heavy = search("light", GOOD, events="x"), search("heavy", GOOD, events="x", weight=3)
    soak = search("soak", GOOD, events="x", least_minutes=2)
    assert shares([light, heavy], 8) == {"light": 2, "heavy": 6}
    assert shares([light, heavy, soak], 8) == {"light": 2, "heavy": 6}
    assert shares([light, heavy, soak], 10) == {"light": 2, "heavy": 6, "soak": 2}
    assert shares([soak], 1) == {}


@pytest.mark.usefixtures("once")
def test_rows_of_the_list_that_are_too_old_are_red(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(long_run, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    row = '[[unsteady]]\ntest = "t"\ndate = 2026-01-02\ncause = "slow"\n'
    (tmp_path / long_run.unsteady.FILE).write_text(row)
    found = [search("good", GOOD, **COUNTED)]
    assert main(["--minutes=1", "--seed=7", "--workers=1"], found) == 1
    assert "t is there since 2026-01-02" in capsys.readouterr().out


def test_every_search_has_commands_and_its_own_name():
    found = searches()
    assert len({each.name for each in found}) == len(found)
    assert all(each.arguments for each in found)
