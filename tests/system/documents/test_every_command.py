"""Every command in the documents is run by a test, or there is a reason why not."""

from __future__ import annotations

import pytest

from tests.system.documents.commands import (
    LEFT_OUT,
    _commands,
    commands_of,
    commands_to_run,
    documents,
)
from tests.tidy.sources import ROOT

HERE = "tests/system/documents"
#: Which test runs what is not left out of a document, to the last command.
RUN_BY = {
    "CONTRIBUTING.md": f"{HERE}/test_developers.py",
    "README.md": f"{HERE}/test_tour.py",
    "deploy/README.md": f"{HERE}/test_client_commands.py",
    "docs/client.md": f"{HERE}/test_client_commands.py",
    "docs/console.md": f"{HERE}/test_console_commands.py",
    "docs/filters.md": f"{HERE}/test_client_commands.py",
    "docs/howto.md": f"{HERE}/test_howto.py",
    "docs/index.md": f"{HERE}/test_tour.py",
    "docs/install.md": f"{HERE}/test_tour.py",
    "docs/operations.md": f"{HERE}/test_operations.py",
    "docs/quickstart/local.md": f"{HERE}/test_tour.py",
    "docs/quickstart/machines.md": f"{HERE}/test_machines.py",
    "docs/quickstart/secure.md": f"{HERE}/test_tour.py",
    "docs/quickstart/spark.md": f"{HERE}/test_tour.py",
    "docs/quickstart/tests.md": f"{HERE}/test_tour.py",
    "docs/security.md": f"{HERE}/test_operations.py",
    "docs/spark.md": "tests/spark/test_documents.py",
    "docs/testing.md": f"{HERE}/test_developers.py",
    "examples/README.md": f"{HERE}/test_examples.py",
}


def test_every_document_with_commands_has_a_test():
    with_commands = {name for name in documents() if commands_to_run(name)}
    assert with_commands == RUN_BY.keys()


@pytest.mark.parametrize("document", sorted(RUN_BY))
def test_the_test_reads_the_document(document: str):
    assert f'"{document}"' in (ROOT / RUN_BY[document]).read_text(encoding="utf-8")


@pytest.mark.parametrize("document", sorted(LEFT_OUT))
def test_what_is_left_out_is_still_there(document: str):
    there = {each.text for each in commands_of(document)}
    assert LEFT_OUT[document].keys() <= there
    assert all(LEFT_OUT[document].values())


def test_most_commands_are_run():
    counts = [(len(commands_to_run(name)), len(commands_of(name))) for name in documents()]
    ran, total = (sum(each) for each in zip(*counts, strict=True))
    assert total > 150
    assert ran / total > 0.7


def test_commands_are_found():
    text = """
```sh
moldau topics list   # all
moldau storage format -c x \\
    -t ID
```

    make bench   # slow

    $ seq 3 | moldau produce t
    3 of 3
    added controller 104 with directory id x

```python
moldau = 1
```
"""
    found = [(each.line, each.text) for each in _commands("x.md", text)]
    assert found == [
        (3, "moldau topics list"),
        (5, "moldau storage format -c x -t ID"),
        (8, "make bench"),
        (10, "seq 3 | moldau produce t"),
    ]
