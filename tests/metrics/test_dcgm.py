import math
from collections.abc import Callable

import pytest

from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.dcgm import families
from nodeagent.metrics.exposition import Family, block, decimals, render, whole
from nodeagent.metrics.samples import (
    GpuIdentity,
    Labels,
    NvLink,
    SampleSet,
    Slice,
    Subject,
    WholeGpu,
)
from nodeagent.metrics.selection import read_selection
from tests.metrics.node import (
    DATA,
    DRIVER,
    DRIVER_VERSION,
    GOLDEN,
    golden,
    gpu,
    pod,
    sample,
    slices,
)

HOST = (("Hostname", "gpu-node-0"),)
POWER, ENGINE, USED, CLOCK, XID = 155, 1001, 252, 100, 230


def _text(readings: SampleSet, counters: str, *, host: Labels = HOST, **style: bool) -> str:
    found = families(readings, read_selection(counters), host, **style)
    return render(found).decode()


def _series(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_a_line_is_the_one_that_dcgm_exporter_printed() -> None:
    card = GpuIdentity(
        0,
        "GPU-58e8f5ea-13cc-013a-d88f-2bcf5ae8bc77",
        "00000000:1A:00.0",
        0,
        "NVIDIA H100 80GB HBM3",
    )
    name = "text-embedding-predictor-00008-deployment-57946f6c67-vdtjl"
    subject = Subject(
        Slice(card, "1g.10gb", 7), pod(name, "kserve-container", "model-playground-stg")
    )
    readings = SampleSet(
        {ENGINE: ((subject, 0.0),)}, {DRIVER_VERSION: "535.129.03"}, {}, {card.uuid: (subject,)}
    )
    counters = (
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE,gauge,Ratio of time the graphics engine is active.\n"
        "DCGM_FI_DRIVER_VERSION,label,Driver Version\n"
    )
    printed = (DATA / "dcgm_exporter.prom").read_text(encoding="utf-8")
    assert _text(readings, counters, host=(("Hostname", "gsrh100-074"),)) == printed


@pytest.mark.parametrize("name", GOLDEN)
def test_the_default_set_of_a_node(name: str) -> None:
    assert golden(name) == (DATA / f"{name}.prom").read_bytes()


@pytest.mark.parametrize("name", [*GOLDEN, "simulated_a100", "simulated_h100_mig", "simulated_t4"])
def test_the_parser_reads_the_same_values(name: str) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    text = (DATA / f"{name}.prom").read_text(encoding="utf-8")
    lines = [line for line in _series(text) if line.startswith("DCGM_")]
    found = {
        (s.name.removesuffix("_total"), tuple(s.labels.items())): s.value
        for family in parser.text_string_to_metric_families(text)
        for s in family.samples
        if s.name.startswith("DCGM_")
    }
    assert len(found) == len(lines) > 10
    for line in lines:
        written, value = line.rsplit(" ", 1)
        metric, labels = written.rstrip("}").split("{", 1)
        parts = [part.split('="') for part in labels.rstrip('"').split('",')]
        key = (metric.removesuffix("_total"), tuple((k, v) for k, v in parts))
        assert found[key] == float(value)


def test_every_field_there_is_can_be_printed() -> None:
    rows = catalogue().fields
    counters = "".join(f"{row.name},{row.type},x\n" for row in rows)
    text = _text(sample(rows, [gpu(0), gpu(1)], links=2), counters)
    written = [line.rsplit(" ", 1)[0] for line in _series(text)]
    assert len({line.partition("{")[0] for line in written}) == 455
    assert len(set(written)) == len(written)


def test_a_value_of_the_whole_gpu_is_repeated_where_asked() -> None:
    """As dcgm-exporter does: each instance has the GPU's power, with its own pod."""
    parts = slices(gpu(0), 2)
    readings = SampleSet(
        {POWER: ((Subject(WholeGpu(gpu(0))), 300.5), (Subject(WholeGpu(gpu(1))), 70.0))},
        slices={gpu(0).uuid: parts},
    )
    lines = _series(_text(readings, "DCGM_FI_DEV_POWER_USAGE,gauge,p", repeat_whole=True))
    assert ['GPU_I_ID="7"' in lines[0], 'GPU_I_ID="8"' in lines[1]] == [True, True]
    assert 'pod="job-0-1"' in lines[1]
    assert "GPU_I_ID" not in lines[2]
    assert len(lines) == 3


def test_what_hit_the_gpu_and_what_hit_an_instance_are_both_exported() -> None:
    part = slices(gpu(0), 1)[0]
    whole = Subject(WholeGpu(gpu(0)), (("err_code", "79"), ("err_msg", "off the bus")))
    readings = SampleSet({XID: ((whole, 79), (part, 31))}, slices={gpu(0).uuid: (part,)})
    lines = _series(_text(readings, "DCGM_FI_DEV_XID_ERRORS,gauge,x"))
    assert len(lines) == 2
    assert lines[0].endswith('err_code="79",err_msg="off the bus"} 79')


def test_a_gpu_without_an_event_adds_nothing_to_its_instances() -> None:
    part = slices(gpu(0), 1)[0]
    hit = Subject(part.entity, (("err_code", "31"),))
    none = Subject(WholeGpu(gpu(0)), (("err_code", "0"),))
    readings = SampleSet({XID: ((none, 0), (hit, 31))}, slices={gpu(0).uuid: (part,)})
    counters = "DCGM_FI_DEV_XID_ERRORS,gauge,x"
    assert len(_series(_text(readings, counters))) == 2
    (line,) = _series(_text(readings, counters, repeat_whole=True))
    assert line.endswith('err_code="31"} 31')


def test_a_field_under_both_of_its_names_is_one_family_where_they_are_renamed() -> None:
    """A second one of the same name would make the whole text invalid."""
    counters = "DCGM_FI_DEV_POWER_USAGE, gauge, a\nDCGM_FI_DEV_BOARD_POWER_WATTS, gauge, b\n"
    readings = SampleSet({POWER: ((Subject(WholeGpu(gpu(0))), 300.0),)})
    assert len(_series(_text(readings, counters))) == 2
    text = _text(readings, counters, renamed=True)
    assert (len(_series(text)), text.count("# TYPE")) == (1, 1)


def test_links_come_last_and_have_their_own_labels() -> None:
    link = Subject(NvLink(gpu(0), 3))
    readings = SampleSet({165: (), 1508: ((link, 1),), 1523: ((Subject(WholeGpu(gpu(0))), 0),)})
    counters = "DCGM_FI_DEV_NVLINK_GET_STATE,gauge,s\nDCGM_FI_DEV_GET_GPU_RECOVERY_ACTION,gauge,r\n"
    first, last = _series(_text(readings, counters))
    assert first.startswith("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION")
    assert last.startswith(
        f'DCGM_FI_DEV_NVLINK_GET_STATE{{nvlink="3",gpu="0",gpu_uuid="{gpu(0).uuid}",pci_bus_id='
    )
    assert 'model_name="NVIDIA H100 80GB HBM3"' in last


def test_labels_of_each_gpu_are_its_own() -> None:
    wholes = [Subject(WholeGpu(gpu(n))) for n in range(2)]
    readings = SampleSet(
        {CLOCK: ((wholes[0], 1), (wholes[1], 2)), 66: ((wholes[1], 1),)},
        {DRIVER_VERSION: DRIVER},
        {gpu(0).uuid: {53: "0123"}},
    )
    first, second = _series(
        _text(
            readings,
            "DCGM_FI_DEV_SM_CLOCK,gauge,c\nDCGM_FI_DEV_SERIAL,label,s\n"
            "DCGM_FI_DRIVER_VERSION,label,d\nDCGM_FI_DEV_PERSISTENCE_MODE,label,p\n",
        )
    )
    assert first.endswith(f',DCGM_FI_DEV_SERIAL="0123",DCGM_FI_DRIVER_VERSION="{DRIVER}"}} 1')
    assert second.endswith(
        f',DCGM_FI_DEV_PERSISTENCE_MODE="1",DCGM_FI_DRIVER_VERSION="{DRIVER}"}} 2'
    )


def test_numbers_are_written_as_dcgm_does() -> None:
    def written(value: float, form: Callable[[float], str]) -> str:
        return render([Family("n", "gauge", "", {"": value}, form)]).split()[-1].decode()

    assert written(1980.0, whole) == "1980"
    assert written(37.6, whole) == "38"
    assert written(2**63, whole) == "9223372036854775808"
    assert written(68, decimals) == "68.000000"
    assert written(0, decimals) == "0.000000"
    assert written(5e-12, decimals) == "5.000000e-12"
    assert written(0.1 + 0.2, repr) == "0.30000000000000004"


def test_what_is_no_number_is_left_out() -> None:
    series = {'{a="1"}': math.nan, '{a="2"}': 3.0, '{a="3"}': math.inf}
    assert render([Family("n", "gauge", "x", series)]).decode().splitlines()[2:] == ['n{a="2"} 3.0']
    assert render([Family("n", "gauge", "x", {"": math.nan})]) == b""
    assert render([Family("n", "gauge", "x", {})]) == b""


def test_texts_are_escaped() -> None:
    assert block([("a", 'x"y\\z\n')]) == '{a="x\\"y\\\\z\\n"}'
    assert block([]) == ""
    text = render([Family("n", "gauge", "one\ntwo\\", {"": 1})]).decode()
    assert text.startswith("# HELP n one\\ntwo\\\\\n# TYPE n gauge\n")


@pytest.mark.parametrize("value", ['x"y', "x\\y", "x\ny", "x{y}", "x,y=", "ä ☃", ""])
def test_label_values_are_read_back(value: str) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    text = render([Family("n", "gauge", "h", {block([("a", value)]): 1})]).decode()
    (family,) = parser.text_string_to_metric_families(text)
    assert [s.labels for s in family.samples] == [{"a": value}]


def test_a_broken_text_costs_nothing_else() -> None:
    """Half of a surrogate pair cannot be encoded; it becomes a question mark."""
    series = {block([("pod", "a\udcff")]): 1.0, "": 2.0}
    assert b'a{pod="a?"} 1.0\na 2.0\n' in render([Family("a", "gauge", "x", series)])
