"""Plays documents as their reader would: types their commands, saves their files, compares outputs.

    python -m tests.system.documents.tour README.md#install docs/quickstart/local.md

`#install` plays one section of a document. All of them are played in one directory, in order, with
the addresses and names that stand in them. That needs a separate network (root, or namespaces for
users): no other node is met there, and nothing is fetched from elsewhere. What `pip` installs comes
from an index of the packages that are installed here, in which Moldau is not.

Owns: the directory, the terminals, the index. Must not: change a word of a document. Invariant:
every block is played, or counted as left out with its reason. `…` in an output stands for anything
within its line, a line `…` for any lines.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.kit.package_index import write_index
from tests.system.documents.blocks import OUTPUT, SHELL, Block, Mark, blocks_of
from tests.system.documents.typing_terminal import Failed, Stuck, TypingTerminal
from tests.tidy.sources import ROOT, repository_files

SYSTEM_PYTHON: Final = Path("/usr/bin/python3")
INSIDE: Final = "--inside"
_PIP: Final = re.compile(r"^pip install (.*)$", re.MULTILINE)
FILES: Final = ("python", "yaml", "properties", "ini", "toml")
_IFF_UP: Final = 1
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914


class Wrong(Exception):
    """A document does not do what it says; the text says where and what."""


def in_own_network() -> list[str]:
    """What goes in front of a command that shall have a separate network; empty if it cannot."""
    for words in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*words, "true"], check=False).returncode == 0
        ):
            return words
    return []


def system_python() -> Path:
    """The system's own Python where it is of this version, else the one that runs this."""
    version = "import sys; print(sys.version_info[:2] == tuple(map(int, sys.argv[1:])))"
    wanted = [str(each) for each in sys.version_info[:2]]
    if SYSTEM_PYTHON.exists():
        words = [SYSTEM_PYTHON, "-c", version, *wanted]
        if subprocess.run(words, capture_output=True, check=True).stdout.strip() == b"True":
            return SYSTEM_PYTHON
    return Path(getattr(sys, "_base_executable", sys.executable))


def pattern_of(text: str) -> str:
    """A regular expression for an output as a document has it."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == "…" else _line_pattern(line) + r"[ ]*\n"
        for line in text.rstrip("\n").split("\n")
    ]
    return "".join(lines)


def _line_pattern(line: str) -> str:
    return ".*?".join(re.escape(part) for part in line.rstrip().split("…"))


def blocks_in(document: str) -> list[Block]:
    """The blocks of a document, or of its one section behind a `#`."""
    name, _, section = document.partition("#")
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines, start=1) if line.startswith("## ")]
    begin, end = 1, len(lines) + 1
    if section:
        begin = next(n for n in heads if lines[n - 1].lower() == f"## {section}")
        end = next((n for n in heads if n > begin), end)
    return [each for each in blocks_of(name, text) if begin <= each.line < end]


class Tour:
    """One reader with one directory.

    Args:
        home: an empty directory for all that the reader makes.
        environ: of each terminal.
    """

    def __init__(self, home: Path, environ: dict[str, str]) -> None:
        self.left_out: list[Block] = []
        self.played_count = 0
        self._home = home
        self._environ = environ
        self._terminals: list[TypingTerminal] = []

    def play(self, document: str) -> None:
        """A document, or a section, from its beginning to its end. Raises: Wrong."""
        blocks = blocks_in(document)
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if block.mark is Mark.NOT_PLAYED:
                self.left_out.append(block)
                continue
            began = time.monotonic()
            try:
                self._block(block, after if after and after.language == OUTPUT else None)
            except (Failed, Stuck, Wrong) as problem:
                raise Wrong(f"{block.place}: {problem}") from None
            self.played_count += 1
            print(f"{time.monotonic() - began:6.1f} s  {block.place}", flush=True)
        for terminal in self._terminals:
            if terminal.is_busy:
                terminal.interrupt()

    def close(self) -> None:
        for terminal in self._terminals:
            terminal.close()

    def _block(self, block: Block, shown: Block | None) -> None:
        if block.mark is Mark.CTRL_C:
            busy = [each for each in self._terminals if each.is_busy]
            if not busy:
                raise Wrong("nothing goes on that Ctrl-C could end")
            busy[-1].interrupt()
        elif block.language == SHELL:
            self._type(block, shown)
        elif block.language in FILES:
            self._save(block)
        elif block.language != OUTPUT:
            raise Wrong(f"a block of {block.language or 'no language'} is none that a reader uses")

    def _type(self, block: Block, shown: Block | None) -> None:
        terminal = next((each for each in self._terminals[::-1] if not each.is_busy), None)
        if terminal is None:
            terminal = TypingTerminal(self._home, self._environ)
            self._terminals.append(terminal)
        if shown is not None and shown.mark is Mark.GOES_ON:
            terminal.start(block.text, pattern_of(shown.text))
            return
        output = terminal.type(block.text)
        if shown is not None and not re.fullmatch(pattern_of(shown.text), output.rstrip() + "\n"):
            raise Wrong(f"the document shows\n{shown.text}and this came:\n{output}")

    def _save(self, block: Block) -> None:
        if not block.file:
            raise Wrong("the paragraph in front of it does not name the file that it is")
        with (self._home / block.file).open("a" if block.is_added else "w") as file:
            file.write(block.text)


def has_up(interface: str) -> None:
    """Let an interface of this network carry something."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", interface.encode(), 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        request = struct.pack("16sh14x", interface.encode(), flags | _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def copy_of_the_sources(target: Path) -> None:
    """What a clone has."""
    for path in repository_files():
        there = target / path.relative_to(ROOT)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, there)


