"""All tests. Imported first, also by what runs without pytest."""

import sys

NOT_REWRITTEN = frozenset({"anyio", "hypothesis", "moldau", "pyspark_moldau"})
"""Packages that bring a pytest plugin. pytest would rewrite each `assert` in all of their modules:
that costs more than the tests' own, and what is tested would not be what users run."""

for _finder in sys.meta_path:
    if type(_finder).__name__ == "AssertionRewritingHook":
        _finder._must_rewrite -= NOT_REWRITTEN  # type: ignore[attr-defined]
