"""Runs tests on changed code: pytest collects once, and a child process per change runs its tests.

Owns: the children, and what a change does to a running process. Must not: write to the tree; the
change is made in the memory of the child. Invariant: a child that does not end in its time is ended
with all processes that it started.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.mutation.changes import Mutant
from tests.mutation.sampling import ROOT
from tests.mutation.tracing import Line, LineTracer

LONGEST_TEST_SECONDS = 15.0
LONGEST_TRIAL_SECONDS = 60.0
"""Of tests, as they took when they were traced: the quick ones that reach a line come first."""
HANG_SECONDS = 120.0
"""A change after which no test ends for so long counts as killed: it makes one hang."""
KILLED, HUNG, SURVIVED, UNREACHED = "killed", "hung", "survived", "unreached"


Tell = Callable[[], None]


@dataclass(slots=True)
class Reached:
    """What a test took, and the lines of interest that it ran."""

    seconds: float
    lines: list[Line]


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
    workers: int
    report: Callable[[Outcome], None]
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _reached: dict[str, Reached] = field(default_factory=dict)
    _functions: list[FunctionType] = field(default_factory=list)
    _killers: set[str] = field(default_factory=set)
    failing: list[str] = field(default_factory=list)
    """Tests that fail on the code as it is: they judge nothing."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Hypothesis draws the same examples in every child, and only looks whether one fails."""
        from hypothesis import Phase, settings  # pytest must be the first to import it

        settings.register_profile(
            "mutants",
            parent=settings.default,
            database=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """The place of the tests' own run."""
        self._items = {item.nodeid: item for item in session.items}
        self._functions = _functions({ROOT / mutant.path for _area, mutant in self.changes})
        gc.collect()
        gc.freeze()
        self._trace(session)
        running: list[_Trial] = []
        for area, mutant in self.changes:
            tests = self._tests_of(mutant)
            if not tests:
                self.report(Outcome(mutant.key, area, mutant.kind, UNREACHED))
                continue
            while len(running) >= self.workers:
                self._collect(running)
            child = Child(partial(self._try, session, mutant, tests))
            running.append(_Trial(area, mutant, len(tests), child))
        while running:
            self._collect(running)
        self._check_killers(session)
        return True

    # -- the tests of a change ----------------------------------------------------------------

    def _trace(self, session: pytest.Session) -> None:
        """Runs every test once, in children of equal parts of them."""
        lines = {line for _area, mutant in self.changes for line in _lines(mutant)}
        items = list(self._items.values())
        size = -(-len(items) // self.workers)
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        children = [Child(partial(_traced, session, part, lines)) for part in parts]
        for child in children:
            for test, (seconds, reached, failed) in child.wait()["tests"].items():
                if failed:
                    self.failing.append(test)
                else:
                    places = [(path, line) for path, line in reached]
                    self._reached[test] = Reached(seconds, places)

    def _tests_of(self, mutant: Mutant) -> list[pytest.Item]:
        lines = set(_lines(mutant))
        fitting = sorted(
            (reached.seconds, test)
            for test, reached in self._reached.items()
            if reached.seconds <= LONGEST_TEST_SECONDS and not lines.isdisjoint(reached.lines)
        )
        chosen: list[pytest.Item] = []
        total = 0.0
        for seconds, test in fitting:
            total += seconds
            if total > LONGEST_TRIAL_SECONDS and chosen:
                break
            chosen.append(self._items[test])
        return chosen

    def _check_killers(self, session: pytest.Session) -> None:
        """Every test that killed still passes on the code as it is; else nothing was measured."""
        items = [self._items[test] for test in sorted(self._killers)]
        answer = Child(partial(_traced, session, items, set())).wait()
        failed = [test for test, (_seconds, _lines, failed) in answer["tests"].items() if failed]
        if failed:
            raise RuntimeError(f"these killed, but fail on the code as it is too: {failed}")

    # -- a change -----------------------------------------------------------------------------

    def _try(
        self, session: pytest.Session, mutant: Mutant, tests: list[pytest.Item], tell: Tell
    ) -> dict[str, Any]:
        try:
            make(mutant, self._functions)
        except (LookupError, ValueError, SyntaxError) as error:
            return {"broken": repr(error)}
        for item, following in zip(tests, [*tests[1:], None], strict=True):
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
            elif time.monotonic() - child.heard > HANG_SECONDS:
                answer = child.kill()
            if answer is not None:
                running.remove(trial)
                self._conclude(trial, answer)

    def _conclude(self, trial: _Trial, answer: dict[str, Any]) -> None:
        mutant = trial.mutant
        assert "broken" not in answer, (mutant.key, answer)
        result, by = answer["result"], answer.get("by", "")
        if by in self._items:
            self._killers.add(by)
        seconds = round(time.monotonic() - trial.child.began, 1)
        outcome = Outcome(mutant.key, trial.area, mutant.kind, result, by, trial.tests, seconds)
        self.report(outcome)


def make(mutant: Mutant, functions: Iterable[FunctionType]) -> None:
    """Makes the change in this process: those of `functions` that have the old code run the new.

    Raises:
        LookupError: the process has no such function.
    """
    path = ROOT / mutant.path
    source = mutant.applied(path.read_text())
    codes = list(_codes(compile(source, str(path), "exec", dont_inherit=True)))
    count = Counter(name for name, _code in codes)  # two lambdas of one line have one name
    inside = f"{mutant.function}.<locals>."
    wanted = {
        name: code
        for name, code in codes
        if (name[0] == mutant.function or name[0].startswith(inside)) and count[name] == 1
    }
    changed = 0
    for function in functions:
        old = function.__code__
        new = wanted.get((old.co_qualname, old.co_firstlineno))
        if new is not None and old.co_filename == str(path):
            function.__code__ = new
            changed += 1
    if not changed:
        raise LookupError(mutant.key)


def _functions(paths: set[Path]) -> list[FunctionType]:
    """All that this process has of these files."""
    names = {str(path) for path in paths}
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType) and each.__code__.co_filename in names
    ]


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield (each.co_qualname, each.co_firstlineno), each
            yield from _codes(each)


