"""Which plan the label means, and what is said when it means none."""

from __future__ import annotations

import pytest

from nodeagent.cluster.plan_sources.mig_config.to_plan import (
    DeferredMigConfig,
    configuration_names,
)
from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import MigLayout
from nodeagent.plan.observed import Access, ObservedNode
from nodeagent.plan.problems import Code
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import replace
from tests.plan.cards import card

H100 = ObservedNode((card("h100-80gb"),))
FILE = b"""\
version: v1
mig-configs:
  mine:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.40gb": 1}
  all-balanced:
    - device-filter: "0x20B010DE"
      devices: all
      mig-enabled: true
      mig-devices: {"1g.5gb": 7}
  all-1g.10gb:
    - device-filter: "0x233010DE"
      devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 5}
  "with+plus":
    - devices: all
      mig-enabled: false
"""


def named(name: str, text: bytes | None = FILE, observed: ObservedNode = H100) -> PlanUpdate:
    """What is offered for a label of this value."""
    return DeferredMigConfig(name, text).on(observed)


def counts(offered: PlanUpdate) -> dict[str, int]:
    """What an offered plan asks for."""
    assert isinstance(offered, PlanText)
    document = read_document(offered.text, configuration=offered.configuration)
    mig = document.entries[0].mig
    assert isinstance(mig, MigLayout)
    return {instance.profile: instance.count for instance in mig.instances}


def test_the_file_comes_first() -> None:
    """A name that the file has for these cards is the file's, unchanged, whatever is generated."""
    assert named("mine") == PlanText(FILE, "mine")
    assert named("all-1g.10gb") == PlanText(FILE, "all-1g.10gb")


def test_what_the_file_does_not_have_is_generated() -> None:
    """Without a file, or without the name in it, the configuration is made for the cards."""
    cases: list[bytes | None] = [None, FILE]
    for text in cases:
        assert counts(named("all-3g.40gb", text)) == {"3g.40gb": 2}


def test_what_the_file_has_for_other_cards_is_generated() -> None:
    """A configuration whose filters match no card here is the file's not knowing these cards."""
    assert counts(named("all-balanced")) == {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
    a100 = ObservedNode((card("a100-40gb"),))
    assert counts(named("all-balanced", observed=a100)) == {"1g.5gb": 7}


def test_an_offer_says_the_same_while_the_driver_learns_more() -> None:
    """What else could be generated is no part of the offer, so it does not change with that."""
    bare = replace(card("h100-80gb"), profiles=())
    assert named("all-enabled", None, ObservedNode((bare,))) == named("all-enabled", None)


def test_a_file_at_fault_is_offered_so_that_it_is_refused() -> None:
    """A generated configuration never hides that the mounted file is broken or no such file."""
    cases: list[bytes] = [
        b"version: v1\nmig-configs: {",
        b"version: v1\ngpus: []\n",
        b"",
        b"\xff\xfe",
        b"mig-configs: 7",
    ]
    for text in cases:
        assert configuration_names(text) is None
        offered = named("all-balanced", text)
        assert offered == PlanText(text, "all-balanced")
        with pytest.raises(DocumentError):
            read_document(text, configuration="all-balanced")


def test_a_fault_in_the_chosen_configuration_is_not_hidden() -> None:
    """A bad profile name in the file is refused, although a good one could be generated."""
    text = FILE.replace(b'"1g.5gb": 7', b'"1g.5": 7')
    assert named("all-balanced", text) == PlanText(text, "all-balanced")


def test_an_index_that_is_not_there_is_a_fault_of_the_file() -> None:
    """Nothing is generated in the place of a configuration that names a GPU the node lacks."""
    text = b"version: v1\nmig-configs:\n  all-balanced:\n  - {devices: [7], mig-enabled: false}\n"
    assert named("all-balanced", text) == PlanText(text, "all-balanced")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    """It says that nothing was touched, what was probably meant, and what there is."""
    cases: list[tuple[str, bytes | None, str]] = [
        ("all-1g.10g", FILE, "did you mean all-1g.10gb"),
        ("ALL-BALANCED", None, "did you mean all-balanced"),
        ("mime", FILE, "did you mean mine?"),
        ("all-1g.5gb", None, "did you mean all-1g.20gb or all-1g.10gb"),
        ("qqqqqqqq", FILE, "known are mine, all-balanced"),
    ]
    for name, text, near in cases:
        offered = named(name, text)
        assert isinstance(offered, UnreadablePlan)
        assert offered.problem.code is Code.UNKNOWN_CONFIGURATION
        assert f'"{name}"' in offered.problem.message
        assert "nothing was touched" in offered.problem.message
        assert near in offered.problem.remedy
        assert "all-disabled" in offered.problem.remedy


def test_a_name_that_no_label_can_hold_is_not_recommended() -> None:
    """The file's with+plus cannot be chosen by label, so the remedy does not name it."""
    offered = named("with.plus")
    assert isinstance(offered, UnreadablePlan)
    assert "with+plus" not in offered.problem.remedy


def test_a_silent_driver_is_the_reason_given() -> None:
    """Where a driver reports no profiles while MIG is off, the remedy says how to get them."""
    observed = ObservedNode((replace(card("a100-40gb"), profiles=()),))
    offered = named("all-1g.5gb", None, observed)
    assert isinstance(offered, UnreadablePlan)
    assert "GPU 0" in offered.problem.remedy
    assert "all-enabled" in offered.problem.remedy


@pytest.mark.parametrize(
    "observed",
    [
        ObservedNode(),
        ObservedNode((replace(card("h100-80gb"), profiles=(), access=Access.UNKNOWN),)),
    ],
    ids=["not looked yet", "does not answer"],
)
def test_nothing_is_called_unknown_before_the_cards_are_known(observed: ObservedNode) -> None:
    """At the start, and while a GPU hangs, a name may yet turn out to be one."""
    offered = named("all-balanced", None, observed)
    assert isinstance(offered, NoPlan)
    assert "all-balanced" in offered.reason
    enabled = named("all-enabled", None, observed)
    assert isinstance(enabled, NoPlan) == (not observed.gpus)
    assert named("mine", observed=observed) == PlanText(FILE, "mine")
