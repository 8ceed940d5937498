"""Deploy labels: what is paused, what is put back, and that the labels are all the memory."""

from __future__ import annotations

from nodeagent.cluster.drain.changes import CLIENTS, PAUSED, leaving_pods, pausing, restoring

PREFIX = "nvidia.com/gpu.deploy."
PLUGIN = f"{PREFIX}device-plugin"
UPGRADE = "paused-for-driver-upgrade"


def patched(labels: dict[str, str], patch: dict[str, str | None]) -> dict[str, str]:
    """The labels after a merge patch."""
    return {key: value for key, value in (labels | patch).items() if value is not None}


def test_the_labels_are_those_of_mig_manager() -> None:
    """These six and no others, and its very value."""
    names = {label.removeprefix(PREFIX) for label in CLIENTS}
    assert names == {
        "device-plugin",
        "gpu-feature-discovery",
        "dcgm-exporter",
        "dcgm",
        "nvsm",
        "client",
    }
    assert PAUSED == "paused-for-mig-change"


def test_each_value() -> None:
    """Only what is true is paused, and only what we pause is put back."""
    cases: list[tuple[str | None, dict[str, str], dict[str, str]]] = [
        ("true", {PLUGIN: PAUSED}, {}),
        ("false", {}, {}),
        (PAUSED, {}, {PLUGIN: "true"}),
        (UPGRADE, {}, {}),
        ("", {}, {}),
        (None, {}, {}),
    ]
    for value, paused, restored in cases:
        labels = {} if value is None else {PLUGIN: value}
        assert pausing(labels) == paused
        assert restoring(labels) == restored


def test_pause_and_restore_leave_the_node_as_it_was() -> None:
    """What was false, absent or another's is so afterwards too, over any crash in between."""
    labels = {
        PLUGIN: "true",
        f"{PREFIX}dcgm": "false",
        f"{PREFIX}dcgm-exporter": UPGRADE,
        f"{PREFIX}client": "true",
        "nvidia.com/gpu.deploy.driver": "true",
    }
    during = patched(labels, pausing(labels))
    assert during[PLUGIN] == during[f"{PREFIX}client"] == PAUSED
    assert during["nvidia.com/gpu.deploy.driver"] == "true"
    assert patched(during, pausing(during)) == during
    assert patched(during, restoring(during)) == labels


def test_a_client_forbidden_meanwhile_stays_forbidden() -> None:
    """A label set to false while it was paused stays false."""
    during = {PLUGIN: "false", f"{PREFIX}dcgm": PAUSED}
    assert restoring(during) == {f"{PREFIX}dcgm": "true"}


def test_whose_end_is_awaited() -> None:
    """The pods behind the paused labels, MPS' daemon with the plugin, and anybody's clients."""
    labels = {PLUGIN: PAUSED, f"{PREFIX}dcgm": "false", f"{PREFIX}client": "true"}
    assert [str(pods) for pods in leaving_pods(labels)] == [
        "app=nvidia-device-plugin-daemonset",
        "app=nvidia-device-plugin-mps-control-daemon",
        f"pods that select {PREFIX}client",
    ]
