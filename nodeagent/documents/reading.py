"""Reads a text into a `PlanDocument`, whether it is a plan or a mig-parted file."""

import hashlib
import re
import shlex
from collections.abc import Iterator

from nodeagent.documents.bounded_yaml import MAX_TEXT, Value, read_tree
from nodeagent.documents.findings import DocumentPath, path_text, refuse
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import PlanDocument
from nodeagent.plan.problems import Code
from nodeagent.text import quote

MAX_PLAN = 64 * 1024  # bytes; what fits an annotation beside others
_MIG_PARTED_KEY = "mig-configs"
_KEYS = frozenset({"gpus", _MIG_PARTED_KEY})  # of a plan, of a mig-parted file
# Compiled when a document has something like it, as `re` keeps what it compiled.
_PLAN_TEXT = rf"""^[ \t{{"']*({"|".join(sorted(_KEYS))})["']?\s*:"""


def read_document(text: str | bytes, *, configuration: str | None = None) -> PlanDocument:
    """Read a plan, or one configuration of a mig-parted file (recognised by its key `mig-configs`).

    `configuration` names one of a mig-parted file; a file with only one needs no name. All of the
    text is checked, however little of it is used. Raises DocumentError with every fault found.
    """
    encoded = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    # A mig-parted file may be larger than a plan, and only it holds the word.
    if len(encoded) > MAX_PLAN and _MIG_PARTED_KEY.encode() not in encoded:
        raise _too_large(encoded)
    tree = read_tree(text)
    digest = digest_of(encoded)
    if tree.value is None:
        raise refuse(Code.SYNTAX, "empty")
    if not isinstance(tree.value, dict):
        raise refuse(Code.SYNTAX, "noMap", found=quote(tree.value))
    if _KEYS.isdisjoint(tree.value):
        _refuse_wrapped(tree.value)
    if _is_mig_parted(tree.value):
        from nodeagent.documents.mig_parted import read_configuration

        return read_configuration(tree, digest, configuration)
    if len(encoded) > MAX_PLAN:
        raise _too_large(encoded)
    if configuration is not None:
        raise refuse(Code.UNKNOWN_CONFIGURATION, "ofPlan", name=quote(configuration))
    from nodeagent.documents.plan import read_plan

    return read_plan(tree, digest)


def digest_of(text: bytes) -> str:
    """The digest by which people compare documents: `sha256:` and the hash of the text."""
    return "sha256:" + hashlib.sha256(text).hexdigest()


def _is_mig_parted(document: dict[str, Value]) -> bool:
    """Whether it has the key of a mig-parted file, be it misspelt: that fault is then reported."""
    if _MIG_PARTED_KEY in document:
        return True
    keys = [key.lower().replace("_", "-") for key in document]
    return "gpus" not in keys and any(key.startswith("mig-config") for key in keys)


def _too_large(encoded: bytes) -> DocumentError:
    more = " or more" if len(encoded) >= MAX_TEXT else ""  # files are read no further
    return refuse(Code.SYNTAX, "large", found=f"{len(encoded):,}", more=more, most=f"{MAX_PLAN:,}")


def _refuse_wrapped(document: dict[str, Value]) -> None:
    """Raise DocumentError for a plan in another document, or a Kubernetes object without one."""
    place = next(_plans_in(document, ()), None)
    kind = document.get("kind") if "apiVersion" in document else None
    what = f"a Kubernetes object of kind {quote(kind)}" if kind else "Helm values or the like"
    if place is not None:
        where = path_text(place)
        raise refuse(Code.SYNTAX, "wrapped", what=what, where=where, query=shlex.quote(f".{where}"))
    if kind:
        raise refuse(Code.SYNTAX, "noPlan", what=what)


def _plans_in(value: Value, path: DocumentPath) -> Iterator[DocumentPath]:
    match value:
        case str() if re.search(_PLAN_TEXT, value, re.MULTILINE):
            yield path
        case dict() if path and "version" in value and not _KEYS.isdisjoint(value):
            yield path
        case dict() | list():
            for key, below in value.items() if isinstance(value, dict) else enumerate(value):
                yield from _plans_in(below, (*path, key))
        case _:
            return
