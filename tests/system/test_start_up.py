"""What a serving node loads, and when: the lean start that tests and restarts live on.

Looked at from outside, by the interpreter's own `-X importtime` lines; the node is not asked.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.processes import properties

#: The command line's and the data frames' libraries: no node ever needs them.
NEVER = {"typer", "click", "rich", "pydantic", "pyarrow", "pandas", "hypothesis", "pytest"}
#: Slow to load (tens of milliseconds each): only once clients are served.
LATER = {"aiohttp", "prometheus_client"}
#: Ours, but the other side's.
FOREIGN = {"moldau.cli", "moldau.client", "moldau.local", "moldau.testing"}


@contextmanager
def importing_node(config: Path) -> Iterator[subprocess.Popen[str]]:
    """A node that says what it imports, in one stream with what it prints and logs."""
    with subprocess.Popen(
        [
            *(sys.executable, "-X", "importtime", "-m", "moldau.broker", str(config)),
            *("--announce", "--format-if-needed"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def modules_until(process: subprocess.Popen[str], text: str) -> set[str]:
    """The modules imported until a line contains `text`, or the module of that name is through."""
    assert process.stdout is not None
    modules, tail = set(), []
    for line in process.stdout:
        match = re.match(r"import time:\s+\d+ \|\s+\d+ \|\s+(\S+)", line)
        if match is not None:
            modules.add(match[1])
        if text in line if match is None else text == match[1]:
            return modules
        if match is None:
            tail.append(line)
    raise AssertionError(f"no line with {text!r}: {''.join(tail[-20:])}")


def packages(modules: set[str]) -> set[str]:
    """Those of which something was loaded; a bare name may be an attempt that failed."""
    return {module.partition(".")[0] for module in modules if "." in module}


def ours(modules: set[str]) -> set[str]:
    return {".".join(module.split(".")[:2]) for module in modules if module.startswith("moldau.")}


def test_a_node_serves_before_it_loads_what_is_slow(tmp_path: Path) -> None:
    config = properties(tmp_path, moldau_log_format="json", moldau_log_level="DEBUG")
    with importing_node(config) as process:
        before = modules_until(process, "ready: ")
        assert packages(before) & (NEVER | LATER) == set()
        assert ours(before) & FOREIGN == set()
        assert "moldau.broker" in ours(before)
        process.terminate()
        assert process.stdout is not None
        after = set(re.findall(r"\|\s+(\S+)$", process.stdout.read(), re.MULTILINE))
        assert process.wait(60) == 0
    assert packages(after) & NEVER == set()


def test_the_http_listener_loads_nothing_heavy_with_it(tmp_path: Path) -> None:
    with importing_node(properties(tmp_path, moldau_http_listener="127.0.0.1:0")) as process:
        modules = modules_until(process, "HTTP listener on")
        assert "aiohttp" in packages(modules)
        assert packages(modules) & NEVER == set()
        process.terminate()
        assert process.wait(60) == 0


def test_the_console_is_loaded_at_its_first_request(tmp_path: Path) -> None:
    """A node that has it on pays nothing for it while no browser looks; then neither for Arrow."""
    config = properties(tmp_path, moldau_http_listener="127.0.0.1:0", moldau_console_enable="true")
    with importing_node(config) as process:
        modules, line = set(), ""
        assert process.stdout is not None
        for line in process.stdout:
            match = re.match(r"import time:\s+\d+ \|\s+\d+ \|\s+(\S+)", line)
            if match is not None:
                modules.add(match[1])
            elif "HTTP listener on" in line:
                break
        assert ours(modules) & {*FOREIGN, "moldau.console"} == set()
        address = line.partition("HTTP listener on ")[2].split()[0]
        with urllib.request.urlopen(f"http://{address}/api/v1/session", timeout=60) as answer:
            assert answer.status == 200
        process.terminate()
        after = set(re.findall(r"\|\s+(\S+)$", process.stdout.read(), re.MULTILINE))
        assert process.wait(60) == 0
    assert "moldau.console" in ours(after)
    assert packages(after) & NEVER == set()
