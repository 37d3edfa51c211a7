"""The loggers whose levels a client may see and change."""

from __future__ import annotations

import logging

import pytest

from moldau.broker.api.config_resources import known_loggers, logger_level
from moldau.storage import log


def test_modules_that_log_and_their_packages_are_known() -> None:
    names = known_loggers()
    assert names[0] == "root"
    assert {"moldau", "moldau.storage", log.__name__, "moldau.audit"} <= {*names}
    assert not {"asyncio", "moldau.config.keys"} & {*names}


def test_the_level_of_a_package_holds_for_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    package = logging.getLogger("moldau.storage")
    monkeypatch.setattr(package, "level", logging.ERROR)
    assert logger_level("moldau.storage") == ("ERROR", True)
    assert logger_level(log.__name__) == ("ERROR", False)
