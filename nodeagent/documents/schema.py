"""JSON Schema of the plan, for editors and for checks before a plan reaches a node."""

from __future__ import annotations

from nodeagent.documents.grammar import JsonSchema
from nodeagent.documents.plan import PLAN


def plan_schema() -> JsonSchema:
    """The plan's JSON Schema (draft 2020-12), from the very rules that read plans.

    It says what a schema can: not the sums of counts, not the same device under two names, and
    not whether a quantity is a whole number of bytes.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nodeagent plan",
        "description": "What each GPU of a node should be.",
        **PLAN.schema,
    }
