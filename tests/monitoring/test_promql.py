import pytest

from tests.monitoring.promql import asked
from tests.monitoring.scraped import unknown


def test_an_expression_is_taken_apart() -> None:
    found = asked(
        'sum by (a, le) (rate(m_total{b=~"x|y", c!="z"}[5m])) / on (a) group_left (f) n > bool 1e3'
        " unless absent(o offset 5m)"
    )
    assert [s.metric for s in found.selectors] == ["m_total", "n", "o"]
    assert found.by == ("a", "le")
    assert found.labels == {"a", "b", "c", "f", "le"}
    series = {"bx": True, "by": True, "bz": False}
    for text, there in series.items():
        assert found.selectors[0].finds([("m_total", {text[0]: text[1]})]) is there
    assert not found.selectors[0].finds([("m_total", {"b": "x", "c": "z"})])


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
