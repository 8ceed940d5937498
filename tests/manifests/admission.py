"""Admission policies judged as the API server does, by another interpreter of CEL.

Objects are given as the API server hands them to a policy: without keys that are empty.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.celtypes import MapType, StringType, Value
from celpy.evaluation import CELEvalError

from tests.manifests.rendering import one, written

AGENT = "system:serviceaccount:nodeagent:nodeagent"
NODE_NAME = "authentication.kubernetes.io/node-name"
POLICIES = {
    "nodeagent-own-node": "base/node-policy.yaml",
    "nodeagent-own-events": "base/event-policy.yaml",
    "nodeagent-plugin-pods": "components/plugin-pod-deletion/policy.yaml",
    "nodeagent-evictions": "components/evictions/policy.yaml",
    "nodeagent-own-claims": "components/dra/policy.yaml",
    "nodeagent-own-slices": "components/dra/policy.yaml",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it reaches admission. `node` is the one that the token names, "" for none."""

    operation: str
    resource: str  # with its sub-resource: nodes/status
    after: dict[str, Any] | None
    before: dict[str, Any] | None = None
    node: str = "gpu-0"
    user: str = AGENT
    namespace: str = ""

    def context(self) -> dict[str, Value]:
        """What the expressions see."""
        extra = {NODE_NAME: [self.node]} if self.node else {}
        user = {"username": self.user, **({"extra": extra} if extra else {})}
        request = {"operation": self.operation, "userInfo": user, "namespace": self.namespace}
        if "/" in self.resource:
            request["subResource"] = self.resource.partition("/")[2]
        return {
            "request": json_to_cel(request),
            "object": json_to_cel(self.after),
            "oldObject": json_to_cel(self.before),
        }


class AdmissionPolicy:
    """A ValidatingAdmissionPolicy, compiled."""

    def __init__(self, document: dict[str, Any]) -> None:
        spec = document["spec"]
        self._rules = spec["matchConstraints"]["resourceRules"]
        self._environment = celpy.Environment()
        self._conditions = [self._compiled(c["expression"]) for c in spec["matchConditions"]]
        self._variables = {
            v["name"]: self._compiled(v["expression"]) for v in spec.get("variables", ())
        }
        self._validations = [
            (
                self._compiled(v["expression"]),
                self._compiled(v["messageExpression"]) if "messageExpression" in v else None,
                v.get("message", ""),
            )
            for v in spec["validations"]
        ]

    def denials(self, asked: Asked) -> list[str]:
        """The messages of all validations that fail; empty when the request is let through.

        Raises CELEvalError where an expression has no value: the API server would deny that too,
        but without a word that helps.
        """
        context = asked.context()
        if not self._concerns(asked, context):
            return []
        variables = MapType()
        context["variables"] = variables
        for name, program in self._variables.items():
            variables[StringType(name)] = _value(program, context)
        return [
            str(_value(words, context)) if words else message
            for holds, words, message in self._validations
            if not _value(holds, context)
        ]

    def _concerns(self, asked: Asked, context: dict[str, Value]) -> bool:
        named = any(
            asked.operation in rule["operations"] and asked.resource in rule["resources"]
            for rule in self._rules
        )
        return named and all(_value(condition, context) for condition in self._conditions)

    def _compiled(self, expression: str) -> celpy.Runner:
        return self._environment.program(self._environment.compile(expression))


def _value(program: celpy.Runner, context: dict[str, Value]) -> Value:
    found = program.evaluate(context)
    if isinstance(found, CELEvalError):
        raise found
    return found


@functools.cache
def policy(name: str) -> AdmissionPolicy:
    """One of POLICIES, compiled."""
    return AdmissionPolicy(one(written(POLICIES[name]), "ValidatingAdmissionPolicy", name))
