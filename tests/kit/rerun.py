"""Judges a run of pytest: a real test that failed once may be unsteady, and is run again, alone.

Owns: `--run-again`, and what becomes of the run's exit status then. Must not: run anything again
that is of the gate, or that failed by a checker's `Verdict`, and nothing at all without the option:
a person sees a failure at once. Invariant: the run is green only if each failure was followed by
`RUNS` runs of the same test that passed, if these were at most `MOST_UNSTEADY`, and if none of them
stands in `tests/unsteady.toml` without a cause.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pytest

from tests.kit import unsteady
from tests.kit.kinds import Kind, kind_of
from tests.kit.verdict import Verdict

RUNS = 5
MOST_UNSTEADY = 5
MOST_TRIED = 20
"""If more fail, nothing is run again: no such run can be green."""

PASSED = re.compile(r"^=*\s*1 passed\b")
SEED = re.compile(r"(?:\b|_)seed[ =:]+(\d+)\b", re.IGNORECASE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The make targets ask for it."""
    parser.addoption(
        "--run-again",
        action="store_true",
        help=f"run real tests that failed again, alone, {RUNS} times (docs/testing.md)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Workers only mark reports; who gathers these judges."""
    if config.getoption("--run-again") and not hasattr(config, "workerinput"):
        unsteady.read(config.rootpath / unsteady.FILE)
        config.pluginmanager.register(Judge(config), "judge")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """What the judge must know of a failure travels with its report."""
    report: Any = yield
    report.kind = str(kind_of(item))
    report.is_verdict = call.excinfo is not None and _is_verdict(call.excinfo.value)
    return report


def _is_verdict(error: BaseException | None) -> bool:
    """Also within groups, and when cleaning up failed with something else."""
    if isinstance(error, BaseExceptionGroup) and any(map(_is_verdict, error.exceptions)):
        return True
    return error is not None and (
        isinstance(error, Verdict) or _is_verdict(error.__cause__ or error.__context__)
    )


@dataclass(slots=True)
class Failed:
    """A test with what it reported when it failed, and how it went again."""

    test: str
    reports: list[pytest.TestReport] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    """The output of the runs that failed again."""
    run_count: int = 0

    @property
    def may_run_again(self) -> bool:
        """A worker that crashed could not say the kind: the test itself says it."""
        return all(
            getattr(report, "kind", Kind.REAL) != Kind.GATE
            and not getattr(report, "is_verdict", False)
            for report in self.reports
        )

    @property
    def is_unsteady(self) -> bool:
        return self.run_count == RUNS and not self.outputs

    @property
    def seed(self) -> str:
        """The first that the test printed."""
        texts = [
            text
            for report in self.reports
            for text in (*(text for _, text in report.sections), report.longreprtext)
        ]
        found = SEED.search("\n".join(texts))
        return found[1] if found else ""


class Judge:
    """Hears of all failures, and runs again what may be unsteady when all else is done."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed: dict[str, Failed] = {}
        self._red: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set-up, call and end are one test's failure."""
        if report.failed:
            failed = self._failed.setdefault(report.nodeid, Failed(report.nodeid))
            failed.reports.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """The workers have gone, the closing line is not yet written."""
        if exitstatus != pytest.ExitCode.TESTS_FAILED or session.shouldfail:
            return
        tried = [each for each in self._failed.values() if each.may_run_again]
        if len(tried) > MOST_TRIED:
            self._red.append(f"{len(tried)} tests failed: too many to run each of them again")
            return
        for failed in tried:
            self._run_again(failed)
        steady = self._judge(session, [each for each in tried if each.is_unsteady])
        if not steady and not self._red:
            session.exitstatus = pytest.ExitCode.OK

    def _run_again(self, failed: Failed) -> None:
        terminal = self._terminal
        for number in range(1, RUNS + 1):
            ended = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "-q", "-m", f"not {Kind.GATE}"),
                    *("-p", "no:cacheprovider", f"--rootdir={self._config.rootpath}"),
                    *(f"-p{name}" for name in self._config.option.plugins or ()),
                    failed.test,
                ],
                cwd=self._config.rootpath,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            if ended.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
                return  # it is of the gate, or it is gone
            failed.run_count = number
            lines = ended.stdout.strip().splitlines()
            passed = ended.returncode == 0 and lines and PASSED.search(lines[-1])
            if not passed:
                failed.outputs.append(ended.stdout + ended.stderr)
            how = "passed" if passed else "failed"
            terminal.write_line("")
            terminal.write(f"again, alone, {number} of {RUNS}: {failed.test} {how}")
        terminal.write_line("")

    def _judge(self, session: pytest.Session, seen: list[Failed]) -> int:
        """Takes what is only unsteady out of the failures; returns how many are left."""
        listed = unsteady.read(self._config.rootpath / unsteady.FILE)
        reports = {id(report) for each in seen for report in each.reports}
        stats = self._terminal.stats
        for category in ("failed", "error"):
            left = [each for each in stats.pop(category, []) if id(each) not in reports]
            if left:
                stats[category] = left
        if seen:
            stats["unsteady"] = [each.reports[0] for each in seen]
        if len(seen) > MOST_UNSTEADY:
            self._red.append(f"{len(seen)} tests are unsteady: more than {MOST_UNSTEADY}")
        self._red += [
            f"{each.test} is unsteady again, and {unsteady.FILE} names no cause"
            for each in seen
            if unsteady.without_cause(listed, each.test)
        ]
        session.testsfailed -= len(reports)
        return session.testsfailed

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self) -> None:
        """What was unsteady is reported as fully as a failure is, and what failed again, how
        often.
        """
        terminal = self._terminal
        for failed in self._failed.values():
            if failed.is_unsteady:
                self._tell_unsteady(failed)
            elif failed.run_count:
                again = f"{len(failed.outputs)} of {RUNS}"
                terminal.section(f"FAILED AGAIN, {again}: {failed.test}", "=", red=True)
                terminal.write_line(failed.outputs[0])
            elif any(getattr(report, "is_verdict", False) for report in failed.reports):
                terminal.section(f"VERDICT, final: {failed.test}", "=", red=True)
        seen = [each for each in self._failed.values() if each.is_unsteady]
        if seen:
            terminal.section(f"add to {unsteady.FILE}")
            for failed in seen:
                terminal.write_line(unsteady.entry(failed.test, date.today(), failed.seed))
        for reason in self._red:
            terminal.write_line(f"RED: {reason}", red=True, bold=True)

    def _tell_unsteady(self, failed: Failed) -> None:
        terminal = self._terminal
        title = f"UNSTEADY, passed {RUNS} of {RUNS} alone: {failed.test}"
        terminal.section(title, "=", yellow=True)
        for report in failed.reports:
            terminal.write_line(f"in its {report.when}:")
            terminal.write_line(report.longreprtext)
            for name, text in report.sections:
                terminal.section(name, "-")
                terminal.write_line(text)

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")
