"""What a waiting command sees of its standard output."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from moldau.cli.streams import ReaderHasGoneError, check_reader


def test_a_reader_that_has_gone_is_noticed_without_writing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        check_reader()
        os.write(writer, b"what is not read yet")
        check_reader()
        os.close(reader)
        with pytest.raises(ReaderHasGoneError):
            check_reader()


def test_an_output_without_a_reader_is_none_that_has_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("w") as file, open(os.devnull) as null:
        for output in (file, null, io.StringIO()):
            monkeypatch.setattr(sys, "stdout", output)
            check_reader()
