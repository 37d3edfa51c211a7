"""Who else may read what a node writes: modes of new files, and rights that are taken."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.runtime.filesystem import OsFilesystem
from moldau.runtime.private_files import close_to_others, others_may_read, owner_only


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """The most generous umask, so that every right that is missing was left out on purpose."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def filesystem() -> Iterator[OsFilesystem]:
    instance = OsFilesystem()
    yield instance
    instance.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_whatever_a_node_writes_is_its_owners_alone(
    filesystem: OsFilesystem, tmp_path: Path
) -> None:
    home = tmp_path / "data" / "flights-0"
    filesystem.mkdirs(str(home))
    filesystem.open(str(home / "0.log"), create=True).close()
    filesystem.open(str(home / "0.log.cleaned"), exclusive=True).close()
    filesystem.map(str(home / "0.index"), 4096, create=True).close()
    filesystem.write_atomically(str(home / "checkpoint"), b"x")
    filesystem.lock(str(home / ".lock")).release()
    with open(home / "node.log", "ab", opener=owner_only) as log:
        log.write(b"a line\n")
    assert mode(home) == 0o700
    modes = {path.name: mode(path) for path in home.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert len(modes) == 6


def old_home(path: Path) -> Path:
    """As an earlier version left it."""
    (path / "flights-0").mkdir(0o755, parents=True)
    (path / "flights-0" / "0.log").touch(0o644)
    (path / "meta.properties").touch(0o644)
    path.chmod(0o755)
    return path


def test_rights_of_others_are_taken_from_all_existing_files(tmp_path: Path) -> None:
    home, outside = old_home(tmp_path / "data"), tmp_path / "outside"
    outside.touch(0o644)
    (home / "link").symlink_to(outside)
    assert close_to_others(str(home)) == (4, None)
    assert mode(home) == mode(home / "flights-0") == 0o700
    assert mode(home / "meta.properties") == mode(home / "flights-0" / "0.log") == 0o600
    assert mode(outside) == 0o644, "what a link names is not the node's"
    assert close_to_others(str(home)) == (0, None), "said once"


def test_a_link_to_a_home_is_followed(tmp_path: Path) -> None:
    home = old_home(tmp_path / "disk")
    (tmp_path / "data").symlink_to(home)
    assert close_to_others(str(tmp_path / "data")).path_count == 4
    assert mode(home) == 0o700


def test_a_directory_with_setgid_stays_its_groups(tmp_path: Path) -> None:
    home = old_home(tmp_path / "data")
    home.chmod(0o2775)
    (home / "flights-0").chmod(0o2770)
    close_to_others(str(home))
    assert (mode(home), mode(home / "flights-0")) == (0o2770, 0o2770)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory to another user")
def test_a_volume_of_another_owner_stays_its_groups(tmp_path: Path) -> None:
    home = old_home(tmp_path / "data")
    os.chown(home, 12345, 12345)
    home.chmod(0o775)
    assert close_to_others(str(home)) == (4, None)
    assert (mode(home), mode(home / "flights-0")) == (0o770, 0o700)


def test_what_cannot_be_changed_is_named_and_what_is_in_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a volume's root under fsGroup, which belongs to root."""
    home = old_home(tmp_path / "data")
    chmod = os.chmod

    def refused(path: str, wanted: int) -> None:
        if path == str(home):
            raise PermissionError(1, "Operation not permitted")
        chmod(path, wanted)

    monkeypatch.setattr(os, "chmod", refused)
    assert close_to_others(str(home)) == (3, f"{home}: Operation not permitted")
    assert mode(home / "flights-0" / "0.log") == 0o600
    assert close_to_others(str(home)).path_count == 0


def test_a_directory_of_all_users_stays_theirs(tmp_path: Path) -> None:
    home = old_home(tmp_path / "tmp")
    home.chmod(0o1777)
    count, refused = close_to_others(str(home))
    assert (count, mode(home)) == (3, 0o1777)
    assert refused is not None
    assert "sticky" in refused


def test_a_file_is_readable_only_if_every_directory_above_lets_others_in() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        home = Path(made)
        home.chmod(0o755)
        key = home / "key.pem"
        key.touch(0o644)
        assert others_may_read(str(key))
        home.chmod(0o750)
        assert not others_may_read(str(key))
        home.chmod(0o755)
        key.chmod(0o640)
        assert not others_may_read(str(key))
        assert not others_may_read(str(home / "none"))
        assert not others_may_read("/no\0such")
