"""The fault table: what a node does about an unexpected exception, report it or stop.

Owns the one decision between reporting and stopping, and the only place where any exception is
caught.
Invariant: a broken invariant (AssertionError) always stops the node rather than serve wrong data,
also where it comes with other exceptions (an exception group).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from moldau.runtime.restarts import JOB_KEY

logger = logging.getLogger(__name__)


class Verdict(Enum):
    """REPORT: one log line with its traceback, the node goes on. STOP: the node ends at once."""

    REPORT = "report"
    STOP = "stop"


#: The first row whose class matches decides.
FAULT_TABLE: Final[tuple[tuple[type[BaseException], Verdict], ...]] = (
    (AssertionError, Verdict.STOP),
    (MemoryError, Verdict.STOP),
    (RecursionError, Verdict.REPORT),
    (OSError, Verdict.REPORT),
    (Exception, Verdict.REPORT),
)


def verdict(error: BaseException) -> Verdict:
    """What the table says; anything that is no ordinary exception stops the node. A group counts as
    the worst of its exceptions.
    """
    if isinstance(error, BaseExceptionGroup):
        decisions = {verdict(each) for each in error.exceptions}
        return Verdict.STOP if Verdict.STOP in decisions else Verdict.REPORT
    for kind, decision in FAULT_TABLE:
        if isinstance(error, kind):
            return decision
    return Verdict.STOP


@dataclass(eq=False, repr=False)
class FaultHandler:
    """Receives every unexpected exception; may be called from any thread.

    Args:
        stop: called at most once, with one line that says why the node must end.
        count_job_failure: called for each job that failed and is begun again.
    """

    _stop: Callable[[str], None] | None
    _count_job_failure: Callable[[], object] = lambda: None
    fault_count: int = 0

    def __call__(self, error: BaseException) -> None:
        self.fault_count += 1
        decision = verdict(error)
        logger.error("unexpected %s (%s)", type(error).__name__, decision.value, exc_info=error)
        stop, reason = self._stop, f"{type(error).__name__}: {error}"
        if decision is Verdict.STOP and stop is not None:
            self._stop = None
            stop(f"the node stops, because going on could do harm: {reason}")

    def from_loop(self, _loop: object, context: dict[str, object]) -> None:
        """As asyncio's exception handler."""
        error = context.get("exception")
        if JOB_KEY in context:
            self._count_job_failure()
            logger.error("%s", context.get("message"))
        if isinstance(error, BaseException):
            self(error)
        else:
            logger.error("event loop: %s", context.get("message"))
