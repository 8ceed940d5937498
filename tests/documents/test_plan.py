import json
from typing import Any

import pytest

from nodeagent.documents.reading import read_document
from nodeagent.documents.terms import MAX_INSTANCES, canonical_device, read_pci_filter
from nodeagent.errors import DocumentError
from nodeagent.plan import desired
from nodeagent.plan.problems import Code, Problem
from tests.documents.test_schema import VALIDATOR


def entry(**keys: object) -> desired.PlanEntry:
    [only] = read_document(json.dumps({"version": "v1", "gpus": [keys]})).entries
    return only


def faults(plan: str | dict[str, Any]) -> tuple[Problem, ...]:
    with pytest.raises(DocumentError) as caught:
        read_document(plan if isinstance(plan, str) else json.dumps(plan))
    return caught.value.problems


def fault_of(by_schema: bool = True, /, **keys: object) -> Problem:
    """The one problem of a plan whose only entry has these keys; its schema refuses it as well."""
    plan = {"version": "v1", "gpus": [keys]}
    [problem] = faults(plan)
    assert not (by_schema and VALIDATOR.is_valid(plan))
    return problem


def test_short_form() -> None:
    assert entry(
        devices=[0, 1], model="*H100*", mig={"3g.40gb": 1, "1g.10gb": 4}
    ) == desired.PlanEntry(
        path="gpus[0]",
        devices=(
            desired.DeviceSelector("0", "gpus[0].devices[0]", 0),
            desired.DeviceSelector("1", "gpus[0].devices[1]", 1),
        ),
        devices_path="gpus[0].devices",
        model="*H100*",
        mig=desired.MigLayout(
            (
                desired.InstanceEntry("3g.40gb", 1, 'gpus[0].mig["3g.40gb"]'),
                desired.InstanceEntry("1g.10gb", 4, 'gpus[0].mig["1g.10gb"]'),
            ),
            "gpus[0].mig",
        ),
    )


def test_long_form() -> None:
    """A list of instances, with placement; profiles stay as they are written."""
    long = [{"profile": "3g.40gb", "start": 4}, {"profile": "1c.3g.39gb", "count": 3}]
    assert entry(devices="all", mig=long).mig == desired.MigLayout(
        (
            desired.InstanceEntry("3g.40gb", 1, "gpus[0].mig[0]", start=4),
            desired.InstanceEntry("1c.3g.39gb", 3, "gpus[0].mig[1]"),
        ),
        "gpus[0].mig",
    )


@pytest.mark.parametrize(
    ("written", "meaning"),
    [
        ("disabled", desired.MigDisabled("gpus[0].mig")),
        ("enabled", desired.MigEnabled("gpus[0].mig")),
        ({}, desired.MigLayout((), "gpus[0].mig")),
        ([], desired.MigLayout((), "gpus[0].mig")),
    ],
)
def test_modes(written: object, meaning: desired.MigEntry) -> None:
    """Off, on, and on without instances are three different wishes."""
    assert entry(devices="all", mig=written).mig == meaning


def test_all_and_the_rest() -> None:
    plain = entry(devices="all", timeSlice="long")
    assert (plain.devices, plain.time_slice, plain.mig) == (None, "long", None)
    assert plain.when_in_use is desired.WhenInUse.WAIT
    assert entry(devices="all", mig={}, whenInUse="evict").when_in_use is desired.WhenInUse.EVICT
    assert plain.dra
    assert not entry(devices="all", mig={}, dra=False).dra
    assert plain.share is None
    for share in ("memory", "time", 4):
        assert entry(devices="all", share=share).share == share
    assert entry(devices="all", share=False, mig={}).share == "off"  # YAML's reading of the word


def test_device_plugin_config() -> None:
    document = read_document("version: v1\ngpus: []\ndevicePluginConfig: shared-4")
    assert document.device_plugin_config == "shared-4"
    assert document.entries == ()


@pytest.mark.parametrize("count", [0, MAX_INSTANCES + 1, "1", True, 1.5, None])
def test_counts(count: object) -> None:
    problem = fault_of(devices="all", mig={"1g.10gb": count})
    assert problem.path == 'gpus[0].mig["1g.10gb"]'
    assert "expected a whole number from 1 to 16" in problem.message
    problem = fault_of(devices="all", mig=[{"profile": "1g.10gb", "count": count}])
    assert problem.path == "gpus[0].mig[0].count"


def test_counts_add_up() -> None:
    for mig in ({"1g.10gb": 9, "1g.20gb": 8}, [{"profile": "1g.10gb"}] * 17):
        assert fault_of(False, devices="all", mig=mig).path == "gpus[0].mig"


