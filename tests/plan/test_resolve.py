"""A document meets the node's cards: what it means here, or why it is refused whole."""

import pytest

from nodeagent.errors import DocumentError
from nodeagent.plan import desired
from nodeagent.plan.observed import Access, Gpu, MigMode, ObservedNode
from nodeagent.plan.plan import GpuPlan, Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code
from nodeagent.plan.resolve import resolve, verdict_of
from nodeagent.structs import replace
from tests.plan.cards import card

NODE = ObservedNode(
    (
        replace(card("h100-80gb"), index=0, uuid="GPU-a"),
        replace(card("a100-40gb"), index=1, uuid="GPU-b", pci_bus_id="00000001:3B:00.0"),
        replace(card("t4"), index=2, uuid="GPU-c", pci_bus_id="00000001:3C:00.0"),
    )
)


def selector(text: str) -> desired.DeviceSelector:
    path = "gpus[0].devices[0]"
    return desired.DeviceSelector(text, path, int(text) if text.isdigit() else text)


def entry(mig: desired.MigEntry | None, *names: str, **more: object) -> desired.PlanEntry:
    """An entry for the named devices, or for all."""
    chosen = tuple(map(selector, names)) if names else None
    return desired.PlanEntry("gpus[0]", chosen, "gpus[0].devices", mig=mig, **more)  # type: ignore[arg-type]  # keyword pass-through


def layout(*items: tuple[str, int], start: int | None = None) -> desired.MigLayout:
    """A layout of (profile, count)."""
    return desired.MigLayout(
        tuple(
            desired.InstanceEntry(p, n, f"gpus[0].mig[{i}].profile", start)
            for i, (p, n) in enumerate(items)
        ),
        "gpus[0].mig",
    )


def resolved(*entries: desired.PlanEntry) -> desired.DesiredNode:
    return resolve(desired.PlanDocument(entries, "sha256:0"), NODE)


def refused(*entries: desired.PlanEntry, node: ObservedNode = NODE) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        resolve(desired.PlanDocument(entries, "sha256:0"), node)
    return caught.value


@pytest.mark.parametrize("name", ["1", "GPU-b", "GPU-B", "00000001:3B:00.0", "00000001:3b:00.0"])
def test_selectors(name: str) -> None:
    assert {"GPU-b"} == set(resolved(entry(desired.MigEnabled("p"), name)).gpus)


def test_all_means_mig_capable() -> None:
    assert {"GPU-a", "GPU-b"} == set(resolved(entry(desired.MigEnabled("p"))).gpus)
    assert not resolved().gpus  # of a plan that has no entry


def test_disabled_is_fine_without_mig() -> None:
    assert "GPU-c" in resolved(entry(desired.MigDisabled("p"))).gpus


def test_model_and_filters_narrow() -> None:
    assert {"GPU-a"} == set(resolved(entry(desired.MigEnabled("p"), model="*h100*")).gpus)
    ampere = (desired.PciFilter(0x20B010DE),)
    assert {"GPU-b"} == set(resolved(entry(desired.MigEnabled("p"), pci_filters=ampere)).gpus)


def test_last_entry_wins_whole() -> None:
    node = resolved(entry(layout(("1g.10gb", 1)), "0"), entry(layout(("7g.80gb", 1)), "0"))
    wish = node.gpus["GPU-a"].mig
    assert isinstance(wish, desired.Layout)
    assert [w.profile for w in wish.instances] == ["7g.80gb"]


@pytest.mark.parametrize(
    ("bad", "code", "words"),
    [
        (entry(desired.MigEnabled("p"), "7"), Code.UNKNOWN_DEVICE, "indices 0 to 2"),
        (entry(desired.MigEnabled("p"), "GPU-x"), Code.UNKNOWN_DEVICE, "GPU-a, GPU-b, GPU-c"),
        (entry(desired.MigEnabled("p"), "0", "GPU-a"), Code.DUPLICATE_DEVICE, "name each GPU once"),
        (entry(layout(("3g.4gb", 1)), "0"), Code.UNKNOWN_PROFILE, "did you mean 3g.40gb?"),
        (entry(layout(("3c.4g.40gb", 1)), "0"), Code.UNKNOWN_PROFILE, "1c.4g.40gb, 2c.4g.40gb"),
    ],
)
def test_invalid(bad: desired.PlanEntry, code: Code, words: str) -> None:
    answer = refused(entry(desired.MigEnabled("p"), "1"), bad)
    assert Verdict.INVALID is verdict_of(answer)
    assert code is answer.problems[0].code
    assert words in answer.problems[0].remedy


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (entry(layout(("3g.40gb", 2), ("1g.10gb", 1)), "0"), Code.DOES_NOT_FIT),
        (entry(layout(("3g.40gb", 1), start=1), "0"), Code.DOES_NOT_FIT),
        (entry(desired.MigEnabled("p"), "2"), Code.NOT_MIG_CAPABLE),
        (entry(layout(("1g.10gb", 1)), "2"), Code.NOT_MIG_CAPABLE),
        (entry(desired.MigEnabled("p"), model="*B200*"), Code.NOT_MIG_CAPABLE),
    ],
)
def test_unsatisfiable(bad: desired.PlanEntry, code: Code) -> None:
    answer = refused(bad)
    assert Verdict.UNSATISFIABLE is verdict_of(answer)
    assert code is answer.problems[0].code


