"""How hypothesis runs: `MOLDAU_HYPOTHESIS` says `gate` (the default), `shrink` or `long`.

Owns the profiles. Must not: judge how long an example takes, which says something about the
machine. Invariant: what replays a failure is printed before hypothesis tries to shrink it, so that
a process that is ended while it shrinks has said how to go on.

- gate: the same examples in every run, so that the test itself is what replays a failure. It is
  printed as it was found.
- shrink: the examples of `gate`, and what fails is shrunk.
- long: other examples in every run. What fails is printed as a decorator for the test.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, Phase, settings
from hypothesis import __version__ as hypothesis_version
from hypothesis.database import ExampleDatabase
from hypothesis.internal.conjecture import engine

SHRINKING_S = 20
"""Far below a test's time limit."""


class PrintingDatabase(ExampleDatabase):
    """Keeps nothing. The first failing example of a test is printed: the engine saves it before it
    shrinks it.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__()
        self._write = write
        self._printed: set[bytes] = set()

    def save(self, key: bytes, value: bytes) -> None:
        if key.endswith((b".pareto", b".secondary")) or key in self._printed:
            return
        self._printed.add(key)
        blob = base64.b64encode(b"\0" + value)
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        self._write(f"{test}: @reproduce_failure({hypothesis_version!r}, {blob!r})\n")

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return ()

    def delete(self, key: bytes, value: bytes) -> None:
        """There is nothing to delete."""


_real_stderr: list[int] = []


def _past_capture(text: str) -> None:
    os.write(_real_stderr[0], text.encode())


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    _real_stderr[:] = [config.stash[fault_handler_stderr_fd_key]]


engine.MAX_SHRINKING_SECONDS = SHRINKING_S
_patient = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, database=None
)
_gate = settings(_patient, derandomize=True, phases=(Phase.explicit, Phase.generate))
settings.register_profile("gate", _gate)
settings.register_profile("shrink", _gate, phases=(*_gate.phases, Phase.shrink, Phase.explain))
settings.register_profile(
    "long", _patient, max_examples=1_000, database=PrintingDatabase(_past_capture)
)
settings.load_profile(os.environ.get("MOLDAU_HYPOTHESIS", "gate"))
