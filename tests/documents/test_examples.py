import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from nodeagent.documents.plan import plan_schema
from nodeagent.documents.reading import read_document
from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import MigLayout
from nodeagent.plan.plan import Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.simulation import simulated

EXAMPLES = Path(__file__).parents[2] / "examples"
PLANS = sorted(EXAMPLES.glob("*.yaml"))
DEFAULT = EXAMPLES / "mig-parted/config.yaml"
FILES = sorted({*(EXAMPLES / "mig-parted").glob("*.yaml")} - {DEFAULT})


def configurations(path: Path) -> list[str]:
    return list(yaml.safe_load(path.read_text())["mig-configs"])


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_plans(path: Path) -> None:
    text = path.read_bytes()
    assert read_document(text).entries
    Draft202012Validator(plan_schema()).validate(yaml.safe_load(text))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_mig_parted_files(path: Path) -> None:
    text = path.read_bytes()
    for name in configurations(path):
        assert read_document(text, configuration=name).entries


def test_default_configurations() -> None:
    names = configurations(DEFAULT)
    assert len(names) == 81
    assert {"all-disabled", "all-enabled", "all-balanced"} < set(names)
    text = DEFAULT.read_bytes()
    for name in names:
        entries = read_document(text, configuration=name).entries
        assert entries
        for entry in entries if name not in {"all-disabled", "all-enabled", "all-balanced"} else ():
            assert isinstance(entry.mig, MigLayout)
            [item] = entry.mig.instances
            assert name == "all-" + item.profile.replace("+", ".")


def test_default_configurations_are_balanced_once() -> None:
    """all-balanced names each kind of card once, so that no entry overrules another."""
    entries = read_document(DEFAULT.read_bytes(), configuration="all-balanced").entries
    ids = [f.device for entry in entries for f in entry.pci_filters]
    assert len(ids) == len(set(ids)) == 27
    assert len(entries) == 12


def test_the_contract() -> None:
    """The document by which the format was agreed is read as it stands."""
    text = """\
version: v1
gpus:
  - devices: [0, 1]                 # all | indices | UUIDs | PCI addresses
    model: "*H100*"
    mig: {3g.40gb: 1, 1g.10gb: 4}   # profile: count
  - devices: [2]
    mig:
      - {profile: 3g.40gb, start: 4, mps: {clients: {memory: 10Gi, threads: 25}}}
      - {profile: 1c.3g.40gb, count: 3}
  - devices: [3]
    mig: disabled
    mps:
      user: 1000
      shares:
        small: {count: 4, memory: 8Gi, threads: 15}
        large: {count: 1, memory: 40Gi, threads: 40}
  - devices: [4]
    mps: {replicas: 4}
  - devices: [5]
    timeSlice: long
devicePluginConfig: shared-4
"""
    assert len(read_document(text).entries) == 5
    assert read_document(json.dumps(yaml.safe_load(text))).entries == read_document(text).entries


@pytest.mark.parametrize(
    ("name", "configuration", "boards"),
    [
        ("plan.yaml", None, "h100-80gb:2"),
        ("placement.yaml", None, "h100-80gb:2"),
        ("compute-instances.yaml", None, "h100-80gb:2"),
        ("modes.yaml", None, "h100-80gb:3"),
        ("mixed-cards.yaml", None, "h100-80gb:1,a100-40gb:1,a30:1"),
        ("attributes.yaml", None, "h100-80gb:1,rtx-pro-6000:1"),
        ("mig-parted/mixed-node.yaml", "work", "a100-40gb:2,h100-80gb:2"),
        ("mig-parted/config.yaml", "all-balanced", "b200:1,a30:1"),
    ],
)
async def test_fits(name: str, configuration: str | None, boards: str) -> None:
    document = read_document((EXAMPLES / name).read_bytes(), configuration=configuration)
    with simulated(boards):
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            observed = await driver.observe()
    assert plan(resolve(document, observed), observed).verdict is Verdict.APPLICABLE
