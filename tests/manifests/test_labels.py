"""Every object of the manifests carries Kubernetes' recommended labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent import __version__
from tests.manifests.rendering import MANIFESTS, Document, one, overlay, why_not, written

PREFIX = "app.kubernetes.io/"
ALL = {"name", "instance", "version", "component", "part-of", "managed-by"}
KUSTOMIZATIONS = sorted(
    str(path.relative_to(MANIFESTS)) for path in MANIFESTS.glob("**/kustomization.yaml")
)
rendered = pytest.mark.skipif(bool(why_not()), reason=why_not())


def _recommended(labels: dict[str, str]) -> dict[str, str]:
    """Those labels by their short names."""
    return {
        key.removeprefix(PREFIX): value for key, value in labels.items() if key.startswith(PREFIX)
    }


def _labelled(kustomization: str) -> Iterator[tuple[str, dict[str, str]]]:
    """What a kustomization makes, with its labels: resources that are files, pods in them, and
    ConfigMaps.
    """
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
    """All six, with this version's number."""
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
    for document in written("components/dra/classes.yaml"):
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
