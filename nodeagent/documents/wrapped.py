"""A document that is no plan and holds one: a ConfigMap, a list of them, a chart's values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from nodeagent.documents.bounded_yaml import Value
from nodeagent.documents.findings import DocumentPath, path_text, refuse
from nodeagent.text import listed, quote

_KEYS = frozenset({"gpus", "mig-configs"})  # of a plan, of a mig-parted file
_TEXT = re.compile(rf"""^[\s{{"']*({"|".join(sorted(_KEYS))})["']?\s*:""", re.MULTILINE)
_SHOWN = 3


def refuse_wrapped(document: dict[str, Value]) -> None:
    """Raise DocumentError where the plan lies further down, or an object of Kubernetes has none."""
    places = list(_plans_in(document, ()))
    kind = document.get("kind")
    if not places and not (kind and "apiVersion" in document):
        return
    what = f"a Kubernetes object of kind {quote(kind)}" if kind else "Helm values or the like"
    if not places:
        raise refuse(
            f"the document is {what}, not a plan, and has none in it",
            remedy="a plan is a map with the keys version and gpus",
        )
    names = listed([path_text(place) for place in places], most=_SHOWN)
    raise refuse(
        f"the document is {what}, not a plan; there is one at {names}",
        remedy=f"give that alone: {_extraction(document, places[0])}",
    )


def _plans_in(value: Value, path: DocumentPath) -> Iterator[DocumentPath]:
    match value:
        case str() if _TEXT.search(value):
            yield path
        case dict() if path and "version" in value and not _KEYS.isdisjoint(value):
            yield path
        case dict():
            for key, below in value.items():
                yield from _plans_in(below, (*path, key))
        case list():
            for number, below in enumerate(value):
                yield from _plans_in(below, (*path, number))
        case _:
            return


def _extraction(document: Any, place: DocumentPath) -> str:
    """The command that writes the plan into a file of its own."""
    owner, inside = document, place
    if place[0] == "items" and len(place) > 2:
        owner, inside = document["items"][place[1]], place[2:]
    match owner, inside:
        case {"kind": "ConfigMap", "metadata": {"name": str(name), **rest}}, ("data", str(key)):
            namespace = f"-n {shlex.quote(str(rest['namespace']))} " if "namespace" in rest else ""
            path = shlex.quote(f"jsonpath={{.data.{key.replace('.', chr(92) + '.')}}}")
            return f"`kubectl get configmap {namespace}{shlex.quote(name)} -o {path} > plan.yaml`"
    return f"`yq -r {shlex.quote('.' + path_text(place))} FILE > plan.yaml`"