def test_all_faults_at_once() -> None:
    answer = refused(
        entry(layout(("9g.1gb", 1), ("8g.1gb", 1)), "0"), entry(desired.MigEnabled("p"), "9")
    )
    assert len(answer.problems) == 3


def test_silent_gpu_is_left_to_the_planner() -> None:
    """A GPU that does not answer is not reason to refuse what the document says of others."""
    lost = replace(NODE.gpus[0], access=Access.LOST, mig=None, profiles=())
    answer = resolve(
        desired.PlanDocument((entry(layout(("1g.10gb", 1)), "0"),), "d"), ObservedNode((lost,))
    )
    assert {"GPU-a"} == set(answer.gpus)


def test_profiles_unknown_while_mode_is_off() -> None:
    """Old drivers tell profiles only with MIG on; that is said, not guessed around."""
    off = MigMode(current=False, pending=False)
    mute = replace(NODE.gpus[0], profiles=(), mig=off)
    answer = refused(entry(layout(("1g.10gb", 1)), "0"), node=ObservedNode((mute,)))
    assert "mig: enabled" in answer.problems[0].remedy


def test_profile_without_known_places() -> None:
    """A profile without placements cannot be planned, and the refusal names it."""
    gpu = NODE.gpus[0]
    profiles = tuple(replace(p, placements=()) if p.name == "1g.10gb" else p for p in gpu.profiles)
    wanted = entry(layout(("1g.10gb", 1)), "0")
    one = refused(wanted, node=ObservedNode((replace(gpu, profiles=profiles),)))
    assert "where a 1g.10gb can lie" in one.problems[0].message
    none = tuple(replace(p, placements=()) for p in gpu.profiles)
    every = refused(wanted, node=ObservedNode((replace(gpu, profiles=none),)))
    assert "their placements" in every.problems[0].message


def test_more_than_the_card_has_of_a_profile() -> None:
    """Where a card gives only so many, room is not the reason."""
    found = refused(entry(layout(("1g.10gb+me", 2)), "0"))
    assert found.problems[0].remedy == "the card can have at most 1 1g.10gb+me"
    full = refused(entry(layout(("1g.10gb", 7), ("1g.10gb+me", 1)), "0"))
    assert "can have at most" not in full.problems[0].remedy


@pytest.mark.parametrize(
    ("mig", "respelled"),
    [
        (layout(("3g.39gb", 1), ("1g.10gb", 1)), {"3g.39gb": "3g.40gb"}),
        (desired.MigDisabled("p"), {}),
        (None, {}),
    ],
)
def test_names_that_the_card_writes_otherwise(
    mig: desired.MigEntry | None, respelled: dict[str, str]
) -> None:
    (gpu,) = plan(resolved(entry(mig, "0")), NODE).gpus
    assert gpu.respelled == respelled
    assert GpuPlan.refused(NODE.gpus[0], Verdict.BLOCKED).respelled == {}, "it has no goal"


def test_gpus_that_cannot_tell_their_uuid() -> None:
    """Two GPUs that never answered are distinguished, and one that is not named is left out."""
    mute = (Gpu(index=i, uuid="", access=Access.UNKNOWN, access_reason="hang") for i in range(3))
    first, last = (entry(desired.MigEnabled("p"), number) for number in "02")
    node = ObservedNode(tuple(mute))
    document = desired.PlanDocument((first, replace(last, path="gpus[1]")), "d")
    reported = plan(resolve(document, node), node)
    found = [(g.before.index, g.problems[0].path) for g in reported.gpus]
    assert found == [(0, "gpus[0]"), (2, "gpus[1]")]
