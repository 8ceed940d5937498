from collections import Counter
from pathlib import Path

import pytest
import yaml

from nodeagent.cluster.plan_sources.mig_config import to_plan
from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import MigLayout
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.plan import Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code
from nodeagent.plan.resolve import resolve
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.simulation import known_boards
from nodeagent.structs import replace
from tests.plan.cards import card, present

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
    return to_plan.DeferredMigConfig(name, text).on(observed)


def counts(offered: PlanUpdate) -> dict[str, int]:
    assert isinstance(offered, PlanText)
    document = read_document(offered.text, configuration=offered.configuration)
    mig = document.entries[0].mig
    assert isinstance(mig, MigLayout)
    return {instance.profile: instance.count for instance in mig.instances}


def test_the_file_comes_first() -> None:
    assert named("mine") == PlanText(FILE, "mine")
    assert named("all-1g.10gb") == PlanText(FILE, "all-1g.10gb")


def test_what_the_file_does_not_have_is_generated() -> None:
    cases: list[bytes | None] = [None, FILE]
    for text in cases:
        assert counts(named("all-3g.40gb", text)) == {"3g.40gb": 2}


def test_what_the_file_has_for_other_cards_is_generated() -> None:
    assert counts(named("all-balanced")) == {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
    a100 = ObservedNode((card("a100-40gb"),))
    assert counts(named("all-balanced", observed=a100)) == {"1g.5gb": 7}


def test_a_file_at_fault_is_offered_so_that_it_is_refused() -> None:
    cases: list[bytes] = [
        b"version: v1\nmig-configs: {",
        b"version: v1\ngpus: []\n",
        b"mig-configs: 7",
    ]
    for text in cases:
        assert to_plan.configuration_names(text) is None
        offered = named("all-balanced", text)
        assert offered == PlanText(text, "all-balanced")
        with pytest.raises(DocumentError):
            read_document(text, configuration="all-balanced")


def test_a_fault_in_the_chosen_configuration_is_not_hidden() -> None:
    text = FILE.replace(b'"1g.5gb": 7', b'"1g.5": 7')
    assert named("all-balanced", text) == PlanText(text, "all-balanced")


def test_an_index_that_is_not_there_is_a_fault_of_the_file() -> None:
    text = b"version: v1\nmig-configs:\n  all-balanced:\n  - {devices: [7], mig-enabled: false}\n"
    assert named("all-balanced", text) == PlanText(text, "all-balanced")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    cases: list[tuple[str, bytes | None, str]] = [
        ("all-1g.10g", FILE, "did you mean all-1g.10gb"),
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


# --- configurations made for the cards there are ------------------------------------------------

DEFAULTS = Path(__file__).parents[3] / "examples" / "mig-parted" / "config.yaml"
BOARDS = [board.name for board in known_boards()]


def node(*gpus: Gpu) -> ObservedNode:
    """These cards side by side, each with an index and a UUID of its own."""
    return ObservedNode(tuple(replace(g, index=i, uuid=f"GPU-{i}") for i, g in enumerate(gpus)))


@pytest.mark.parametrize("board", BOARDS)
def test_every_configuration_fits_on_every_card(board: str) -> None:
    observed = node(card(board), card(board))
    made = to_plan.generate(observed)
    text = to_plan.file_of(made)
    for name, entries in made.items():
        assert to_plan.can_be_named(name)
        document = read_document(text, configuration=name)
        if card(board).mig is None and name != to_plan.DISABLED:
            with pytest.raises(DocumentError):
                resolve(document, observed)
            continue
        done = plan(resolve(document, observed), observed)
        assert done.verdict in {Verdict.APPLICABLE, Verdict.IN_SYNC, Verdict.BLOCKED}
        for gpu in done.gpus if name != to_plan.DISABLED else ():
            assert present(gpu.after) == Counter(entries[0]["mig-devices"])


def test_counts_are_those_of_the_default_file() -> None:
    cases: list[str] = ["a100-40gb", "a100-80gb", "a30", "h100-80gb", "b300", "gb300"]
    for board in cases:
        observed = node(card(board))
        defaults = yaml.safe_load(DEFAULTS.read_text())["mig-configs"]
        kind = f"0x{card(board).pci_device_id:08X}"
        compared = 0
        for name, (entry,) in to_plan.generate(observed).items():
            for default in defaults.get(name, ()):
                filters = default.get("device-filter", [kind])
                if kind not in ([filters] if isinstance(filters, str) else filters):
                    continue
                assert default.get("mig-devices", {}) == entry.get("mig-devices", {}), name
                compared += 1
        assert compared >= 8


def test_a30_has_as_many_as_fit_whatever_the_driver_counts() -> None:
    """A30's driver reports wrong counts; its placements give the right ones."""
    cases: list[int] = [1, 9]
    for claimed in cases:
        a30 = card("a30")
        wrong = replace(a30, profiles=tuple(replace(p, max_count=claimed) for p in a30.profiles))
        assert to_plan.generate(node(wrong))["all-1g.6gb"] == (to_plan.entry_with({"1g.6gb": 4}),)
        assert to_plan.generate(node(wrong))["all-2g.12gb"] == (to_plan.entry_with({"2g.12gb": 2}),)


def test_several_kinds_of_cards_are_distinguished() -> None:
    made = to_plan.generate(
        node(card("h100-80gb"), card("a100-80gb"), card("a100-40gb"), card("t4"))
    )
    assert made["all-3g.40gb"] == (
        to_plan.entry_with({"3g.40gb": 2}, ("0x20B210DE", "0x233010DE")),
    )
    assert made["all-1g.10gb"] == (
        to_plan.entry_with({"1g.10gb": 4}, ("0x20B010DE",)),
        to_plan.entry_with({"1g.10gb": 7}, ("0x20B210DE", "0x233010DE")),
    )
    entries = read_document(to_plan.file_of(made), configuration="all-1g.10gb").entries
    assert [{chosen.device for chosen in entry.pci_filters} for entry in entries] == [
        {0x20B010DE},
        {0x20B210DE, 0x233010DE},
    ]
    assert [entry["device-filter"] for entry in made[to_plan.BALANCED]] == [
        ("0x20B010DE",),
        ("0x20B210DE",),
        ("0x233010DE",),
    ]
    assert made[to_plan.DISABLED] == ({"devices": "all", "mig-enabled": False},)
    assert made[to_plan.ENABLED] == (to_plan.entry_with({}),)


def test_the_text_is_a_function_of_the_cards() -> None:
    one, other = card("h100-80gb"), card("a100-40gb")
    busy = replace(one, access=Access.LOST, instances=())
    assert to_plan.file_of(to_plan.generate(node(one, other))) == to_plan.file_of(
        to_plan.generate(node(other, busy))
    )


def test_without_profiles_nothing_is_promised() -> None:
    bare = replace(card("a100-40gb"), profiles=())
    observed = node(bare, card("t4"))
    assert set(to_plan.generate(observed)) == {to_plan.DISABLED, to_plan.ENABLED}
    assert [gpu.index for gpu in to_plan.without_profiles(observed)] == [0]


def less(drop: str = "", squeeze: str = "") -> Gpu:
    """An H100 without the profiles that begin so, or with one place for each of them."""
    h100 = card("h100-80gb")
    kept = (p for p in h100.profiles if not drop or not p.name.startswith(drop))
    return replace(
        h100,
        profiles=tuple(
            replace(p, placements=p.placements[:1]) if squeeze and p.name.startswith(squeeze) else p
            for p in kept
        ),
    )


@pytest.mark.parametrize(
    "gpu",
    [less(drop="2g"), less(squeeze="1g"), replace(less(drop="7g"), profiles=less().profiles[:2])],
    ids=["no 2g at all", "room for one 1g", "nothing of 4 or 7"],
)
def test_no_balance_where_the_card_has_none(gpu: Gpu) -> None:
    made = to_plan.generate(node(gpu))
    assert to_plan.BALANCED not in made
    assert len(made) > 2
    assert to_plan.BALANCED in to_plan.generate(node(less()))


def test_a_profile_that_has_no_place_is_left_out() -> None:
    """The driver lists it and does not say where it can lie."""
    h100 = card("h100-80gb")
    first, *others = h100.profiles
    nowhere = replace(h100, profiles=(replace(first, placements=()), *others))
    assert f"all-{first.name}" in to_plan.generate(node(h100))
    assert f"all-{first.name}" not in to_plan.generate(node(nowhere))


def test_a_card_without_an_id_cannot_be_distinguished_from_others() -> None:
    """Alone it needs none; beside others no entry would mean it and only it."""
    nameless = replace(card("h100-80gb"), pci_device_id=0)
    assert "all-7g.80gb" in to_plan.generate(node(nameless))
    assert "all-7g.80gb" not in to_plan.generate(node(nameless, card("a30")))
