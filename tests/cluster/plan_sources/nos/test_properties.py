from collections import Counter
from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cluster.plan_sources.nos import grammar
from nodeagent.cluster.plan_sources.nos.status import status_annotations
from nodeagent.documents.reading import read_document
from nodeagent.plan.desired import DesiredNode, MigLayout
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.plan.steps import after
from nodeagent.reconcile.plan_update import PlanText, UnreadablePlan
from tests.cluster.plan_sources.nos.rig import MIG, gpu, ignored, node, offer, spec, state
from tests.plan.cards import layouts, present, with_instances

BOARDS = ("a100-40gb", "a100-80gb", "h100-80gb", "a30", "rtx-pro-6000", "t4")
WORDS = st.sampled_from(
    ["1g.5gb", "1g.10gb.me", "7g.79gb", "3g.20gb", "10gb", "1gb", "99999gb", "0gb", "1g.10gb-me"]
)
INDICES = st.one_of(st.integers(0, 3).map(str), st.text(max_size=4), st.just("00"))
KEYS = st.one_of(
    st.builds("nos.nebuly.com/spec-gpu-{}-{}".format, INDICES, WORDS | st.text(max_size=12)),
    st.builds("nos.nebuly.com/status-gpu-{}-{}-free".format, INDICES, WORDS),
    st.just(grammar.SPEC_PLAN),
    st.just(grammar.STATUS_PLAN),
    st.text(max_size=30),
    st.text(max_size=9).map("nos.nebuly.com/spec-gpu".__add__),
)
VALUES = st.one_of(
    st.integers(-1, 8).map(str), st.integers().map(str), st.text(max_size=8), st.just("9" * 5000)
)
LABELS = st.fixed_dictionaries(
    {grammar.MODE_LABEL: st.sampled_from(["mig", "mps", "hybrid"]) | st.text(max_size=5)}
)
NODES = st.lists(st.sampled_from(BOARDS), max_size=3).map(
    lambda boards: node(*(gpu(index, board) for index, board in enumerate(boards)))
)


def _status(annotations: Mapping[str, str | None]) -> Iterator[tuple[grammar.StatusKey, int]]:
    for key, value in annotations.items():
        found = grammar.read_status(key)
        if found is not None and value is not None:
            yield found, int(value)


@given(st.dictionaries(KEYS, VALUES, max_size=12), LABELS, NODES)
def test_total(annotations: dict[str, str], labels: dict[str, str], observed: ObservedNode) -> None:
    """Nothing raises; what is offered is a plan that the agent reads, and every fault is
    reported with its place and what would be right, in words that fit a terminal.
    """
    offered = offer(annotations, labels, observed)
    reported = list(ignored(annotations, labels))
    match offered:
        case PlanText(text=plan_text):
            read_document(plan_text)
            again = dict(reversed(annotations.items()))
            assert offer(again, labels, observed) == offered
        case UnreadablePlan(problem=problem):
            reported.append(problem)
    for problem in reported:
        assert problem.message.isprintable()
        assert problem.path.isprintable()
    status_annotations(state(observed, offered), offered, annotations=annotations, labels=labels)


@given(st.data())
def test_asked_done_and_reported(data: st.DataObject) -> None:
    """Any layout a card can have, asked for in nos' words, is planned; once it is so, the status
    says of each profile as many as the spec, in the same words.
    """
    board = data.draw(st.sampled_from([b for b in BOARDS if b != "t4"]))
    counts = dict(data.draw(st.sampled_from(list(layouts(board)))))
    counts = {name: n for name, n in counts.items() if "-" not in name}
    annotations = spec(**{f"0-{name.replace('+', '.')}": str(n) for name, n in counts.items()})
    empty = node(gpu(0, board))
    offered = offer(annotations, MIG, empty)
    assert isinstance(offered, PlanText)
    document = read_document(offered.text)
    (entry,) = document.entries
    assert isinstance(entry.mig, MigLayout)
    assert {i.profile: i.count for i in entry.mig.instances} == counts
    desired = resolve(document, empty)
    assert isinstance(desired, DesiredNode)
    (planned,) = plan(desired, empty).gpus
    done = after(planned.before, planned.steps)
    assert present(done) == Counter(counts)
    written = status_annotations(
        state(node(done), offered), offered, annotations=annotations, labels=MIG
    )
    assert written[grammar.STATUS_PLAN] == annotations[grammar.SPEC_PLAN]
    reported = {(k.index, k.profile): v for k, v in _status(written)}
    assert reported == {
        (a.index, a.profile): a.count for a in grammar.read_spec(annotations).devices
    }


@given(st.data())
def test_status_round_trip(data: st.DataObject) -> None:
    gpus = []
    for index, board in enumerate(data.draw(st.lists(st.sampled_from(BOARDS[:4]), max_size=3))):
        ways = data.draw(st.sampled_from(list(layouts(board).values())))
        places = sorted(data.draw(st.sampled_from(ways)))
        used = data.draw(st.sets(st.integers(0, 6)))
        gpus.append(with_instances(gpu(index, board), places, used))
    there = data.draw(st.dictionaries(KEYS, VALUES, max_size=5))
    there = {key: value for key, value in there.items() if "spec-gpu" not in key}
    known = state(node(*gpus))
    offered = offer(there, MIG, known.observed)
    patch = status_annotations(known, offered, annotations=there, labels=MIG)
    after_patch = {k: v for k, v in {**there, **patch}.items() if v is not None}
    expected: Counter[tuple[int, str, bool]] = Counter(
        (one.index, device.profile.replace("+", "."), device.usage.in_use)
        for one in gpus
        for instance in one.instances
        for device in instance.compute
    )
    found = {
        (k.index, k.profile, k.use is grammar.NosDeviceUse.USED): v for k, v in _status(after_patch)
    }
    assert found == dict(expected)
    # Once written, there is nothing more to write.
    again = status_annotations(known, offered, annotations=after_patch, labels=MIG)
    assert all(after_patch.get(key) == value for key, value in again.items())
