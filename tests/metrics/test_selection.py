import pytest

from nodeagent.errors import NodeagentError
from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.selection import MAX_LINES, NoCounters, default_selection, read_selection

OWN_FILE = """\
# Format
# DCGM FIELD, Prometheus metric type, help message

DCGM_FI_DEV_GPU_TEMP,    gauge, GPU temperature (in C).
DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).
DCGM_FI_DEV_PCIE_TX_THROUGHPUT,  counter, Bytes sent (in KB) via NVML.
DCGM_FI_DEV_SM_CLOCK,  gauge,
DCGM_FI_DRIVER_VERSION,  label, Driver Version
DCGM_FI_DEV_BRAND, label, Device Brand
# DCGM_EXP_XID_ERRORS_COUNT, gauge, Count of XID Errors within the time window.
"""


def test_a_file_of_dcgm_exporter_is_usable_unchanged() -> None:
    selection = read_selection(OWN_FILE)
    assert selection.findings == ()
    assert [(m.name, m.type, m.help) for m in selection.metrics] == [
        ("DCGM_FI_DEV_SM_CLOCK", "gauge", ""),
        ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."),
        ("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "counter", "Bytes sent (in KB) via NVML."),
        ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %)."),
    ]
    assert [label.name for label in selection.labels] == [
        "DCGM_FI_DEV_BRAND",
        "DCGM_FI_DRIVER_VERSION",
    ]


def test_names_are_written_as_the_file_has_them() -> None:
    selection = read_selection(
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS,gauge,a\ndcgm_gpu_temp,gauge,b\nDCGM_FI_DEV_GPU_TEMP,gauge,c"
    )
    assert [m.name for m in selection.metrics] == [
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS",
        "dcgm_gpu_temp",
        "DCGM_FI_DEV_GPU_TEMP",
    ]
    assert len(selection.fields) == 1


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("DCGM_FI_DEV_GPU_TMEP,gauge,x", "did you mean DCGM_FI_DEV_GPU_TEMP"),
        ("NOTHING,gauge,x", "no field 'NOTHING'"),
        ("DCGM_FI_DEV_CPU_TEMP_CURRENT,gauge,x", "is not available from NVML"),
        ("DCGM_FI_DEV_SM_CLOCK,gague,x", "one of gauge, counter, histogram, summary, label"),
        ("DCGM_FI_DEV_SM_CLOCK,gauge", "2 values where field, type and help are needed"),
        ("DCGM_FI_DEV_SM_CLOCK,gauge,a, b", "put a help with commas into quotation marks"),
        ('DCGM_FI_DEV_SM_CLOCK,gauge,"a" b', "it is no line of CSV"),
        ("DCGM_FI_DEV_SERIAL,gauge,x", "its type can only be label"),
        ("DCGM_EXP_P2P_STATUS,gauge,x", "no field 'DCGM_EXP_P2P_STATUS'"),
        ("DCGM_FI_DEV_GPU_TEMP,gauge,again", "DCGM_FI_DEV_GPU_TEMP is selected twice"),
    ],
)
def test_a_bad_line_is_named_and_the_rest_goes_on(line: str, reported: str) -> None:
    selection = read_selection(f"DCGM_FI_DEV_GPU_TEMP,gauge,x\n\n{line}\n")
    (finding,) = selection.findings
    assert finding.line == 3
    assert reported in str(finding)
    assert [m.name for m in selection.metrics] == ["DCGM_FI_DEV_GPU_TEMP"]


def test_a_name_of_earlier_versions_stays_as_the_file_has_it() -> None:
    (wanted,) = read_selection("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS,gauge,x").metrics
    assert (wanted.name, wanted.field.name) == (
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    )


def test_a_file_that_selects_nothing_is_refused() -> None:
    with pytest.raises(NoCounters, match=r"line 2: there is no field 'A'.*and 1 more") as refused:
        read_selection("# all wrong\nA,gauge,x\nB,gauge,x\nC,gauge,x\nD,gauge,x\n")
    assert "commas" in refused.value.remedy
    with pytest.raises(NoCounters, match="it has only comments"):
        read_selection("# nothing\n")


def test_suggestions_are_for_the_first_unknown_names_alone() -> None:
    """Each costs a comparison with every field; a text of nothing else would take a minute."""
    lines = [f"DCGM_FI_DEV_GPU_TEMPS_{n % 10},gauge,x" for n in range(MAX_LINES - 1)]
    findings = read_selection("\n".join(["DCGM_FI_DEV_GPU_TEMP,gauge,x", *lines])).findings
    assert len(findings) == MAX_LINES - 1
    assert sum(bool(finding.remedy) for finding in findings) == 10


def test_too_many_lines_are_refused_with_their_number() -> None:
    with pytest.raises(NodeagentError, match="has 5,001 lines; at most 5,000") as refused:
        read_selection("\n" * MAX_LINES)
    assert "dcgm-exporter" in refused.value.remedy


def test_a_value_without_end_is_shown_shortened() -> None:
    text = f"{'X' * 1_000_000},gauge,x\nDCGM_FI_DEV_GPU_TEMP,gauge,x\n"
    (finding,) = read_selection(text).findings
    assert len(str(finding)) < 200


def test_a_histogram_of_one_value_is_what_the_field_is() -> None:
    """dcgm-exporter takes these types; a text with them would be refused by Prometheus."""
    (metric,) = read_selection("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION,histogram,x").metrics
    assert metric.type == "counter"


def test_the_shipped_file_is_the_default_set_and_what_slices_need() -> None:
    selection = default_selection()
    assert selection.findings == ()
    default = {row.id for row in catalogue().fields if row.in_default}
    assert len(default) == 25
    assert {m.field.id for m in selection.metrics} == default | {1002, 1003}
    assert all(m.type == m.field.type for m in selection.metrics)
    assert [label.name for label in selection.labels] == ["DCGM_FI_DRIVER_VERSION"]
    assert all(m.help for m in selection.metrics)


def test_every_field_of_the_catalogue_can_be_selected() -> None:
    lines = [f"{row.name},{row.type},{row.unit}" for row in catalogue().fields]
    selection = read_selection("\n".join(lines))
    assert selection.findings == ()
    assert selection.fields == catalogue().fields


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        ("{}a, with blanks ,", None),
        ("{}a", ["a"]),
        ("\n\n# no, record\r\n{}a\r\n", ["a"]),
        ('{}"a, with ""comma"""', ['a, with "comma"']),
        ('{} "a, b"', ["a, b"]),
        ('{}a "b" c', ['a "b" c']),
        ("{}", [""]),
        ("\ufeff{}a", ["a"]),
        ('{}"a"b', None),
        ('{}"never closed\n{}a', ["a"]),
    ],
)
def test_lines_of_csv(text: str, helps: list[str] | None) -> None:
    """Quotation marks go, comments and empty lines are nothing; a fault ends with its line."""
    text = text.replace("{}", "DCGM_FI_DEV_GPU_TEMP,gauge,")
    selection = read_selection(f"{text}\nDCGM_FI_DEV_SM_CLOCK,gauge,other")
    assert [m.help for m in selection.metrics] == ["other", *(helps or [])]
    assert [finding.line for finding in selection.findings] == (
        [1] if helps is None or "never" in text else []
    )
