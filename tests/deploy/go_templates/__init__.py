"""A renderer for the part of Go's templates that our Helm chart uses, for machines without helm.

Owns parsing and evaluation. Must not grow beyond the chart: whatever it does not know raises
TemplateError. What it does know is checked against answers that helm gave (`helm_3_22.json`).
"""

from __future__ import annotations

from tests.deploy.go_templates.evaluate import Renderer, TemplateError

__all__ = ["Renderer", "TemplateError"]
