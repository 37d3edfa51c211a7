"""`moldau users` on a real cluster."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from moldau.client import AuthenticationFailed
from moldau.client.sync import Admin
from tests.system.processes import run_cli
from tests.system.security.nodes import SecuredNode


def may_come(node: SecuredNode, name: str, password: str, mechanism: str) -> bool:
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": name,
        "sasl_password": password,
    }
    try:
        with Admin(node.address("SASL_PLAINTEXT"), **settings) as admin:  # type: ignore[arg-type]
            admin.describe_cluster()
    except AuthenticationFailed:
        return False
    return True


def test_users_come_and_go(node: SecuredNode, tmp_path: Path) -> None:
    name = f"user-{uuid.uuid4().hex}"
    where = ("-b", node.address("PLAINTEXT"))
    secret = tmp_path / "password"
    secret.write_text("f1rst\nignored\n")
    made = run_cli("users", "create", name, "--password-file", secret, *where)
    assert (made.status, made.output) == (0, f"user {name} may log in with SCRAM-SHA-512\n")
    assert may_come(node, name, "f1rst", "SCRAM-SHA-512")
    assert not may_come(node, name, "f1rst", "SCRAM-SHA-256")
    secret.write_text("s3cond")
    more = ("--mechanism", "SCRAM-SHA-256", "--iterations", "8192", "--password-file", secret)
    assert run_cli("user", "create", name, *more, *where).status == 0
    assert may_come(node, name, "s3cond", "SCRAM-SHA-256")
    listed = run_cli("users", "list", "--json", *where)
    assert [each for each in json.loads(listed.output) if each["user"] == name] == [
        {"user": name, "mechanism": "SCRAM-SHA-256", "iterations": 8_192},
        {"user": name, "mechanism": "SCRAM-SHA-512", "iterations": 4_096},
    ]
    one = run_cli("users", "delete", name, "--mechanism", "SCRAM-SHA-256", "--yes", *where)
    assert one.output == f"user {name} has no SCRAM-SHA-256 password any more\n"
    assert not may_come(node, name, "s3cond", "SCRAM-SHA-256")
    other = run_cli("users", "delete", name, "--mechanism", "SCRAM-SHA-256", "--yes", *where)
    assert f"no password of {name} for 'SCRAM-SHA-256'" in other.complaint
    asked = run_cli("users", "delete", name, *where)
    assert asked.status == 2
    assert f"delete the SCRAM-SHA-512 password of user {name}; give --yes" in asked.complaint
    assert may_come(node, name, "f1rst", "SCRAM-SHA-512")
    rest = run_cli("users", "delete", name, "--yes", *where)
    assert rest.output == f"user {name} has no SCRAM-SHA-512 password any more\n"
    gone = run_cli("users", "delete", name, "--yes", *where)
    assert gone.status == 1
    assert f"nothing was changed: there is no user '{name}'" in gone.complaint


def test_a_password_from_the_terminal(node: SecuredNode) -> None:
    """A process: the terminal must be the one that controls it."""
    name = f"user-{uuid.uuid4().hex}"
    ours, theirs = pty.openpty()
    command = ["users", "create", name, "-b", node.address("PLAINTEXT")]
    with subprocess.Popen(
        [sys.executable, "-m", "moldau.cli.main", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        shown = b""
        for asked in (b"Password", b"Repeat"):
            # The space comes when the terminal has been set to show nothing.
            while asked not in shown or not shown.endswith(b" "):
                shown += os.read(ours, 1_000)
            os.write(ours, b"typ3d\n")
        while True:
            try:
                piece = os.read(ours, 1_000)
            except OSError:  # the terminal has no process any more
                break
            shown += piece
        assert process.wait(60) == 0, shown
    os.close(ours)
    assert b"may log in" in shown
    assert b"typ3d" not in shown
    assert may_come(node, name, "typ3d", "SCRAM-SHA-512")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "a"), "give a --password-file"),
        (("create", "a", "--password-file", "/none"), "/none"),
        (("create", "a", "--password-file", "/dev/null"), "the password is empty"),
        (("create", "a", "--iterations", "4095", "--password-file", "/none"), "4096"),
        (("create", "a", "--mechanism", "PLAIN"), "PLAIN"),
    ],
)
def test_wrong_usage(node: SecuredNode, arguments: tuple[str, ...], words: str) -> None:
    done = run_cli("users", *arguments, "-b", node.address("PLAINTEXT"))
    assert done.status == 2
    assert words in done.errors
    assert "Traceback" not in done.errors
