"""Plain English in the product, the tests and the documents.

Owns: the words that are refused, and where: docstrings, comments, names of tests, documents. Must
not: look at what code says to its users, or at names of other things. Invariant: code, in backticks
or fences, and comments of Markdown are no prose.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.findings import listed
from tests.tidy.sources import Function, name_of, python_files, repository_files, tree_of

#: What is refused, and what to write instead.
REFUSED = {
    re.compile(pattern, re.IGNORECASE): instead
    for pattern, instead in {
        r"(?<!\.)\b(?:some|no|any|every)(?:body|one)\b(?!-)": "the component, by Kafka's own term",
        r"\bno one\b|\bwho(?:so)?ever\b": "the component, by Kafka's own term",
        r"\banew\b": "again, or from the start",
        r"\bmeanwhile\b": "during what, or until when",
        r"\b(?:told|tells|telling)\b": "reports, returns, answers, shows, logs, raises, asks",
        r"\ban? (?:[\w-]+ ){1,2}of (?:its|their) own\b": "its own …, or a separate …",
        r"\b(?:is|are|was|were) there\b(?![^.?!]*\?)": "exists, or has come",
    }.items()
}

#: How a docstring begins that needs its name, or the line above it, to be understood.
FRAGMENT = re.compile(r"(?:Of|By|In|On|Between|Until|Unless|Beside|To|Into|Like|Out|Off|And)\b")

PYTHON = (
    "moldau",
    "pyspark_moldau",
    "tests",
    "docs",
    "benchmarks",
    "demo",
    "deploy",
    "examples",
    "tools",
    ".ci",
)

_NO_PROSE = re.compile(r"^ *(```+).*?^ *\1`*$|`+[^`]+`+|<!--.*?-->", re.MULTILINE | re.DOTALL)
_ARGUMENT = re.compile(r"^\s*\w+(?:, \w+)*: ", re.MULTILINE)


def refused_in(text: str) -> Iterator[str]:
    """What is refused of some prose, with what to write instead."""
    prose = " ".join(_NO_PROSE.sub("`…`", text).split())
    for pattern, instead in REFUSED.items():
        for found in pattern.finditer(prose):
            around = prose[max(0, found.start() - 40) : found.end() + 20]
            yield f"{found.group()} ({instead}) in: {around}"


def _prose_of(path: Path) -> Iterator[str]:
    if path.suffix != ".py":
        yield path.read_text(encoding="utf-8")
        return
    for text in _docstrings(path):
        yield _ARGUMENT.sub("", text)
    yield from _comments(path)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, Function) and node.name.startswith("test_"):
            yield node.name.replace("_", " ")


def _docstrings(path: Path) -> Iterator[str]:
    """Those of modules, classes and functions, and what stands below a constant or a field."""
    for node in ast.walk(tree_of(path)):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if is_text and isinstance(child.value.value, str):
                yield child.value.value


def _comments(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def _others() -> Iterator[Path]:
    """Documents, and what else has sentences: the tables of the tests, and the native module."""
    for path in repository_files():
        if path.suffix in (".md", ".pyx") or (
            path.suffix == ".toml" and name_of(path).startswith("tests/")
        ):
            yield path


def _has_candidates(path: Path) -> bool:
    """Most files are not taken apart. An underscore is a part of a word to the patterns."""
    text = path.read_text(encoding="utf-8").replace("_", " ")
    return any(pattern.search(text) for pattern in REFUSED) or "there" in text


def test_sentences_have_none_of_the_refused_words():
    refused = [
        f"{name_of(path)}: {found}"
        for path in (*python_files(*PYTHON), *_others())
        if path != Path(__file__) and _has_candidates(path)
        for text in _prose_of(path)
        for found in refused_in(text)
    ]
    instead = "write what stands in brackets, in plain English"
    assert refused == [], listed(refused, instead)


@pytest.mark.parametrize(
    "text",
    [
        "Nobody leads.",
        "a fetch that\nis told where the logs part",
        "The log begins anew.",
        "when the answer is\nthere",
        "it tells all. Is it so?",
        "each runs in a process of its own",
    ],
)
def test_a_refused_word_is_found(text: str):
    assert len(list(refused_in(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Is there a limit? Why is there none?",
        "`is there` and `allow.everyone.if.no.acl.found`",
        "allow.everyone.if.no.acl.found=true",
        "```\nnobody\n```\nmore",
        "<!-- promise: loss-told-once -->",
    ],
)
def test_questions_and_code_are_no_refused_words(text: str):
    assert list(refused_in(text)) == []


def test_docstrings_of_the_product_and_the_tests_stand_alone():
    fragments = [
        f"{name_of(path)}: {text.strip()[:80]}"
        for path in python_files("moldau", "pyspark_moldau", "tests")
        for text in _docstrings(path)
        if FRAGMENT.match(text.lstrip())
    ]
    instead = "begin with what it is: a docstring is read without its name"
    assert fragments == [], listed(fragments, instead)
