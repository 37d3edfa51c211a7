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
HANG_SECONDS = 60.0
"""A change whose tests take so much longer than LONGEST_TRIAL_SECONDS counts as killed."""
KILLED, HUNG, SURVIVED, UNREACHED = "killed", "hung", "survived", "unreached"


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
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._items = {item.nodeid: item for item in session.items}
        self._functions = _functions({ROOT / mutant.path for _area, mutant in self.changes})
        gc.collect()
        gc.freeze()
        self._trace(session)
        running: dict[int, tuple[str, Mutant, Child]] = {}
        for area, mutant in self.changes:
            tests = self._tests_of(mutant)
            if not tests:
                self.report(Outcome(mutant.key, area, mutant.kind, UNREACHED))
                continue
            while len(running) >= self.workers:
                self._collect(running)
            child = Child(lambda m=mutant, t=tests: self._try(session, m, t), len(tests))  # type: ignore[misc]
            running[child.pipe] = area, mutant, child
        while running:
            self._collect(running)
        return True

    # -- the tests of a change ----------------------------------------------------------------

    def _trace(self, session: pytest.Session) -> None:
        """Runs every test once, in children of equal parts of them."""
        lines = {line for _area, mutant in self.changes for line in _lines(mutant)}
        items = list(self._items.values())
        size = -(-len(items) // self.workers)
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        children = [
            Child(lambda part=part: _traced(session, part, lines), len(part))  # type: ignore[misc]
            for part in parts
        ]
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

    # -- a change -----------------------------------------------------------------------------

    def _try(
        self, session: pytest.Session, mutant: Mutant, tests: list[pytest.Item]
    ) -> dict[str, Any]:
        try:
            make(mutant, self._functions)
        except (LookupError, ValueError, SyntaxError) as error:
            return {"broken": repr(error)}
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            if _run(session, item, following):
                return {"result": KILLED, "by": item.nodeid}
        return {"result": SURVIVED}

    def _collect(self, running: dict[int, tuple[str, Mutant, Child]]) -> None:
        """Waits until a child has ended or must be ended."""
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for pipe in list(running):
            area, mutant, child = running[pipe]
            late = time.monotonic() - child.began > LONGEST_TRIAL_SECONDS + HANG_SECONDS
            if pipe not in ready and not late:
                continue
            answer = child.wait() if pipe in ready else child.kill()
            del running[pipe]
            assert "broken" not in answer, (mutant.key, answer)
            result, by = answer["result"], answer.get("by", "")
            seconds = round(time.monotonic() - child.began, 1)
            outcome = Outcome(mutant.key, area, mutant.kind, result, by, child.tests, seconds)
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


def _traced(session: pytest.Session, items: list[pytest.Item], lines: set[Line]) -> dict[str, Any]:
    tracer = LineTracer(lines)
    answer = {}
    for item, following in zip(items, [*items[1:], None], strict=True):
        tracer.seen.clear()
        began = time.process_time()
        with tracer.tracing():
            failed = _run(session, item, following)
        seconds = time.process_time() - began
        answer[item.nodeid] = seconds, sorted(tracer.seen), failed
    return {"tests": answer}


def _run(session: pytest.Session, item: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether the test failed."""
    before = session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return session.testsfailed > before


class Child:
    """A forked process that answers one JSON object; it and what it started are one group."""

    def __init__(self, work: Callable[[], dict[str, Any]], tests: int) -> None:
        self.began = time.monotonic()
        self.tests = tests
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
            answer = json.dumps(work()).encode()
            while answer:
                answer = answer[os.write(answer_pipe, answer) :]
        finally:
            os._exit(0)

    def wait(self) -> dict[str, Any]:
        """Its answer; a process that died without one did not survive the change."""
        parts = []
        while part := os.read(self.pipe, 1 << 20):
            parts.append(part)
        self.kill()
        if not parts:
            return {"result": KILLED, "by": "the process died", "tests": {}}
        answer: dict[str, Any] = json.loads(b"".join(parts))
        return answer

    def kill(self) -> dict[str, Any]:
        """Ends the process group."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self.pipe)
        return {"result": HUNG}
