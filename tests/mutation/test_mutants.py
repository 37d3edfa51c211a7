"""The tool behind `make mutants`: which changes it makes, how it names them, and what it counts."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from tests.kit.kinds import Kind
from tests.kit.waiting import until
from tests.mutation import trials
from tests.mutation.changes import BRANCH, COMPARISON, DROPPED, OFF_BY_ONE, Mutant, mutants
from tests.mutation.patching import functions_of, import_all, make, probe
from tests.mutation.run import commit_seed, explanations, table
from tests.mutation.sampling import (
    AREAS,
    ROOT,
    Area,
    area_mutants,
    mixed,
    sample,
    seed_of_commit,
)
from tests.mutation.trials import (
    HUNG,
    KILLED,
    SURVIVED,
    UNREACHED,
    Child,
    Outcome,
    Tell,
    _limit_cpu,
)

SOURCE = dedent(
    '''\
    """What a module says."""

    LIMIT = 3


    class Counter:
        """What a class says."""

        def __repr__(self) -> str:
            return "a" if self.count > 1 else "b"

        def add(self, size: int, *, last: bool = False) -> int:
            """What a method says."""
            del last
            assert size > 0, "not counted"
            logger.warning("adds %d", size + 1)
            if size < self.least and not last:
                raise ValueError(f"{size + 1} is too little")
            self.sizes.append(
                size,
            )
            for each in self.sizes:
                if each == size:
                    continue
            self.count += size
            del self.sizes[0]
            total = self.count - 1
            return max(total, 2)
    '''
)
DIFFS = [
    (
        BRANCH,
        "if size < self.least and not last: -> if not (size < self.least and not last):",
    ),
    (COMPARISON, "if size < self.least and not last: -> if size <= self.least and not last:"),
    (BRANCH, "if size < self.least and not last: -> if size < self.least or not last:"),
    (BRANCH, "if size < self.least and not last: -> if size < self.least and last:"),
    (DROPPED, 'raise ValueError(f"{size + 1} is too little") -> pass'),
    (DROPPED, "self.sizes.append( size, ) -> pass"),
    (COMPARISON, "if each == size: -> if each != size:"),
    (DROPPED, "continue -> pass"),
    (DROPPED, "self.count += size -> pass"),
    (DROPPED, "del self.sizes[0] -> pass"),
    (OFF_BY_ONE, "del self.sizes[0] -> del self.sizes[1]"),
    (OFF_BY_ONE, "total = self.count - 1 -> total = self.count + 1"),
    (OFF_BY_ONE, "total = self.count - 1 -> total = self.count - 2"),
    (DROPPED, "return max(total, 2) -> pass"),
    (COMPARISON, "return max(total, 2) -> return min(total, 2)"),
    (OFF_BY_ONE, "return max(total, 2) -> return max(total, 3)"),
]


def test_changes_of_a_function_without_what_only_readers_see():
    found = mutants("a.py", SOURCE)
    assert [(each.kind, each.diff) for each in found] == DIFFS
    assert {each.function for each in found} == {"Counter.add"}


@pytest.mark.parametrize("area", AREAS)
def test_every_change_compiles_and_keeps_the_lines_numbers(area: str):
    offered = area_mutants(area)
    assert len({each.key for each in offered}) == len(offered)
    sources = {each.path: (ROOT / each.path).read_text() for each in offered}
    for each in offered[::20]:
        source = sources[each.path]
        changed = each.applied(source)
        assert changed != source
        assert changed.count("\n") == source.count("\n")
        compile(changed, each.path, "exec")


def test_a_change_keeps_its_name_when_others_move_its_line():
    moved = SOURCE.replace("LIMIT = 3\n", "LIMIT = 3\nSECOND = 4\n\n\ndef more():\n    f(1)\n")
    before = {each.key: each.first_line for each in mutants("a.py", SOURCE)}
    after = {each.key: each.first_line for each in mutants("a.py", moved)}
    assert before.keys() < after.keys()
    assert all(after[key] == line + 5 for key, line in before.items())


def test_equal_changes_of_a_function_are_numbered():
    source = "def f(a):\n    if a:\n        g(a)\n    h(a)\n    g(a)\n"
    keys = [each.key for each in mutants("a.py", source) if each.kind == DROPPED]
    assert keys == ["a.py::f: g(a) -> pass", "a.py::f: h(a) -> pass", "a.py::f: g(a) -> pass #2"]


def test_a_sample_is_the_same_for_a_seed_and_has_all_kinds_of_all_areas():
    first, again, other = sample(100, 1), sample(100, 1), sample(100, 2)
    assert first == again
    assert first != other
    for chosen in first.values():
        assert len(chosen) >= 30
        assert {each.kind for each in chosen} == {COMPARISON, OFF_BY_ONE, DROPPED, BRANCH}


def test_a_bigger_sample_contains_the_smaller_one():
    small, big = sample(300, 1, ("storage",)), sample(600, 1, ("storage",))
    assert {each.key for each in small["storage"]} < {each.key for each in big["storage"]}


def test_a_sample_of_one_area_has_as_many_as_are_asked_for():
    assert len(sample(200, 1, ("server",))["server"]) == 200
    both = sample(200, 1, ("server", "authentication"))
    assert len(both["server"]) + len(both["authentication"]) == pytest.approx(200, abs=8)


def test_a_folder_inside_one_of_another_area_is_that_areas():
    server = {each.path for each in area_mutants("server")}
    authentication = {each.path for each in area_mutants("authentication")}
    assert "moldau/server/request.py" in server
    assert "moldau/server/authentication/gate.py" in authentication - server
    assert not server & authentication


def test_the_gates_tests_count_and_the_real_ones_that_an_area_names():
    area = Area(("moldau/a",), ("tests/unit/a",), real=("tests/unit/a/test_face.py", "tests/b/"))
    logic, other = "tests/unit/a/test_logic.py::test", "tests/c/test_other.py::test"
    face, far = "tests/unit/a/test_face.py::test", "tests/b/test_far.py::test"
    assert [area.counts(each, Kind.GATE) for each in (logic, face, other)] == [True, True, False]
    real = {each: area.counts(each, Kind.REAL) for each in (logic, face, far, other)}
    assert [each for each, counts in real.items() if counts] == [face, far]
    assert area.counts(logic, Kind.REAL, is_real=True)
    for given in (("tests/c",), ("tests/unit/a/test_face.py",)):
        assert not area.counts(logic, Kind.GATE, given=given)
    assert area.counts(other, Kind.GATE, given=("tests/c",))
    assert not area.counts(other, Kind.REAL, given=("tests/c",))
    assert area.counts(other, Kind.REAL, given=("tests/c",), is_real=True)
    assert area.counts(face, Kind.REAL, given=("tests/unit/a/test_face.py",))


@pytest.mark.parametrize("area", AREAS)
def test_the_tests_of_an_area_exist(area: str):
    assert all((ROOT / each).exists() for each in AREAS[area].all_tests)
    assert all((ROOT / each).is_dir() for each in AREAS[area].folders)


def test_the_seed_of_a_commit_is_in_its_hash():
    assert seed_of_commit("00000010" + "f" * 32) == 16
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if commit.returncode:
        pytest.skip("this is no checkout of git")
    assert commit_seed(ROOT) == int(commit.stdout[:8], 16)


def test_what_comes_first_of_a_sample_is_of_all_areas_and_kinds():
    chosen = sample(300, 1)
    changes = mixed(chosen, 1)
    assert len(changes) == sum(map(len, chosen.values()))
    first = changes[: len(changes) // 3]
    for area, every in chosen.items():
        count = [each for each, _mutant in first].count(area)
        assert len(every) / 6 < count < len(every) / 2
    assert {mutant.kind for _area, mutant in first[:40]} == {
        *(COMPARISON, OFF_BY_ONE),
        *(DROPPED, BRANCH),
    }


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    """A module in its own file, in the memory of this process."""
    path = tmp_path / "victim.py"
    path.write_text(
        "def limit(size):\n    keep = lambda each: each < 3\n    return keep(size)\n\n\n"
        "def other(size):\n    if size:\n        return 1\n    return 2\n"
    )
    module = ModuleType("victim")
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def _victims(module: ModuleType) -> list[Mutant]:
    return mutants("victim.py", Path(module.limit.__code__.co_filename).read_text())


def test_a_change_is_made_in_memory_and_in_its_function_alone(module: ModuleType):
    path = Path(module.limit.__code__.co_filename)
    before = path.read_text()
    (boundary,) = [each for each in _victims(module) if each.kind == COMPARISON]
    assert not module.limit(3)
    make(boundary, path.parent, [module.limit, module.other])
    assert module.limit(3)
    assert [module.other(0), module.other(1)] == [2, 1]
    assert path.read_text() == before


def test_a_change_of_a_function_that_the_process_does_not_have_is_refused(module: ModuleType):
    path = Path(module.limit.__code__.co_filename)
    (boundary,) = [each for each in _victims(module) if each.kind == COMPARISON]
    with pytest.raises(LookupError, match="limit"):
        make(boundary, path.parent, [module.other])


def test_functions_are_found_of_modules_that_nothing_has_imported_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "late_victims" / "inner.py"
    path.parent.mkdir()
    (path.parent / "__init__.py").write_text("def first():\n    return 1\n")
    path.write_text("def second():\n    return 2\n")
    files = {"late_victims/__init__.py", "late_victims/inner.py"}
    try:
        import_all(files)
        found = functions_of(tmp_path / each for each in files)
        assert sorted(each.__name__ for each in found) == ["first", "second"]
        assert "late_victims.__init__" not in sys.modules
    finally:
        for name in ("late_victims", "late_victims.inner"):
            sys.modules.pop(name, None)


def test_probes_tell_of_the_statements_that_are_run(module: ModuleType):
    path = Path(module.limit.__code__.co_filename)
    seen: set[int] = set()
    probe(path, {3: 30, 7: 70, 8: 80}, [module.limit, module.other], seen.add)
    assert module.other(0) == 2
    assert seen == {70}
    assert module.limit(1)
    assert seen == {30, 70}
    assert module.other(1) == 1
    assert seen == {30, 70, 80}


@pytest.mark.real
def test_a_child_answers():
    assert Child(lambda _tell: {"result": SURVIVED}).wait() == {"result": SURVIVED}


@pytest.mark.real
def test_a_child_that_dies_did_not_survive():
    assert Child(lambda _tell: os._exit(3)).wait()["result"] == KILLED


@pytest.mark.real
def test_a_child_that_hangs_is_ended_with_what_it_started():
    reader, writer = os.pipe()

    def hang(tell: Tell) -> dict[str, str]:
        tell()
        process = subprocess.Popen(["sleep", "600"])
        os.write(writer, str(process.pid).encode())
        threading.Event().wait()
        return {}

    child = Child(hang)
    pid = int(os.read(reader, 20))
    assert child.hear() is None
    assert child.kill() == {"result": HUNG}
    os.close(reader)
    os.close(writer)
    until(lambda: not _is_running(pid), what="the end of what it started")


@pytest.mark.real
def test_a_child_that_runs_for_ever_is_ended_by_its_cpu_time_however_busy_the_machine_is():
    def spin(_tell: Tell) -> dict[str, str]:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _limit_cpu(0.1)
        while True:
            pass

    assert Child(spin).wait() == {"result": HUNG}


@pytest.mark.real
def test_a_child_that_is_only_slow_does_not_hang(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trials, "HANG_SECONDS", 0.0)
    child = Child(lambda _tell: {"result": str(threading.Event().wait())})
    until(child.is_hanging, what="a child that waits for ever")
    monkeypatch.setattr(trials, "HANG_CPU_SECONDS", 0.0)
    assert not child.is_hanging()
    child.kill()


@pytest.mark.real
def test_a_child_that_has_no_group_yet_is_ended(monkeypatch: pytest.MonkeyPatch):
    """It may not have begun on a busy machine when it is to end."""
    monkeypatch.setattr(os, "setsid", signal.pause)
    child = Child(lambda _tell: {})
    assert child.kill() == {"result": HUNG}
    assert not _is_running(child.pid)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_table_counts_hangs_as_killed_and_unreached_lines_as_survivors():
    outcomes = [
        Outcome("a", "quorum", DROPPED, KILLED, "test_a"),
        Outcome("b", "quorum", DROPPED, HUNG),
        Outcome("c", "quorum", BRANCH, SURVIVED),
        Outcome("d", "storage", BRANCH, UNREACHED),
    ]
    _head, _line, quorum, storage, everything = table(outcomes, {"c": "equal", "a": "killed"})
    assert quorum == "| quorum | 3 | 2 (66.7%) | 1 | 0 | 1 |"
    assert storage == "| storage | 1 | 0 (0.0%) | 1 | 1 | 0 |"
    assert everything == "| all | 4 | 2 (50.0%) | 2 | 1 | 1 |"


def test_explanations_stand_below_their_changes():
    text = "# why\n\na.py::f: x -> pass\n  nothing reads\n  it\n\nb.py::g: y -> pass #2\n  same\n"
    assert explanations(text) == {
        "a.py::f: x -> pass": "nothing reads it",
        "b.py::g: y -> pass #2": "same",
    }


def test_every_explanation_says_something():
    text = Path(__file__).with_name("explained.txt").read_text()
    assert [key for key, why in explanations(text).items() if len(why) < 20] == []


def results_of(tmp_path: Path, area: str, only: str, tests: str) -> tuple[list[str], str, int]:
    """What became of each change, the table, and the exit code of a run."""
    command = [sys.executable, "-m", "tests.mutation.run", "--areas", area, "--count", "9000"]
    command += ["--only", only, "--tests", tests]
    done = subprocess.run(
        [*command, "--results", str(tmp_path / "results")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (tmp_path / "results").read_text().splitlines()
    results = [line.split('"result": "')[1].split('"')[0] for line in lines]
    assert results, done.stderr
    return results, done.stdout, done.returncode


@pytest.mark.real
def test_a_run_kills_what_a_test_notices_and_lists_what_none_does(tmp_path: Path):
    tests = "tests/unit/raft/core/test_parts.py"
    results, out, code = results_of(tmp_path, "quorum", "voters.py::VoterSet.", tests)
    assert {KILLED, UNREACHED} <= set(results)
    assert code == 1
    assert f"| all | {len(results)} | {results.count(KILLED)} (" in out


@pytest.mark.real
def test_real_tests_that_an_area_names_kill_changes(tmp_path: Path):
    tests = "tests/unit/spark_connector/sink/test_settle.py::test_what_is_forgotten_of_a_sink"
    only = "settle.py::_forgotten: changes[finished_key(sink_id, query_id)] = None -> pass"
    results, _out, code = results_of(tmp_path, "sink", only, tests)
    assert (results, code) == ([KILLED], 0)
