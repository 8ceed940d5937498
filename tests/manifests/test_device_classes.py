"""Device classes choose the devices that their names say, and the examples ask for no others."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cel_expr_python import cel

from nodeagent.claims.names import DRIVER, WHOLE_GPU, mig_device_name, places
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import OfferContext, pool_offer
from nodeagent.claims.offering.resource_slices import NodeReference, resource_slices
from nodeagent.claims.serving.claim_object import Source
from nodeagent.claims.serving.configuration import read_configuration
from nodeagent.cluster.drain.allocatable import resource_of
from nodeagent.plan.desired import SharedBy
from nodeagent.settings import load_settings
from nodeagent.simulation.boards import board_names, load_board
from tests.claims.boards import NODE, mig_off
from tests.manifests.admission import compiled
from tests.manifests.rendering import MANIFESTS, Document, pod_of, why_not, with_components, written
from tests.manifests.rendering import one as one_of
from tests.plan.cards import card

EXAMPLES = sorted((MANIFESTS.parent / "examples/dra").glob("*.yaml"))
PROFILES = sorted(
    {profile.name for board in board_names() for profile in load_board(board).profiles}
)
KEY = "gpu.nvidia.com"


@cache
def classes() -> dict[str, Document]:
    return {one["metadata"]["name"]: one for one in written("components/dra/classes.yaml")}


def class_of(profile: str) -> str:
    """The class of MIG devices of that profile, whose names have it in the same spelling."""
    return f"{mig_device_name(profile, 0).removesuffix('-0')}.nodeagent.io"


def published(board: str, share: SharedBy = "off", *, driver: str = DRIVER) -> list[dict[str, Any]]:
    """The devices of such a GPU outside MIG mode, which is offered as a whole and in parts."""
    gpu = mig_off(card(board)) if load_board(board).has_mig else card(board)
    offer = pool_offer(gpu, OfferContext(NODE, GpuRules(share=share), 0))
    slices = resource_slices(offer, NodeReference(NODE, "uid", driver), 1)
    return [device for one in slices for device in one["spec"].get("devices", ())]


def as_cel(device: dict[str, Any], driver: str = DRIVER) -> Any:
    """`device` of a selector's expression: attributes by domain, without their types. Of a domain
    that a device has nothing of, the scheduler's map is empty.
    """
    attributes: dict[str, dict[str, Any]] = {driver: {}}
    for name, value in device["attributes"].items():
        domain, _, key = name.rpartition("/")
        (attributes.setdefault(domain or driver, {})[key],) = value.values()
    return {"driver": driver, "attributes": attributes}


@cache
def selector(expression: str) -> cel.Expression:
    return compiled(expression, {"device": cel.Type.DYN})


def chosen(
    device_class: str | Document, devices: list[dict[str, Any]], driver: str = DRIVER
) -> set[str]:
    """Names of the devices that the class takes by its one selector."""
    one = classes()[device_class] if isinstance(device_class, str) else device_class
    (rule,) = one["spec"]["selectors"]
    known = [(d["name"], {"device": as_cel(d, driver)}) for d in devices]
    takes = selector(rule["cel"]["expression"])
    return {name for name, data in known if takes.eval(data=data).plain_value()}


def test_every_profile_has_a_class() -> None:
    """With the name that NVIDIA's device plugin gives its devices; no two have the same."""
    resources = {
        name: one["spec"].get("extendedResourceName")
        for name, one in classes().items()
        if name.startswith("mig-")
    }
    assert resources == {class_of(profile): resource_of(profile) for profile in PROFILES}
    assert len(set(resources.values())) == len(resources)


@pytest.mark.parametrize("board", ["h100-80gb", "rtx-pro-6000"])
def test_a_class_chooses_its_devices(board: str) -> None:
    devices, known = published(board), places(card(board))
    for profile in load_board(board).profiles:
        own = {name for name, place in known.items() if place.profile.name == profile.name}
        assert chosen(class_of(profile.name), devices) == own
    assert chosen("mig.nodeagent.io", devices) == set(known)
    assert chosen("gpu.nodeagent.io", devices) == {WHOLE_GPU}
    assert chosen(class_of("1g.5gb"), devices) == set()
    assert chosen("mps.nodeagent.io", devices) == set()


def test_the_class_of_shares() -> None:
    """GPUs that MPS divides; by one that takes turns a claim would be held to nothing."""
    devices = published("l40s", "memory")
    for name in ("mps", "gpu"):
        assert chosen(f"{name}.nodeagent.io", devices) == {WHOLE_GPU}
    assert chosen("mig.nodeagent.io", devices) == set()
    for share in ("off", "time"):
        assert chosen("mps.nodeagent.io", published("l40s", share)) == set()


