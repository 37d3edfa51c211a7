"""Runs tests on changed code: pytest collects once, and a child process per change runs its tests.

Owns: the children, and what a change does to a running process. Must not: write to the tree; the
change is made in the memory of the child. Invariant: a child that does not end in its time is ended
with all processes that it started.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, zip_longest
from math import ceil
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.kit.kinds import kind_of
from tests.mutation.changes import Mutant
from tests.mutation.patching import functions_of, import_all, make, probe
from tests.mutation.sampling import AREAS, ROOT

LONGEST_TEST_SECONDS = 15.0
LONGEST_TRIAL_SECONDS = 30.0
"""The limit for tests, as they took with the code as it is: the quick ones come first."""
HANG_SECONDS = 120.0
"""A change after which no test ends for so long counts as killed: it makes one hang. Only while the
process has next to nothing to do: on a busy machine a test may be slow."""
HANG_CPU_SECONDS = 2.0
SPIN_SECONDS, SPIN_FACTOR = 10.0, 5.0
"""A test that takes that many times the CPU time that it takes without the change, and those
seconds, runs for ever: its process is ended, and the change counts as killed."""
KILLED, HUNG, SURVIVED, UNREACHED = "killed", "hung", "survived", "unreached"


Tell = Callable[[], None]
Statement = tuple[str, int]
"""A file, from the root of the tree, and the first line of the statement."""


@dataclass(slots=True)
class Reached:
    """What a test took, and which statements with changes it ran."""

    seconds: float
    statements: set[Statement]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a change."""

    key: str
    area: str
    kind: str
    result: str
    by: str = ""
    """The test that failed."""
    tests: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Trial:
    """A change whose tests run."""

    area: str
    mutant: Mutant
    tests: int
    child: Child


