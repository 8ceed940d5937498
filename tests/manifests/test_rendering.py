"""Every overlay renders, and what comes out is what Kubernetes knows and recommends."""

import functools
import json
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from nodeagent import __version__
from tests.doc_blocks import PAGES, blocks_of
from tests.draws import long_run
from tests.manifests.rendering import (
    MANIFESTS,
    OVERLAYS,
    Document,
    one,
    overlay,
    pod_of,
    render,
    why_not,
    with_components,
    written,
)

# The newest that the schemas know, and in the long run the first with the policies.
VERSIONS = ("1.37", "1.30") if long_run() else ("1.37",)
OF_CLAIMS = ("1.37",)
TOGETHER = (  # components that an overlay may have at once
    (
        "dra",
        "dra-nvidia-names",
        "dra-nvidia-driver",
        "driver-from-host",
        "evictions",
        "monitoring",
        "mps-in-pod",
        "plugin-pod-deletion",
        "source-file",
    ),
    ("driver-from-operator", "source-mig-config"),
)
OF_PAGES = {  # overlays of one's own, as the pages write them
    page.name: block.body
    for page in PAGES
    for block in blocks_of(page.read_text(encoding="utf-8"))
    if block.lines[0].startswith("# my-overlay/kustomization.yaml")
}
rendered = pytest.mark.skipif(bool(why_not()), reason=why_not())


def _valid(documents: Iterable[Document]) -> None:
    for document in documents:
        _valid_text(json.dumps(document))


@functools.cache  # most documents are in every overlay
def _valid_text(text: str) -> None:
    document = json.loads(text)
    for version in VERSIONS:
        # What is for claims is there where claims are.
        if document["apiVersion"] != "resource.k8s.io/v1" or version in OF_CLAIMS:
            kubernetes_validate.validate(document, version, strict=True)


@rendered
@pytest.mark.parametrize("name", OVERLAYS)
def test_the_overlay_renders(name: str) -> None:
    documents = overlay(name)
    _valid(documents)
    names = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents]
    assert len(set(names)) == len(names)


@rendered
@pytest.mark.parametrize("components", TOGETHER, ids=lambda names: names[0])
def test_the_components_fit_an_overlay(components: tuple[str, ...], tmp_path: Path) -> None:
    documents = with_components(tmp_path, "gpu-operator", components)
    _valid(documents)
    pod = one(documents, "DaemonSet")["spec"]["template"]["spec"]
    for container in chain(pod["containers"], pod.get("initContainers", ())):
        assert container["image"] == f"nodeagent:{__version__}"
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }


@rendered
@pytest.mark.parametrize("page", OF_PAGES)
def test_an_overlay_that_a_page_writes(page: str, tmp_path: Path) -> None:
    """It renders and is valid, and its own files take the place of the repository's."""
    kustomization = textwrap.dedent(OF_PAGES[page]).replace(
        "../manifests", os.path.relpath(MANIFESTS, tmp_path)
    )
    (tmp_path / "kustomization.yaml").write_text(kustomization, encoding="utf-8")
    (tmp_path / "settings.yaml").write_text("mine", encoding="utf-8")
    plan = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "nodeagent-plan", "namespace": "nodeagent"},
        "data": {"config.yaml": "mine"},
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    documents = render(tmp_path)
    _valid(documents)
    assert pod_of(documents)[1]["image"] == f"registry.example/nodeagent:{__version__}"
    if "settings.yaml" in kustomization:
        assert one(documents, "ConfigMap")["data"] == {"settings.yaml": "mine"}
    if "plan.yaml" in kustomization:
        assert one(documents, "ConfigMap", "nodeagent-plan")["data"] == plan["data"]


def test_all_are_tested() -> None:
    assert set(OVERLAYS) == {path.name for path in (MANIFESTS / "overlays").iterdir()}
    assert set(chain(*TOGETHER)) == {path.name for path in (MANIFESTS / "components").iterdir()}


