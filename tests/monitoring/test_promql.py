import pytest

from tests.monitoring.promql import Matcher, Selector, asked
from tests.monitoring.scraped import unknown


def test_an_expression_is_taken_apart() -> None:
    found = asked(
        'sum by (a, le) (rate(m_total{b=~"x|y", c!="\\"z"}[5m])) / on (a) n > bool 1e3'
        " unless absent(o offset 5m)"
    )
    assert found.selectors == (
        Selector("m_total", (Matcher("b", "=~", "x|y"), Matcher("c", "!=", '"z'))),
        Selector("n"),
        Selector("o"),
    )
    assert found.groupings == (("by", ("a", "le")), ("on", ("a",)))
    assert found.labels == {"a", "b", "c", "le"}


@pytest.mark.parametrize("expression", ["rats(m[5m])", "sum(m", "m{a~b}", "m # n", "m{a>'b'}"])
def test_what_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        asked(expression)


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ('nodeagent_phase{phase="Blocked"}', set()),
        ("nodeagent_fase", {"nodeagent_fase"}),
        ('nodeagent_phase{fase="Blocked"}', {"nodeagent_phase.fase"}),
        ("sum by (pod) (nodeagent_phase)", {"pod"}),
        ('DCGM_FI_DEV_FB_USED{GPU_I_ID="7", pod!=""}', set()),
        ('DCGM_FI_DEV_POWER_USAGE{GPU_I_ID="7"}', {"DCGM_FI_DEV_POWER_USAGE.GPU_I_ID"}),
        ("DCGM_FI_DEV_FAN_SPEED", {"DCGM_FI_DEV_FAN_SPEED"}),  # not in the default set
    ],
)
def test_a_wrong_name_is_found(expression: str, wrong: set[str]) -> None:
    assert unknown(asked(expression)) == wrong
