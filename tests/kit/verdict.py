"""What a checker says of the product: data is lost, doubled, torn, or differs between replicas.

Owns: the one exception of such a verdict. Invariant: a test that fails with it is never run again,
so it is raised by checkers only, and never for what a slow machine may bring about.
"""

from __future__ import annotations


class Verdict(AssertionError):
    """The product broke a promise about data. No second run can take that back."""


def judge(findings: object, *details: object) -> None:
    """Pass when a checker found nothing. Raises: Verdict: it found something; the text is that,
    and the details
    """
    if findings:
        raise Verdict("\n".join(str(each) for each in (findings, *details)))
