"""Paths out of a configuration that name a pipe, a device, a directory or a huge file: one error,
and no wait.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.config import ConfigError, NodeConfig, read_properties_file
from moldau.config.providers import PROVIDERS, resolved
from moldau.config.small_files import read_small_file
from moldau.runtime.authentication import AuthenticationError, SecuritySettingError
from moldau.runtime.authentication.tls import Store, contents
from moldau.sasl.gssapi.library import KerberosError, file_name
from moldau.sasl.oauthbearer.assertions import WatchedFile
from moldau.sasl.oauthbearer.jwks import KeyFile
from tests.kit.counting import descriptors

pytestmark = pytest.mark.timeout(20)

LIMIT = 1000
PROVIDER = "org.apache.kafka.common.config.provider."


@pytest.fixture(params=["pipe", "device", "directory", "huge file"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What is no file to read."""
    path = tmp_path / "odd"
    if request.param == "device":
        return Path("/dev/zero")
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "directory":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(10 * 1024**3)  # sparse
    return path


def by_file_provider(path: str) -> object:
    key = f"{PROVIDERS}.p.class"
    return resolved(
        {PROVIDERS: "p", key: f"{PROVIDER}FileConfigProvider", "k": f"${{p:{path}:x}}"}, {}
    )


def by_directory_provider(path: str) -> object:
    home, name = os.path.split(path)
    values = {PROVIDERS: "p", f"{PROVIDERS}.p.class": f"{PROVIDER}DirectoryConfigProvider"}
    return resolved({**values, "k": f"${{p:{home}:{name}}}"}, {})


READERS: dict[str, Callable[[str], object]] = {
    "key store": lambda path: contents(Store("ssl.keystore", location=path)),
    "file provider": by_file_provider,
    "directory provider": by_directory_provider,
    "key set": KeyFile,
    "token or assertion": lambda path: WatchedFile("k", path, bytes)(),
    "keytab": file_name,
    "keytab with its kind": lambda path: file_name(f"FILE:{path}"),
    "itself": lambda path: read_small_file(path, LIMIT),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_is_no_small_file_is_one_error(odd: Path, reader: Callable[[str], object]) -> None:
    before = descriptors()
    kinds = (ConfigError, SecuritySettingError, AuthenticationError, KerberosError, OSError)
    with pytest.raises(kinds, match=r"not a regular file|larger than \d+ bytes"):
        reader(str(odd))
    assert descriptors() == before


def test_a_file_of_the_largest_size_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * LIMIT)
    assert read_small_file(str(path), LIMIT) == b"x" * LIMIT
    path.write_bytes(b"x" * (LIMIT + 1))
    with pytest.raises(OSError, match="larger than 1000 bytes"):
        read_small_file(str(path), LIMIT)


def test_a_pipe_is_read_where_the_user_of_a_shell_names_it() -> None:
    """As `--command-config <(…)`; a device without an end is refused all the same."""
    reading, writing = os.pipe()
    os.write(writing, b"node.id=1\n")
    os.close(writing)
    assert read_properties_file(f"/dev/fd/{reading}") == {"node.id": "1"}
    os.close(reading)
    with pytest.raises(ConfigError, match="larger than"):
        NodeConfig.load("/dev/zero")


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(r"'/no\x00such': no file can have this name")):
        by_file_provider("/no\0such")