@rendered
def test_the_simulated_agent_has_no_power() -> None:
    documents = overlay("simulated")
    pod, container = pod_of(documents)
    assert not {"hostPID", "hostNetwork", "hostIPC", "runtimeClassName", "nodeSelector"} & set(pod)
    assert all("hostPath" not in volume for volume in pod["volumes"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"]
    labels = one(documents, "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@rendered
@pytest.mark.parametrize("name", OVERLAYS)
def test_policies_and_rights_speak_of_the_account_that_the_pods_have(name: str) -> None:
    """The user in every policy is the DaemonSet's, every policy is bound, every right is given to
    that account: a namespace changed in one place would switch the policies off.
    """
    documents = overlay(name)
    daemon_set = one(documents, "DaemonSet")
    namespace = daemon_set["metadata"]["namespace"]
    account = daemon_set["spec"]["template"]["spec"]["serviceAccountName"]
    one(documents, "ServiceAccount", account)
    policies = [d for d in documents if d["kind"] == "ValidatingAdmissionPolicy"]
    for policy in policies:
        if policy["metadata"]["name"] != "nodeagent-configurations":  # which is for all users
            (condition,) = policy["spec"]["matchConditions"]
            user = f"system:serviceaccount:{namespace}:{account}"
            assert condition["expression"] == f"request.userInfo.username == '{user}'"
            assert policy["spec"]["failurePolicy"] == "Fail"
        binding = one(documents, "ValidatingAdmissionPolicyBinding", policy["metadata"]["name"])
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        assert binding["spec"]["validationActions"] == ["Deny"]
    for binding in (d for d in documents if d["kind"].endswith("RoleBinding")):
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        ]
        one(documents, binding["roleRef"]["kind"], binding["roleRef"]["name"])


@rendered
@pytest.mark.parametrize("name", OVERLAYS)
def test_a_right_comes_after_its_policy(name: str, tmp_path: Path) -> None:
    """Who may change Nodes or claims, tell Events, delete or evict pods is held to a policy that is
    applied before, also where components are added.
    """
    components = TOGETHER[0] if name == "gpu-operator" else ()
    rights_follow_policies(with_components(tmp_path, name, components))


def rights_follow_policies(documents: Sequence[Document]) -> None:
    """Fail where, in this order, a right comes before the policy that limits it."""
    operations = {"patch": "UPDATE", "update": "UPDATE", "create": "CREATE", "delete": "DELETE"}
    held: set[tuple[str, str]] = set()
    for document in documents:
        if document["kind"] == "ValidatingAdmissionPolicyBinding":
            policy = one(documents, "ValidatingAdmissionPolicy", document["spec"]["policyName"])
            assert documents.index(policy) < documents.index(document)
            for rule in policy["spec"]["matchConstraints"]["resourceRules"]:
                held |= set(product(rule["resources"], rule["operations"]))
        elif document["kind"] in {"Role", "ClusterRole"}:
            assert {
                (resource, operations[verb])
                for rule in document["rules"]
                for resource in rule["resources"]
                for verb in set(rule["verbs"]) - {"get", "list", "watch", "associated-node:patch"}
            } <= held
    assert held


# --- labels -------------------------------------------------------------------------------------

PREFIX = "app.kubernetes.io/"
ALL = {"name", "instance", "version", "component", "part-of", "managed-by"}
KUSTOMIZATIONS = sorted(
    str(path.relative_to(MANIFESTS)) for path in MANIFESTS.glob("**/kustomization.yaml")
)


def _recommended(labels: dict[str, str]) -> dict[str, str]:
    """Those labels by their short names."""
    return {
        key.removeprefix(PREFIX): value for key, value in labels.items() if key.startswith(PREFIX)
    }


def _labelled(kustomization: str) -> Iterator[tuple[str, dict[str, str]]]:
    """What a kustomization makes, with its labels: resources in files, pods, and ConfigMaps."""
    (document,) = written(kustomization)
    folder = Path(kustomization).parent
    for name in document.get("resources", ()):
        if name.endswith(".yaml"):
            for resource in written(str(folder / name)):
                yield from _of_resource(resource)
    for generator in document.get("configMapGenerator", ()):
        yield generator["name"], generator["options"]["labels"]


def _of_resource(resource: Document) -> Iterator[tuple[str, dict[str, str]]]:
    metadata = resource["metadata"]
    if resource["kind"] != "DeviceClass":  # of which there are too many: see below
        yield metadata["name"], metadata["labels"]
    if resource["kind"] == "DaemonSet":
        yield "its pods", resource["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_every_object_has_the_recommended_labels(kustomization: str) -> None:
    for name, labels in _labelled(kustomization):
        found = _recommended(labels)
        assert set(found) == ALL, name
        assert found.pop("component"), name
        assert found == {
            "name": "nodeagent",
            "instance": "nodeagent",
            "version": __version__,
            "part-of": "nodeagent",
            "managed-by": "kustomize",
        }, name


def test_device_classes_can_be_chosen_by_label() -> None:
    """`kubectl get deviceclasses -l app.kubernetes.io/name=nodeagent` lists ours and no others."""
    ours = (written(f"components/{name}/classes.yaml") for name in ("dra", "dra-nvidia-names"))
    for document in chain.from_iterable(ours):
        assert document["metadata"]["labels"] == {f"{PREFIX}name": "nodeagent"}


@rendered
@pytest.mark.parametrize("name", ["gpu-operator", "simulated"])
def test_labels_come_through_and_selectors_stay(name: str) -> None:
    """What kubectl renders has them, and the DaemonSet chooses its pods by the name alone: a
    selector cannot be changed afterwards, and the version changes.
    """
    documents = overlay(name)
    for document in documents:
        assert set(_recommended(document["metadata"]["labels"])) == ALL
    selector = one(documents, "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert selector == {f"{PREFIX}name": "nodeagent"}
