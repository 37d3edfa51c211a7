"""The helper that cleans up after a test process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from moldau.local.watchdog import Watchdog

pytestmark = pytest.mark.real


@pytest.mark.timeout(30)
def test_it_ends_although_a_forked_process_holds_its_pipe(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    watchdog = Watchdog(directory)
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        watchdog.close()
        watchdog.close()
        assert not directory.exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
