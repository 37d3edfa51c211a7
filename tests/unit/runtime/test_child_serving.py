"""The inside of a child process, called in this one."""

from __future__ import annotations

import io

import pytest

from moldau.runtime import child_serving


def test_a_line_goes_out_at_once() -> None:
    written: list[str] = []

    class Output(io.BytesIO):
        def write(self, data: object) -> int:
            written.append(f"{data!r}")
            return 0

        def flush(self) -> None:
            written.append("flushed")

    child_serving.write(Output(), b"line\n")
    assert written == ["b'line\\n'", "flushed"]


def test_work_is_given_up_when_the_parent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    class Ended(BaseException):
        pass

    def end(status: int) -> None:
        ended.append(status)
        raise Ended

    class Closed(io.BytesIO):
        def write(self, _data: object) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(child_serving.os, "_exit", end)
    with pytest.raises(Ended):
        child_serving.write(Closed(), b"line\n")
    assert ended == [0]