@pytest.mark.parametrize(
    ("written", "likely"),
    [
        ("3g.40bg", "3g.40gb"),
        (" 1G.10GB", "1g.10gb"),
        ("1g.10gb.me", "1g.10gb+me"),
        ("1c3g40gb", "1c.3g.40gb"),
    ],
)
def test_misspelt_profiles(written: str, likely: str) -> None:
    for mig in ({written: 1}, [{"profile": written}]):
        problem = fault_of(devices="all", mig=mig)
        assert problem.code is Code.UNKNOWN_PROFILE
        assert problem.remedy == f"did you mean {likely}?"


@pytest.mark.parametrize("written", ["", "banana", "4c.3g.40gb", "0g.0gb", "1g.10gb+", "x" * 500])
def test_no_profiles(written: str) -> None:
    problem = fault_of(False, devices="all", mig={written: 1})
    assert problem.code is Code.UNKNOWN_PROFILE
    assert len(problem.message) < 200


@pytest.mark.parametrize(
    ("devices", "remedy"),
    [
        (0, "write [0]"),
        ("0000:1a:00.0", "write [0000:1a:00.0]"),
        ("ALL", "write all"),
        ("bogus", ""),
        ([], ""),
    ],
)
def test_devices_form(devices: object, remedy: str) -> None:
    problem = fault_of(devices=devices, mig={})
    assert (problem.path, problem.remedy) == ("gpus[0].devices", remedy)


@pytest.mark.parametrize(
    "devices",
    [
        [0, 1, 0],
        ["1a:00.0", "0000:1A:00.0"],
        ["GPU-8f6e2f4c-7d1b-4d0f-9f3a-2b6c5d4e3f2a", "gpu-8F6E2F4C-7d1b-4d0f-9f3a-2b6c5d4e3f2a"],
    ],
)
def test_same_device_twice(devices: list[object]) -> None:
    problem = fault_of(False, devices=devices, mig={})
    assert problem.code is Code.DUPLICATE_DEVICE
    assert problem.path == f"gpus[0].devices[{len(devices) - 1}]"
    assert '"0"' not in problem.message  # an index is shown as it is written


@pytest.mark.parametrize(
    ("mig", "remedy"),
    [
        (False, "write mig: disabled"),
        (True, "write mig: enabled"),
        ("disable", "did you mean disabled?"),
        ("3g.40gb", "write {3g.40gb: 1}"),
        (3, ""),
    ],
)
def test_mig_form(mig: object, remedy: str) -> None:
    problem = fault_of(devices="all", mig=mig)
    assert (problem.path, problem.remedy) == ("gpus[0].mig", remedy)


@pytest.mark.parametrize(
    ("item", "fits"),
    [
        ({"profile": "3g.40gb", "start": 0, "count": 2}, False),
        ({"profile": "1c.3g.40gb", "start": 0, "count": 3}, True),
        ({"profile": "1c.3g.40gb", "start": 0, "count": 4}, False),
        ({"profile": "3g.40gb", "start": 0}, True),
        ({"profile": "3g.40gb", "start": -1}, False),
        ({"profile": "3g.40gb", "start": True}, False),
    ],
)
def test_start(item: dict[str, object], fits: bool) -> None:
    """At one start lies one GPU instance, with all the parts that it can have."""
    if fits:
        assert entry(devices=[0], mig=[item]).mig
    else:
        problem = fault_of("count" not in item, devices=[0], mig=[item])
        assert problem.path.startswith("gpus[0].mig[0].")


@pytest.mark.parametrize(
    ("keys", "path", "words"),
    [
        ({}, "gpus[0]", "says nothing"),
        ({"mps": {"replicas": 2}, "timeSlice": "long"}, "gpus[0].timeSlice", "mps and timeSlice"),
        ({"timeSlice": "longer"}, "gpus[0].timeSlice", "default or short or medium or long"),
        ({"share": "8Gi"}, "gpus[0].share", "off, memory, time or a number of equal parts from 2"),
        ({"share": 4, "mps": {"replicas": 2}}, "gpus[0].share", "found share: 4 beside mps"),
        ({"share": 4, "timeSlice": "long"}, "gpus[0].share", "found share: 4 beside timeSlice"),
        ({"dra": False}, "gpus[0]", "says nothing"),
        ({"mig": {}, "dra": "no"}, "gpus[0].dra", "true or false"),
        ({"mig": {}, "model": ""}, "gpus[0].model", "a glob"),
        ({"mig": None}, "gpus[0].mig", "found nothing"),
    ],
)
def test_entry_as_a_whole(keys: dict[str, object], path: str, words: str) -> None:
    problem = fault_of(devices="all", **keys)
    assert problem.path == path
    assert words in problem.message