def test_the_names_of_nvidias_driver() -> None:
    """They choose what this driver's own do, by the same resource name; the component that has them
    lets configurations for that driver count.
    """
    named = written("components/dra-nvidia-names/classes.yaml")
    assert {one["metadata"]["name"]: one["spec"] for one in named} == {
        f"{kind}.nvidia.com": classes()[f"{kind}.nodeagent.io"]["spec"] for kind in ("gpu", "mig")
    }
    (component,) = written("components/dra-nvidia-names/kustomization.yaml")
    _, container = pod_of([yaml.safe_load(component["patches"][0]["patch"])])
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert load_settings(None, environment, {}).dra.nvidia_configs


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_name_of_nvidias_driver(tmp_path: Path) -> None:
    """With it all classes choose the same devices of the driver that is called so, the agent has
    its name, and the policies and rights let it.
    """
    found = with_components(tmp_path, "plain", ["dra", "dra-nvidia-names", "dra-nvidia-driver"])
    devices = [*published("h100-80gb", driver=KEY), *published("l40s", "memory", driver=KEY)]
    named = {d["metadata"]["name"]: d for d in found if d["kind"] == "DeviceClass"}
    assert named.keys() == classes().keys() | {"gpu.nvidia.com", "mig.nvidia.com"}
    for name, one in classes().items():
        before = [*published("h100-80gb"), *published("l40s", "memory")]
        assert chosen(named[name], devices, KEY) == chosen(one, before)
    _, container = pod_of(found)
    environment = {one["name"]: one.get("value", "") for one in container["env"]}
    assert environment["NODEAGENT_DRA_DRIVER"] == KEY
    policies = [d for d in found if d["kind"] == "ValidatingAdmissionPolicy"]
    variables = [one["spec"].get("variables", [{}])[0] for one in policies]
    drivers = [v["expression"] for v in variables if v.get("name") == "drivers"]
    assert drivers == ["['gpu.nodeagent.io', 'gpu.nvidia.com']"] * 3
    rights = one_of(found, "ClusterRole", "nodeagent-dra")["rules"]
    assert [r["resourceNames"] for r in rights if "resourceNames" in r] == [[DRIVER, KEY]]


def test_selectors_that_every_release_compiles() -> None:
    """Before 1.36 an API server refuses a class with `device.allowMultipleAllocations`."""
    named = written("components/dra-nvidia-names/classes.yaml")
    for one in (*classes().values(), *named):
        (rule,) = one["spec"]["selectors"]
        assert set(re.findall(r"device\.(\w+)", rule["cel"]["expression"])) <= {
            *("driver", "attributes"),
        }, one


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.37"])
def test_schemas(version: str) -> None:
    general = ("gpu.nodeagent.io", "mig.nodeagent.io", "mps.nodeagent.io")
    for name in (*general, class_of("1g.10gb+me")):
        kubernetes_validate.validate(classes()[name], version, strict=True)


# --- examples -------------------------------------------------------------------------------------


def documents(name: str) -> list[Document]:
    (path,) = (one for one in EXAMPLES if one.stem == name)
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def pods(found: list[Document]) -> list[dict[str, Any]]:
    """The specs of pods, also those of a Deployment's or a Job's."""
    kinds = {"Deployment", "Job", "Pod"}
    return [one["spec"].get("template", one)["spec"] for one in found if one["kind"] in kinds]


def claims(found: list[Document]) -> dict[str, dict[str, Any]]:
    """What claims ask for, by the claim's or the template's name."""
    return {
        one["metadata"]["name"]: one["spec"].get("spec", one["spec"])["devices"]
        for one in found
        if one["kind"].startswith("ResourceClaim")
    }


@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES])
def test_an_example(name: str) -> None:
    found = documents(name)
    for document, version in ((d, v) for d in found for v in ("1.36", "1.37")):
        kubernetes_validate.validate(document, version, strict=True)
    asked = claims(found)
    resources = {one["spec"].get("extendedResourceName") for one in classes().values()}
    assert pods(found)
    for pod in pods(found):
        names = {one["name"]: one for one in pod.get("resourceClaims", ())}
        for one in names.values():
            assert asked[one.get("resourceClaimName") or one["resourceClaimTemplateName"]]
        for container in pod["containers"]:
            assert {c["name"] for c in container["resources"].get("claims", ())} <= set(names)
            assert set(container["resources"].get("limits", ())) <= resources
            assert container["resources"]
    for devices in asked.values():
        for request in devices["requests"]:
            assert request["exactly"]["deviceClassName"] in classes()
        for number, one in enumerate(devices.get("config", ())):
            assert one["opaque"]["driver"] == DRIVER
            parameters = one["opaque"]["parameters"]
            path = ("config", number)
            assert read_configuration(parameters, Source.CLAIM, path, driver=DRIVER, nvidia=False)


def test_a_claim_of_two_pods() -> None:
    """The example of one has two pods with the same claim, and no claim beside."""
    found = documents("shared-claim")
    (name,) = claims(found)
    named = [one["resourceClaimName"] for pod in pods(found) for one in pod["resourceClaims"]]
    assert named == [name, name]
