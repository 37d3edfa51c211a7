"""Where the file of a store may be that is named while a node runs: links, `..`, second names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.store_directories import StoreDirectories
from moldau.runtime.authentication.tls import Store, contents

KEY = "ssl.truststore.location"
PEM = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """The directory of stores, beside one of logs; the latter has a segment with a certificate."""
    for name in ("etc/certificates", "data/t-0", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("etc/ca.pem", "data/t-0/0.log", "elsewhere/ca.pem"):
        (tmp_path / name).write_text(PEM)
    return tmp_path / "etc"


@pytest.fixture
def rule(etc: Path) -> StoreDirectories:
    return StoreDirectories((str(etc),), (str(etc.parent / "data"),))


def refusal(rule: StoreDirectories, path: object) -> str:
    with pytest.raises(SecuritySettingError) as caught:
        rule.resolved(str(path), KEY)
    return str(caught.value)


def test_a_store_lies_in_an_allowed_directory_or_below_it(
    rule: StoreDirectories, etc: Path
) -> None:
    assert rule.resolved(str(etc / "ca.pem"), KEY) == str(etc / "ca.pem")
    assert rule.resolved(str(etc / "certificates" / "new.pem"), KEY), "that is not there yet"
    assert rule.resolved(str(etc / "none" / ".." / "ca.pem"), KEY) == str(etc / "ca.pem")
    sibling = etc.parent / "etc2"
    sibling.mkdir()
    refusal(rule, sibling / "ca.pem")
    refusal(rule, etc)
    refusal(rule, etc / ".." / "elsewhere" / "ca.pem")
    refusal(rule, "/no\0such.pem")
    refusal(rule, "ca.pem")
    refusal(rule, "")


def test_the_error_does_not_say_which_files_exist(rule: StoreDirectories, etc: Path) -> None:
    there, not_there = etc.parent / "elsewhere" / "ca.pem", etc.parent / "elsewhere" / "no.pem"
    texts = {refusal(rule, each).replace(each.name, "") for each in (there, not_there)}
    assert len(texts) == 1
    segment, none = etc.parent / "data" / "t-0" / "0.log", etc.parent / "data" / "x" / "0.log"
    assert refusal(rule, segment).replace("t-0", "") == refusal(rule, none).replace("/x/", "//")


def test_a_link_counts_where_it_leads(rule: StoreDirectories, etc: Path) -> None:
    (etc / "inside.pem").symlink_to(etc / "certificates" / "ca.pem")
    assert rule.resolved(str(etc / "inside.pem"), KEY) == str(etc / "certificates" / "ca.pem")
    outside = etc.parent / "elsewhere"
    (outside / "back.pem").symlink_to(etc / "ca.pem")
    assert rule.resolved(str(outside / "back.pem"), KEY) == str(etc / "ca.pem")
    (etc / "out.pem").symlink_to(outside / "ca.pem")
    refusal(rule, etc / "out.pem")
    (etc / "out").symlink_to(outside)
    refusal(rule, etc / "out" / "ca.pem")
    (etc / "loop.pem").symlink_to(etc / "loop.pem")
    with pytest.raises(SecuritySettingError, match="Too many levels"):
        contents(Store("ssl.truststore", location=str(etc / "loop.pem"), directories=rule))


def test_a_certificate_manager_may_swap_the_directory_behind_a_link(
    rule: StoreDirectories, etc: Path
) -> None:
    """As Kubernetes does: FILE leads to ..data/FILE, and ..data to ..TIME."""
    for time in ("..1", "..2"):
        (etc / time).mkdir()
        (etc / time / "tls.pem").write_text(PEM)
    (etc / "tls.pem").symlink_to("..data/tls.pem")
    for time in ("..1", "..2"):
        (etc / "..new").symlink_to(time)
        (etc / "..new").rename(etc / "..data")
        assert rule.resolved(str(etc / "tls.pem"), KEY) == str(etc / time / "tls.pem")


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_log_directory_is_forbidden_however_it_is_named(
    rule: StoreDirectories, etc: Path, is_inside: bool
) -> None:
    """Also where it lies in an allowed directory: a node's home has its key store and its data."""
    data = etc.parent / "data"
    if is_inside:
        rule = StoreDirectories((str(etc.parent),), (str(data),))
    for path in (data / "t-0" / "0.log", data / "ca.pem", etc / ".." / "data" / "t-0" / "0.log"):
        refusal(rule, path)
    (etc / "0.pem").symlink_to(data / "t-0" / "0.log")
    (etc / "logs").symlink_to(data)
    refusal(rule, etc / "0.pem")
    refusal(rule, etc / "logs" / "t-0" / "0.log")
    os.link(data / "t-0" / "0.log", etc / "hard.pem")
    refusal(rule, etc / "hard.pem")
    os.link(etc / "ca.pem", etc / "second.pem")
    assert rule.resolved(str(etc / "second.pem"), KEY), "both names are outside of the logs"
    linked = StoreDirectories(rule.allowed, (str(etc / "logs"),))
    refusal(linked, data / "t-0" / "0.log")


def test_another_case_is_another_directory(rule: StoreDirectories, etc: Path) -> None:
    """Where it is the same one, device and inode say so, as for the allowed and forbidden ones."""
    upper = etc.parent / "ETC"
    refusal(rule, upper / "ca.pem")
    upper.mkdir()
    refusal(rule, upper / "ca.pem")


def test_nothing_is_allowed_without_a_directory(etc: Path) -> None:
    refusal(StoreDirectories((), ()), etc / "ca.pem")


def test_a_store_is_read_by_the_rule_each_time(rule: StoreDirectories, etc: Path) -> None:
    store = Store("ssl.truststore", location=str(etc / "link.pem"), directories=rule)
    (etc / "link.pem").symlink_to("ca.pem")
    assert contents(store) == (PEM.strip(), None)
    (etc / "link.pem").unlink()
    (etc / "link.pem").symlink_to(etc.parent / "data" / "t-0" / "0.log")
    with pytest.raises(SecuritySettingError, match=r"never in a log directory"):
        contents(store)
