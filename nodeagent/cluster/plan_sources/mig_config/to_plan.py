"""From the label to a plan: the configuration it names, of the mounted file or generated."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from nodeagent.cluster.plan_sources.mig_config.generated import (
    file_of,
    generate,
    without_profiles,
)
from nodeagent.documents.bounded_yaml import read_tree
from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.resolve import select
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.text import listed, nearest_names, shown

_MIG_CONFIGS = "mig-configs"
CONFIG: Final = "nvidia.com/mig.config"
_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def can_be_named(name: str) -> bool:
    """Whether a label can hold this name: some names in a file cannot be chosen by label."""
    return _VALUE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class DeferredMigConfig:
    """The configuration `name`, as in the label; `file_text` is the mounted mig-parted file, None
    without one.
    """

    name: str
    file_text: bytes | None

    def on(self, observed: ObservedNode) -> PlanUpdate:
        """What it means for this node's cards.

        The file counts first. A configuration is generated where there is no file, where it has
        none of that name, and where what it has of that name is for none of this node's cards. A
        file that cannot be read is offered as it is, so that it is refused with its own faults. To
        read a large file takes tens of milliseconds.
        """
        name, text = self.name, self.file_text
        in_file = () if text is None else configuration_names(text)
        if text is not None and in_file is None:
            return PlanText(text, name)
        known = in_file or ()
        generated = generate(observed)
        if (
            text is not None
            and name in known
            and (name not in generated or _is_for_this_node(text, name, observed))
        ):
            return PlanText(text, name)
        if name in generated and (name in known or observed.gpus):
            # Alone: what else could be made changes with what the driver reports.
            return PlanText(file_of({name: generated[name]}), name)
        return _unknown(name, known, generated, observed, has_file=text is not None)


def configuration_names(file_text: bytes) -> tuple[str, ...] | None:
    """The names in a mig-parted file; None when it is none or cannot be read."""
    try:
        value = read_tree(file_text).value
    except DocumentError:
        return None
    configurations = value.get(_MIG_CONFIGS) if isinstance(value, dict) else None
    return tuple(configurations) if isinstance(configurations, dict) else None


def _is_for_this_node(file_text: bytes, name: str, observed: ObservedNode) -> bool:
    try:
        document = read_document(file_text, configuration=name)
    except DocumentError:
        return True  # a fault in the file is reported as such
    # An index that the node does not have is such a fault too.
    problems: list[Problem] = []
    chosen = [select(entry, observed, problems) for entry in document.entries]
    return any(chosen) or bool(problems)


# --- an unknown name ------------------------------------------------------------------------------


def _unknown(
    name: str,
    in_file: Iterable[str],
    generated: Iterable[str],
    observed: ObservedNode,
    *,
    has_file: bool,
) -> NoPlan | UnreadablePlan:
    silent = without_profiles(observed)
    waiting = [gpu for gpu in silent if gpu.access is not Access.OK]
    if not observed.gpus or waiting:
        who = listed(f"GPU {gpu.index}" for gpu in waiting) or "the node's GPUs"
        return NoPlan(
            f"the configuration {shown(name)} is not known yet: {who} did not answer so far, and "
            "it may be one for them"
        )
    known = [one for one in dict.fromkeys((*in_file, *generated)) if can_be_named(one)]
    where = "neither in the mounted file nor" if has_file else "not"
    return UnreadablePlan(
        Problem(
            Code.UNKNOWN_CONFIGURATION,
            f"the label {CONFIG} names the configuration {shown(name)}, which is {where} among "
            "those that can be made for this node's cards; nothing was touched",
            _remedy(name, known, silent),
        )
    )


def _remedy(name: str, known: list[str], silent: tuple[Gpu, ...]) -> str:
    near = nearest_names(name, known)
    remedy = f"did you mean {' or '.join(near)}? " if near else ""
    remedy += f"known are {listed(known)}"
    if silent:
        gpus = listed(f"GPU {gpu.index}" for gpu in silent)
        remedy += (
            f"; the driver reports no profiles of {gpus} now, and some drivers do so only in MIG "
            "mode: all-enabled switches it on"
        )
    return remedy