def _lines(mutant: Mutant) -> list[Line]:
    path = str(ROOT / mutant.path)
    return [(path, line) for line in range(mutant.first_line, mutant.last_line + 1)]


def _traced(
    session: pytest.Session, items: list[pytest.Item], lines: set[Line], tell: Tell
) -> dict[str, Any]:
    tracer = LineTracer(lines)
    answer = {}
    for item, following in zip(items, [*items[1:], None], strict=True):
        tracer.seen.clear()
        began = time.process_time()
        with tracer.tracing():
            failed = _run(session, item, following)
        seconds = time.process_time() - began
        answer[item.nodeid] = seconds, sorted(tracer.seen), failed
        tell()
    return {"tests": answer}


def _run(session: pytest.Session, item: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether the test failed."""
    before = session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return session.testsfailed > before


class Child:
    """A forked process that answers one JSON object; it and what it started are one group.

    Args:
        work: gives the answer; it is handed a call with which it says that it goes on.
    """

    def __init__(self, work: Callable[[Tell], dict[str, Any]]) -> None:
        self.began = self.heard = time.monotonic()
        self._read = b""
        self.pipe, answer_pipe = os.pipe()
        self._pid = os.fork()
        if self._pid:
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
        part = os.read(self.pipe, 1 << 20)
        self._read += part.lstrip(b".") if not self._read else part
        if part:
            return None
        self.kill()
        if not self._read:
            return {"result": KILLED, "by": "the process died"}
        answer: dict[str, Any] = json.loads(self._read)
        return answer

    def wait(self) -> dict[str, Any]:
        """Its answer."""
        while (answer := self.hear()) is None:
            pass
        return answer

    def kill(self) -> dict[str, Any]:
        """Ends the process group."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self.pipe)
        return {"result": HUNG}


def _write(pipe: int, text: bytes) -> None:
    while text:
        text = text[os.write(pipe, text) :]
