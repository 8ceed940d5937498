from nodeagent.structs import replace
from nodeagent.terminal.advice_page import advice_page
from nodeagent.terminal.page import plain_text
from nodeagent.use.advice import Advice, advise, most_first
from nodeagent.use.records import Grant, Holder, Spread, Use
from nodeagent.views.shapes import as_json
from tests.plan.cards import card

GIB = 1 << 30
H100, T4 = card("h100-80gb"), card("t4")


def shown(*advice: Advice, namespace: str = "", workload: str = "") -> str:
    return plain_text(advice_page([as_json(one) for one in advice], namespace, workload))


def test_each_holder_has_a_row_and_a_change_its_reason() -> None:
    """Of a named one each advice has it; cards are named where there are several."""
    web = Use(
        Holder("workload", "web", "team-a", "x"),
        Grant("3g.40gb", H100.name, 40 * GIB),
        held=200_000.0,
        memory=Spread(3 * GIB, 5 * GIB, 7 * GIB, 200_000.0),
        sm=Spread(5.0, 12.0, 30.0, 200_000.0),
    )
    gpu = Grant("gpu", T4.name, T4.memory)
    whole = replace(web, holder=Holder("user", "100"), grant=gpu, sm=None)
    late = replace(whole, holder=Holder("unit", "x.service"), held=1800.0, memory=None)
    late = replace(late, grant=replace(gpu, memory=40 * GIB))
    job = Holder("workload", "y", "b")
    peak = Spread(GIB, 9 * GIB, 9.7 * GIB, 200_000.0)
    small = replace(web.grant, device="1g.10gb", memory=9984 << 20)
    full = replace(web, holder=job, grant=small, memory=peak, at_limit=9.0)
    everyone = (web, whole, late, full)
    assert (
        shown(*most_first(advise(use, [H100, T4]) for use in everyone))
        == """\
WORKLOAD          CARD                   HAS         PEAK        OF  ACTIVE    HELD  FREES  ADVICE
100 (user)        Tesla T4               gpu        7 GiB    15 GiB       -  55.6 h   40 %  smaller: share of 9 GiB
team-a/web (x)    NVIDIA H100 80GB HBM3  3g.40gb    7 GiB    40 GiB    12 %  55.6 h   38 %  smaller: 1g.10gb
x.service (unit)  Tesla T4               gpu            -    40 GiB       -   0.5 h      -  not enough seen yet
b/y               NVIDIA H100 80GB HBM3  1g.10gb  9.7 GiB  9.75 GiB    12 %  55.6 h      -  larger: 1g.20gb

100 (user), gpu: its memory's peak is 7 GiB; its activity was not measured: this is by memory alone.
team-a/web (x), 3g.40gb: its memory's peak is 7 GiB; its multiprocessors' activity at p95 is 12 %.
b/y, 1g.10gb: its memory's peak is 9.7 GiB of 9.75 GiB.
"""  # noqa: E501 - as a terminal has it
    )
    assert (
        shown(advise(late, [T4]), workload="x.service")
        == """\
WORKLOAD          HAS  PEAK      OF  ACTIVE   HELD  FREES  ADVICE
x.service (unit)  gpu     -  40 GiB       -  0.5 h      -  not enough seen yet

x.service (unit), gpu: its memory was not measured.
"""
    )
    assert "\n\n" not in shown(advise(late, [T4]))


def test_nobody_was_seen() -> None:
    seen = "was seen yet; nodeagent status shows who uses what now\n"
    assert shown() == f"No holder {seen}"
    assert shown(namespace="ml", workload="web") == f"No holder web in namespace ml {seen}"
