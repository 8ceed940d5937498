"""Admission policies judged as the API server does, by another interpreter of CEL: with types.

Objects are given as the API server hands them to a policy: without keys that are empty.
"""

import functools
import re
from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel

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

    def context(self) -> dict[str, Any]:
        extra = {NODE_NAME: [self.node]} if self.node else {}
        user = {"username": self.user, **({"extra": extra} if extra else {})}
        request = {"operation": self.operation, "userInfo": user, "namespace": self.namespace}
        if "/" in self.resource:
            request["subResource"] = self.resource.partition("/")[2]
        return {"request": request, "object": self.after, "oldObject": self.before}


# Those that begin a list, and no index.
_LISTS = re.compile(r"(?<![\w)\]])\[([^\[\]]*)\]")


def compiled(expression: str, variables: dict[str, cel.Type]) -> cel.Expression:
    """Raises RuntimeError for what has no type, and ValueError where Kubernetes' compiler is
    stricter: what a list holds has one type, and a dynamic value and a string have not.
    """
    for elements in _LISTS.findall(expression):
        if not re.fullmatch(r"('[^']*'(, *|$))*", elements.strip()):
            raise ValueError(f"[{elements}]: a list of other things than strings")
    return cel.NewEnv(variables=variables).compile(expression)


class AdmissionPolicy:
    """A ValidatingAdmissionPolicy, compiled."""

    def __init__(self, document: dict[str, Any]) -> None:
        spec = document["spec"]
        self._rules = spec["matchConstraints"]["resourceRules"]
        self._known = dict.fromkeys(("request", "object", "oldObject"), cel.Type.DYN)
        self._conditions = [self._holds(c["expression"]) for c in spec["matchConditions"]]
        self._variables: dict[str, cel.Expression] = {}
        for variable in spec.get("variables", ()):
            name = f"variables.{variable['name']}"
            self._variables[name] = compiled(variable["expression"], self._known)
            self._known[name] = self._variables[name].return_type()
        self._validations = [
            (
                self._holds(v["expression"]),
                self._of_type(cel.Type.STRING, v["messageExpression"])
                if "messageExpression" in v
                else None,
                v.get("message", ""),
            )
            for v in spec["validations"]
        ]

    def denials(self, asked: Asked) -> list[str]:
        """The messages of all validations that fail; empty when the request is let through.

        Raises ValueError where an expression has no value: the API server would deny that too,
        but without a word that helps.
        """
        context = asked.context()
        if not self._concerns(asked, context):
            return []
        for name, program in self._variables.items():
            context[name] = _value(program, context)
        return [
            str(_value(words, context)) if words else message
            for holds, words, message in self._validations
            if not _value(holds, context)
        ]

    def _concerns(self, asked: Asked, context: dict[str, Any]) -> bool:
        named = any(
            asked.operation in rule["operations"] and asked.resource in rule["resources"]
            for rule in self._rules
        )
        return named and all(_value(condition, context) for condition in self._conditions)

    def _holds(self, expression: str) -> cel.Expression:
        return self._of_type(cel.Type.BOOL, expression)

    def _of_type(self, wanted: cel.Type, expression: str) -> cel.Expression:
        program = compiled(expression, self._known)
        if program.return_type() != wanted:
            raise ValueError(f"{expression}: {program.return_type()} instead of {wanted}")
        return program


def _value(program: cel.Expression, context: dict[str, Any]) -> Any:
    found = program.eval(data=context)
    if found.type() == cel.Type.ERROR:
        raise ValueError(str(found))
    return found.plain_value()


@functools.cache
def policy(name: str) -> AdmissionPolicy:
    return AdmissionPolicy(one(written(POLICIES[name]), "ValidatingAdmissionPolicy", name))