def link_tools(directory: Path) -> None:
    """The system's commands, without a Java and without any Python."""
    for place in ("/usr/bin", "/bin"):
        for path in Path(place).iterdir():
            there = directory / path.name
            if not path.name.startswith(("java", "python")) and not there.is_symlink():
                there.symlink_to(path)


def requirements_of(documents: Sequence[str]) -> list[str]:
    """What the documents install, and what building the project needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["build-system"]["requires"], "wheel"]
    extras = project["project"]["optional-dependencies"]
    for document in documents:
        for block in blocks_in(document):
            for words in _PIP.findall(block.text) if block.mark is not Mark.NOT_PLAYED else ():
                for each in shlex.split(words):
                    extra = each.partition("[")[2].rstrip("]")
                    wanted += extras[extra] if extra else [each] if each[0] != "-" else []
    return [*wanted, *project["project"]["dependencies"]]


def play(documents: Sequence[str], base: Path) -> Tour:
    """Play documents in order. Raises: Wrong."""
    python = system_python()
    tools, home, index = base / "bin", base / "tour", base / "index"
    for directory in (tools, home, base / "home"):
        directory.mkdir()
    for name in ("/usr/bin", "/usr/local/bin", "/bin"):
        for path in Path(name).iterdir():
            if (
                not path.name.startswith(("java", "python"))
                and not (tools / path.name).is_symlink()
            ):
                (tools / path.name).symlink_to(path)
    (tools / "python3").symlink_to(python)
    began = time.monotonic()
    count = write_index(index, requirements_of(documents))
    copy_of_the_sources(home / "moldau")
    print(f"{time.monotonic() - began:6.1f} s  an index of {count} packages, and a clone")
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True)
    print(f"          {python} is {version.stdout.strip()}", flush=True)
    tour = Tour(
        home,
        {
            "HOME": str(base / "home"),
            "LANG": "C.UTF-8",
            "PATH": str(tools),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_INDEX_URL": index.as_uri(),
            "PIP_NO_CACHE_DIR": "1",
            "TERM": "xterm-256color",
            "VIRTUAL_ENV_DISABLE_PROMPT": "1",
        },
    )
    try:
        for document in documents:
            tour.play(document)
    finally:
        tour.close()
    return tour


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("documents", nargs="+", metavar="DOCUMENT")
    parser.add_argument("--directory", type=Path, help="an empty one, which is kept")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.inside:
        own_network = in_own_network()
        if not own_network:
            print("tour: no network namespace can be made here", file=sys.stderr)
            return 2
        words = [*own_network, sys.executable, "-m", "tests.system.documents.tour", INSIDE]
        os.chdir(ROOT)
        os.execvp(words[0], [*words, *arguments])  # what ends this process ends the tour
    has_up("lo")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    with tempfile.TemporaryDirectory(prefix="moldau-tour-") as temporary:
        base = options.directory or Path(temporary)
        try:
            tour = play(options.documents, base)
        except Wrong as problem:
            print(f"tour: {problem}", file=sys.stderr)
            return 1
    print(f"{tour.played_count} blocks played, {len(tour.left_out)} left out:")
    for block in tour.left_out:
        print(f"    {block.place}: {block.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
