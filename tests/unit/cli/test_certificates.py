"""`moldau certificates show`: a line for each certificate, and what to renew."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from moldau.local import certificate_authority
from moldau.local.secure_files import SecureFiles
from tests.kit.commands import Ended, run_here
from tests.kit.dated_certificates import dated, key_pem, pem

NODES = ("controller-101", "controller-102", "controller-103", "broker-1", "broker-2", "broker-3")


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    files = SecureFiles(tmp_path / "secured")
    files.make("localhost", {name: files.directory / name for name in NODES}, "", "")
    return files.directory


def show(cluster: Path, *options: str) -> Ended:
    done = run_here("certificates", "show", cluster, *options)
    assert done.status == 0, done
    return done


def expire(path: Path, days: float) -> None:
    """Have a certificate that expires then, or did."""
    at = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    at += datetime.timedelta(days=days)
    path.write_text(key_pem("own") + pem(dated("own", at)))


def test_every_certificate_is_one_line_of_eighty_columns(cluster: Path) -> None:
    done = show(cluster)
    assert done.errors == ""
    header, _, *lines = done.output.rstrip("\n").split("\n")
    assert header.split() == ["name", "expires", "days", "left", "subject"]
    assert len(lines) == len(NODES) + 2
    assert max(map(len, done.output.split("\n"))) <= 80
    assert {line.split()[0] for line in lines} == {"ca", "admin", *NODES}
    [broker] = [line for line in lines if line.startswith("broker-1 ")]
    assert broker.split()[2:] == ["364", "CN=broker-1,OU=nodes"]


def test_the_last_step_of_a_rotation_says_that_it_was_the_last(cluster: Path) -> None:
    said = [run_here("certificates", "rotate-authority", cluster).output for _ in range(3)]
    assert ["\nnext: " in each for each in said] == [True, True, False]
    assert ["\ndone: " in each for each in said] == [False, False, True]


def test_details_are_an_option_and_json_has_all(cluster: Path) -> None:
    details = show(cluster, "--details").output
    assert details.count("localhost, 127.0.0.1, ::1") == len(NODES)
    assert str(cluster / "broker-1" / "certificate.pem") in details
    found = {each["name"]: each for each in json.loads(show(cluster, "--json").output)}
    assert found["broker-1"].keys() == {
        *("name", "subject", "signed_by", "hosts", "expires", "days_left", "location")
    }
    assert found["broker-1"]["signed_by"] == found["ca"]["subject"].removeprefix("CN=")


def test_what_has_expired_and_what_will_is_named_with_the_command(cluster: Path) -> None:
    expire(cluster / "broker-1" / "certificate.pem", 10)
    expire(cluster / "broker-2" / "certificate.pem", 29.9)
    expire(cluster / "broker-3" / "certificate.pem", 30.5)
    expire(cluster / "admin.pem", -1.5)
    done = show(cluster)
    assert done.errors.splitlines() == [
        f"moldau: admin has expired: moldau certificates renew {cluster}",
        f"moldau: broker-1, broker-2 expire within 30 days: moldau certificates renew {cluster}",
    ]
    assert show(cluster, "--json").errors == ""


def test_an_authority_is_replaced_before_what_it_signs_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_authority, "AUTHORITY_DAYS", 3)
    cluster = tmp_path / "my secured"
    SecureFiles(cluster).make("localhost", {"node-1": cluster / "node-1"}, "", "")
    assert show(cluster).errors.splitlines() == [
        f"moldau: ca expires within 30 days: moldau certificates rotate-authority '{cluster}'",
        f"moldau: node-1, admin expire within 30 days: moldau certificates renew '{cluster}'",
    ]