@pytest.mark.parametrize(
    ("plan", "path", "words"),
    [
        ({"gpus": []}, "", "version is missing"),
        ({"version": "v1"}, "", "gpus is missing"),
        ({"version": "v2", "gpus": []}, "version", 'found "v2", expected v1'),
        ({"version": "v1", "gpus": {}}, "gpus", "expected a list"),
        ({"version": "v1", "gpus": ["x"]}, "gpus[0]", "expected a map with the keys devices"),
    ],
)
def test_document_as_a_whole(plan: dict[str, Any], path: str, words: str) -> None:
    [problem] = faults(plan)
    assert problem.path == path
    assert words in problem.message


def test_all_faults_at_once() -> None:
    plan = """\
version: v2
gpus:
  - devices: [0, 0]
    mig: {3g.40bg: 0}
  - device: [1]
    mig: [{profile: 3g.40gb, start: x}, {count: 1}]
extra: 1
"""
    assert [(p.code, p.path) for p in faults(plan)] == [
        ("InvalidValue", "version"),
        ("DuplicateDevice", "gpus[0].devices[1]"),
        ("UnknownProfile", 'gpus[0].mig["3g.40bg"]'),
        ("InvalidValue", 'gpus[0].mig["3g.40bg"]'),
        ("UnknownKey", "gpus[1].device"),
        ("InvalidValue", "gpus[1].mig[0].start"),
        ("InvalidValue", "gpus[1].mig[1]"),
        ("UnknownKey", "extra"),
    ]
    unknown = faults(plan)[4]
    assert unknown.message == (
        'unknown key "device"; here belong devices, model, mig, mps, timeSlice, whenInUse, dra, '
        "share (line 5, column 5)"
    )
    assert unknown.remedy == "did you mean devices?"


# --- spellings of devices, and of mig-parted's filters ------------------------------------------

UUID = "GPU-8f6e2f4c-7d1b-4d0f-9f3a-2b6c5d4e3f2a"


def test_one_spelling() -> None:
    canonical: dict[object, object] = {
        0: 0,
        7: 7,
        UUID: UUID,
        UUID.upper(): UUID,
        UUID.lower(): UUID,
        "00000000:1A:00.0": "00000000:1A:00.0",
        "0000:1a:00.0": "00000000:1A:00.0",
        "1a:00.0": "00000000:1A:00.0",
        "1a:00": "00000000:1A:00.0",
        "0000:10:00.0": "00000000:10:00.0",
        "0001:1a:1f.7": "00000001:1A:1F.7",
    }
    assert {written: canonical_device(written) for written in canonical} == canonical


def test_no_device() -> None:
    cases: list[tuple[object, str]] = [
        *((-1, "from 0 to"), (10**9, "from 0 to"), (True, "an index such as 0")),
        *(([0], "an index such as 0"), ("all", "stands alone"), ("0", "without quotes: 0")),
        *(("MIG-" + UUID[4:], "names a MIG device"), (UUID[:-1], "8-4-4-4-12")),
        *(("GPU-0", "8-4-4-4-12"), ("1a:20.0", "an index such as 0")),
        *(("00000:1a:00.0", "an index such as 0"), ("", "an index such as 0")),
        (UUID + "\n", "8-4-4-4-12"),
    ]
    for written, words in cases:
        with pytest.raises(ValueError, match=words):
            canonical_device(written)


def test_filters() -> None:
    assert read_pci_filter("0x233010DE") == desired.PciFilter(0x233010DE)
    assert read_pci_filter("0X20b010de:0x134F10DE") == desired.PciFilter(0x20B010DE, 0x134F10DE)


def test_no_filter() -> None:
    """A filter that could never match is refused, not taken for one that matches nothing."""
    cases: list[tuple[str, str]] = [
        ("0x10DE2330", "did you mean 0x233010DE"),
        ("0x12341234", "NVIDIA's are 10DE"),
        ("0x2330", "8 hexadecimal digits"),
        ("MODEL", "8 hexadecimal digits"),
        ("0x233010DE:", "8 hexadecimal digits"),
        (" 0x233010DE", "8 hexadecimal digits"),
    ]
    for written, words in cases:
        with pytest.raises(ValueError, match=words):
            read_pci_filter(written)
