import json
from pathlib import Path

import pytest

from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError
from nodeagent.plan import desired
from nodeagent.plan.problems import Code, Problem

CASES = json.loads((Path(__file__).parents[1] / "data/mig_parted/files.json").read_text())

# Cases that mig-parted accepts and that are refused here, each with the reason.
REFUSED_ON_PURPOSE = {
    "Empty": "an entry that says nothing is a slip; mig-parted's test reads it on its own",
    "Well formed with filter": "its filter MODEL is no PCI id, and mig-parted would match nothing",
    "duplicate yaml keys (accepted silently)": "one of the two would be lost silently",
    "devices [-1]": "no GPU has an index below 0, and mig-parted would do nothing",
    "profile '0g.0gb'": "no card can have such a profile, and mig-parted would clear the GPU",
}


def file_of(entry: str) -> str:
    return "version: v1\nmig-configs:\n  a:\n  - " + (entry.replace("\n", " ") or "null")


def documents() -> list[tuple[str, str, str | None, bool]]:
    """All whole documents among the cases: name, text, selected configuration, accepted or not."""
    return [
        *(
            (c["name"], c["yaml"], None, not c["expect_error"])
            for c in CASES["spec_document_parse"]["cases"]
        ),
        *(
            (c["name"], file_of(c["yaml"]), None, not c["expect_error"])
            for c in CASES["spec_entry_parse"]["cases"]
        ),
        *(
            (c["name"], c["yaml"], c["selected"], c["exit_code"] == 0)
            for c in CASES["cli_validation"]["cases"]
        ),
    ]


def is_accepted(text: str, selected: str | None) -> bool:
    try:
        return read_document(text, configuration=selected).digest.startswith("sha256:")
    except DocumentError:
        return False


def test_upstream_cases() -> None:
    ours = {name: is_accepted(text, selected) for name, text, selected, _ in documents()}
    upstream = {name: accepted for name, _, _, accepted in documents()}
    assert len(ours) == len(documents()) > 50
    assert {name for name in ours if ours[name] != upstream[name]} == set(REFUSED_ON_PURPOSE)
    assert not any(ours[name] for name in REFUSED_ON_PURPOSE)


def entries(entry: str) -> tuple[desired.PlanEntry, ...]:
    return read_document(file_of(entry)).entries


def faults(text: str, configuration: str | None = None) -> tuple[Problem, ...]:
    with pytest.raises(DocumentError) as caught:
        read_document(text, configuration=configuration)
    return caught.value.problems


def test_meaning() -> None:
    """Filters, devices and counts, with the places of everything that can be wrong later."""
    text = """\
version: v1
mig-configs:
  all-1g.10gb:
    - device-filter: ["0x20B010DE", "0x233010DE:0x134F10DE"]
      devices: [0, 2]
      mig-enabled: true
      mig-devices: {"1g.10gb": 4, "3g.40gb": 1}
    - device-filter: "0x20B710DE"
      devices: all
      mig-enabled: false
"""
    path = 'mig-configs["all-1g.10gb"]'
    assert read_document(text, configuration="all-1g.10gb").entries == (
        desired.PlanEntry(
            path=f"{path}[0]",
            devices=(
                desired.DeviceSelector("0", f"{path}[0].devices[0]", 0),
                desired.DeviceSelector("2", f"{path}[0].devices[1]", 2),
            ),
            devices_path=f"{path}[0].devices",
            pci_filters=(desired.PciFilter(0x20B010DE), desired.PciFilter(0x233010DE, 0x134F10DE)),
            mig=desired.MigLayout(
                (
                    desired.InstanceEntry("1g.10gb", 4, f'{path}[0].mig-devices["1g.10gb"]'),
                    desired.InstanceEntry("3g.40gb", 1, f'{path}[0].mig-devices["3g.40gb"]'),
                ),
                f"{path}[0].mig-devices",
            ),
        ),
        desired.PlanEntry(
            path=f"{path}[1]",
            devices=None,
            devices_path=f"{path}[1].devices",
            pci_filters=(desired.PciFilter(0x20B710DE),),
            mig=desired.MigDisabled(f"{path}[1].mig-enabled"),
        ),
    )