@dataclass(slots=True)
class Trials:
    """A pytest plugin: instead of the run of what was collected, it tries change after change."""

    changes: list[tuple[str, Mutant]]
    """With their areas."""
    tests: tuple[str, ...]
    """The tests to choose from; empty: those of the change's area."""
    is_real: bool
    """Whether real tests count of every area, not only of those that name some."""
    workers: int
    folder: Path
    """For the files of tests."""
    report: Callable[[Outcome], None]
    failing: list[str] = field(default_factory=list)
    """Tests that fail on the code as it is: they judge nothing."""
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _functions: list[FunctionType] = field(default_factory=list)
    _statements: list[Statement] = field(default_factory=list)
    _reached: dict[str, Reached] = field(default_factory=dict)
    _killers: set[str] = field(default_factory=set)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Only what judges a change stays."""
        areas = {area for area, _mutant in self.changes}
        unused = [item for item in items if not any(self._judges(item, area) for area in areas)]
        config.hook.pytest_deselected(items=unused)
        items[:] = [item for item in items if item not in set(unused)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """The place of the tests' own run."""
        self._items = {item.nodeid: item for item in session.items}
        import_all(sorted({mutant.path for _area, mutant in self.changes}))
        self._functions = functions_of({ROOT / mutant.path for _area, mutant in self.changes})
        self._statements = sorted({_statement(mutant) for _area, mutant in self.changes})
        gc.collect()
        gc.freeze()
        self._find_tests(session)
        running: list[_Trial] = []
        for area, mutant in self.changes:
            tests = self._tests_of(area, mutant)
            if not tests:
                self.report(Outcome(mutant.key, area, mutant.kind, UNREACHED))
                continue
            while len(running) >= self.workers:
                self._collect(running)
            child = self._child(session, partial(self._try, session, mutant, tests))
            running.append(_Trial(area, mutant, len(tests), child))
        while running:
            self._collect(running)
        self._check_killers(session)
        return True

    def _child(self, session: pytest.Session, work: Callable[[Tell], dict[str, Any]]) -> Child:
        """Its tests' files are in their own folder: pytest empties one that exists."""

        def work_apart(tell: Tell) -> dict[str, Any]:
            factory = session.config._tmp_path_factory  # type: ignore[attr-defined]
            factory._given_basetemp = self.folder / str(os.getpid())
            return work(tell)

        return Child(work_apart)

    # -- the tests of a change ----------------------------------------------------------------

    def _judges(self, item: pytest.Item, area: str) -> bool:
        """Whether the test may notice a change of the area."""
        given, is_real = self.tests, self.is_real
        return AREAS[area].counts(item.nodeid, kind_of(item), given=given, is_real=is_real)

    def _find_tests(self, session: pytest.Session) -> None:
        """Runs every test once, in children of equal parts of them."""
        items = list(self._items.values())
        size = -(-len(items) // self.workers)
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        for child in [self._child(session, partial(self._probed, session, part)) for part in parts]:
            for test, (seconds, numbers, failed) in child.wait()["tests"].items():
                if failed:
                    self.failing.append(test)
                else:
                    reached = {self._statements[number] for number in numbers}
                    self._reached[test] = Reached(seconds, reached)

    def _probed(
        self, session: pytest.Session, items: list[pytest.Item], tell: Tell
    ) -> dict[str, Any]:
        """What each test takes, which statements it runs, and whether it fails."""
        seen: set[int] = set()
        lines: dict[str, dict[int, int]] = {}
        for number, (name, line) in enumerate(self._statements):
            lines.setdefault(name, {})[line] = number
        for name, numbers in lines.items():
            probe(ROOT / name, numbers, self._functions, seen.add)
        answer = {}
        for item, following in _in_turn(items):
            seen.clear()
            began = time.process_time()
            failed = _run(session, item, following)
            answer[item.nodeid] = time.process_time() - began, sorted(seen), failed
            tell()
        return {"tests": answer}

    def _tests_of(self, area: str, mutant: Mutant) -> list[pytest.Item]:
        """The quickest first, as many as fit into LONGEST_TRIAL_SECONDS."""
        fitting = sorted(
            (reached.seconds, test)
            for test, reached in self._reached.items()
            if _statement(mutant) in reached.statements
            and reached.seconds <= LONGEST_TEST_SECONDS
            and self._judges(self._items[test], area)
        )
        totals = accumulate(seconds for seconds, _test in fitting)
        return [
            self._items[test]
            for (_seconds, test), total in zip(fitting, totals, strict=True)
            if total <= LONGEST_TRIAL_SECONDS
        ]

    def _check_killers(self, session: pytest.Session) -> None:
        """Every test that killed still passes on the code as it is; else nothing was measured."""
        items = [self._items[test] for test in sorted(self._killers)]
        tests = self._child(session, partial(self._probed, session, items)).wait()["tests"]
        failed = [test for test, (_seconds, _numbers, failed) in tests.items() if failed]
        if failed:
            raise RuntimeError(f"these killed, but fail on the code as it is too: {failed}")

    # -- a change -----------------------------------------------------------------------------

    def _try(
        self, session: pytest.Session, mutant: Mutant, tests: list[pytest.Item], tell: Tell
    ) -> dict[str, Any]:
        try:
            make(mutant, ROOT, self._functions)
        except (LookupError, ValueError, SyntaxError) as error:
            return {"broken": repr(error)}
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for item, following in _in_turn(tests):
            _limit_cpu(SPIN_SECONDS + SPIN_FACTOR * self._reached[item.nodeid].seconds)
            if _run(session, item, following):
                return {"result": KILLED, "by": item.nodeid}
            tell()
        return {"result": SURVIVED}

    def _collect(self, running: list[_Trial]) -> None:
        """Hears what the children say, and ends those that say nothing any more."""
        ready, _, _ = select.select([trial.child.pipe for trial in running], [], [], 1.0)
        for trial in list(running):
            child, answer = trial.child, None
            if child.pipe in ready:
                answer = child.hear()
            elif child.is_hanging():
                answer = child.kill()
            if answer is not None:
                running.remove(trial)
                self._conclude(trial, answer)

    def _conclude(self, trial: _Trial, answer: dict[str, Any]) -> None:
        mutant = trial.mutant
        assert "broken" not in answer, (mutant.key, answer)
        result, by = answer["result"], answer.get("by", "")
        shutil.rmtree(self.folder / str(trial.child.pid), ignore_errors=True)
        if by in self._items:
            self._killers.add(by)
        seconds = round(time.monotonic() - trial.child.began, 1)
        outcome = Outcome(mutant.key, trial.area, mutant.kind, result, by, trial.tests, seconds)
        self.report(outcome)


def _statement(mutant: Mutant) -> Statement:
    return mutant.path, mutant.first_line


def _run(session: pytest.Session, item: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether the test failed."""
    before = session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return session.testsfailed > before


def _limit_cpu(seconds: float) -> None:
    """The kernel ends this process when it takes so much more CPU time."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(time.process_time() + seconds), hard))


def _cpu_seconds(pid: int) -> float:
    """What a child has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _in_turn(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Each with the one after it, for which fixtures are kept."""
    return zip_longest(items, items[1:])


class Child:
    """A forked process that answers one JSON object; it and what it started are one group.

    Args:
        work: gives the answer; it is handed a call with which it says that it goes on.
    """

    def __init__(self, work: Callable[[Tell], dict[str, Any]]) -> None:
        self.began = self.heard = time.monotonic()
        self._cpu_when_heard = 0.0
        self._read = b""
        self.pipe, answer_pipe = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(answer_pipe)
            return
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        try:
            answer = json.dumps(work(lambda: _write(answer_pipe, b"."))).encode()
            _write(answer_pipe, answer)
        finally:
            os._exit(0)

    def hear(self) -> dict[str, Any] | None:
        """Takes what it has written, or waits for it. Its answer if that is all; a process that
        died without one did not survive the change.
        """
        self.heard = time.monotonic()
        self._cpu_when_heard = _cpu_seconds(self.pid)
        part = os.read(self.pipe, 1 << 20)
        self._read += part.lstrip(b".") if not self._read else part
        if part:
            return None
        status = self._end()
        if not self._read:
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
                return {"result": HUNG}
            return {"result": KILLED, "by": "the process died"}
        answer: dict[str, Any] = json.loads(self._read)
        return answer

    def is_hanging(self) -> bool:
        """Whether it has said nothing for long, and does nothing."""
        return (
            time.monotonic() - self.heard > HANG_SECONDS
            and _cpu_seconds(self.pid) - self._cpu_when_heard < HANG_CPU_SECONDS
        )

    def wait(self) -> dict[str, Any]:
        """Its answer."""
        while (answer := self.hear()) is None:
            pass
        return answer

    def kill(self) -> dict[str, Any]:
        """Ends the process group."""
        self._end()
        return {"result": HUNG}

    def _end(self) -> int:
        """The status that the process ended with."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not got so far as to make its group, or has ended
            os.kill(self.pid, signal.SIGKILL)
        _pid, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        return status


def _write(pipe: int, text: bytes) -> None:
    while text:
        text = text[os.write(pipe, text) :]
