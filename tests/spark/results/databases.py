"""Databases to store results in: SQLite always, PostgreSQL where its programs are installed.

Owns its own PostgreSQL server in its own directory, on a Unix socket. Must not use one
that runs already. Invariant: leaving the context ends the server.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 60
UNPRIVILEGED = ("postgres", "nobody")
CREATE = {
    "delays": "CREATE TABLE delays (carrier TEXT, delay INTEGER)",
    "each_once": (
        "CREATE TABLE each_once (topic TEXT, partition INTEGER, {offset} BIGINT, delay INTEGER, "
        "PRIMARY KEY (topic, partition, {offset}))"
    ),
    "totals": "CREATE TABLE totals (carrier TEXT PRIMARY KEY, flights BIGINT)",
}


def postgres_programs() -> Path | None:
    """The directory of `initdb` and `pg_ctl`, None when PostgreSQL is not installed."""
    for name in ("initdb", "postgres", "pg_ctl"):
        found = shutil.which(name)
        if found is not None and (Path(found).resolve().parent / "initdb").exists():
            return Path(found).resolve().parent
    return None


@contextmanager
def postgres(directory: Path) -> Iterator[str]:
    """A server while the block runs; its URL for SQLAlchemy."""
    programs = postgres_programs()
    assert programs is not None, "asked before"
    user = _unprivileged_user()
    data, log = directory / "data", directory / "postgres.log"
    if user is not None:  # PostgreSQL does not run as root
        shutil.chown(directory, user)

    def call(program: str, *arguments: str) -> None:
        finished = subprocess.run(
            [str(programs / program), *arguments],
            user=user,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr

    call("initdb", "-D", str(data), "-U", "tester", "-A", "trust", "--no-sync")
    settings = f"-c listen_addresses= -c unix_socket_directories={directory} -c fsync=off"
    call("pg_ctl", "-D", str(data), "-l", str(log), "-o", settings, "-w", "start")
    try:
        yield f"postgresql+psycopg://tester@/postgres?host={directory}"
    finally:
        call("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")


def _unprivileged_user() -> str | None:
    if os.getuid() != 0:
        return None
    known = {each.pw_name for each in pwd.getpwall()}
    return next(name for name in UNPRIVILEGED if name in known)