@pytest.mark.parametrize("nothing", ["null", '""', "[]"])
def test_no_filter(nothing: str) -> None:
    """An empty filter, in any of mig-parted's ways, matches every GPU."""
    [entry] = entries(f"{{device-filter: {nothing}, devices: all, mig-enabled: false}}")
    assert entry.pci_filters == ()


def test_devices() -> None:
    """No index selects nothing (and not all); one that is there twice selects its GPU once."""
    assert entries("{devices: [], mig-enabled: false}")[0].devices == ()
    [entry] = entries("{devices: [1, 0, 1], mig-enabled: false}")
    assert [device.device for device in entry.devices or ()] == [1, 0]


def test_counts() -> None:
    [entry] = entries('{devices: all, mig-enabled: true, mig-devices: {"1g.5gb": 2, "2g.10gb": 0}}')
    assert isinstance(entry.mig, desired.MigLayout)
    assert [(i.profile, i.count) for i in entry.mig.instances] == [("1g.5gb", 2)]
    assert entries("{devices: all, mig-enabled: true, mig-devices: {}}")[
        0
    ].mig == desired.MigLayout((), "mig-configs.a[0].mig-devices")


@pytest.mark.parametrize(
    ("entry", "path", "words"),
    [
        ('{devices: all, mig-enabled: "yes"}', "mig-enabled", "true or false, without quotes"),
        ("{devices: all, mig-enabled: null}", "mig-enabled", "found nothing"),
        ("{devices: null, mig-enabled: false}", "devices", "found nothing"),
        ('{devices: "7", mig-enabled: false}', "devices", 'found "7"'),
        ('{devices: ["GPU-1"], mig-enabled: false}', "devices[0]", "index of a GPU"),
        ("{devices: all, mig-enabled: true, mig-devices: null}", "", "mig-devices is missing"),
        (
            "{devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}}",
            "mig-devices",
            "mig-enabled is false",
        ),
        (
            "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}}",
            'mig-devices["1g.5gb"]',
            "found -1",
        ),
        (
            "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1000000000}}",
            'mig-devices["1g.5gb"]',
            "from 0 to 16",
        ),
        (
            '{device-filter: ["0x10DE20B0"], devices: all, mig-enabled: false}',
            "device-filter[0]",
            "did you mean 0x20B010DE",
        ),
        ("{device: all, mig-enabled: false}", "device", "unknown key"),
        ("{Devices: all, devices: all, mig-enabled: false}", "Devices", "unknown key"),
    ],
)
def test_refused(entry: str, path: str, words: str) -> None:
    problem = faults(file_of(entry))[0]
    assert problem.path == "mig-configs.a[0]" + (f".{path}" if path else "")
    assert words in problem.message


def test_the_whole_file_counts() -> None:
    text = """\
version: v1
mig-configs:
  good: [{devices: all, mig-enabled: false}]
  bad: [{devices: all}]
  worse: []
"""
    assert [p.path for p in faults(text, "good")] == ["mig-configs.bad[0]", "mig-configs.worse"]


def test_selection() -> None:
    text = """\
version: v1
mig-configs:
  off: [{devices: all, mig-enabled: false}]
  all-1g.10gb: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]
""".replace("off:", '"off":')
    assert isinstance(read_document(text, configuration="off").entries[0].mig, desired.MigDisabled)
    [problem] = faults(text)
    assert problem.code is Code.UNKNOWN_CONFIGURATION
    assert problem.remedy == "name one of off, all-1g.10gb"
    [problem] = faults(text, "all-1g.10bg")
    assert problem.remedy == "did you mean all-1g.10gb?"
    [problem] = faults(text, "")
    assert problem.remedy == "it has off, all-1g.10gb"


def test_bare_off_as_a_name() -> None:
    """A name that YAML reads as a boolean must be quoted, and the error says so."""
    [problem] = faults("version: v1\nmig-configs: {off: [{devices: all, mig-enabled: false}]}")
    assert problem.remedy == 'write it in quotes: "off"'
