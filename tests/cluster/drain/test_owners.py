"""Others that split the node's GPUs, by what they leave on it; and what only looks like them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain.owners import (
    HAMI_REGISTER,
    MIG_MANAGER_LABEL,
    NOS_LABEL,
    OtherManager,
    claims,
    owned_by_others,
)
from nodeagent.cluster.drain.pods import Pod

Known = tuple[NodeView, tuple[Pod, ...] | None]


def pod(phase: str = "Running", dynamic_mig: bool = False, selects: str = "", **labels: str) -> Pod:
    """A pod with these labels, dots and slashes written as double and triple underscores."""
    spelled = {k.replace("___", "/").replace("__", "."): v for k, v in labels.items()}
    return Pod(
        "ns",
        "one-x7",
        {key.replace("_", "-"): value for key, value in spelled.items()},
        phase=phase,
        selects=frozenset({selects} - {""}),
        dynamic_mig=dynamic_mig,
    )


MIG_MANAGER = pod(app="nvidia-mig-manager")
MIG_AGENT = pod(app__kubernetes__io___name="mig-agent", selects=NOS_LABEL)
DRA: dict[str, Any] = {"nvidia_dra_driver_gpu_component": "kubelet-plugin"}
NEW_DRA: dict[str, Any] = {"dra_driver_nvidia_gpu_component": "kubelet-plugin"}
HAMI = pod(app__kubernetes__io___component="hami-device-plugin")
HAMI_MIG = json.dumps([{"id": "GPU-0", "mode": "hami-core"}, {"id": "GPU-1", "mode": "mig"}])


def here(*pods: Pod, **node: Mapping[str, str]) -> Known:
    """A node of which it is known which pods are on it."""
    return NodeView(**node), pods  # type: ignore[arg-type]  # labels, annotations, allocatable


def unlisted(**node: Mapping[str, str]) -> Known:
    """A node whose pods are not known."""
    return NodeView(**node), None  # type: ignore[arg-type]


def test_each_is_recognised_and_named() -> None:
    """One of them is one refusal, which says by what it was seen and how it is switched off."""
    cases: list[tuple[Known, OtherManager]] = [
        (here(MIG_MANAGER), OtherManager.MIG_MANAGER),
        (unlisted(labels={MIG_MANAGER_LABEL: "true"}), OtherManager.MIG_MANAGER),
        (here(MIG_AGENT), OtherManager.NOS),
        (unlisted(labels={NOS_LABEL: "mig"}), OtherManager.NOS),
        (here(pod(dynamic_mig=True, **DRA)), OtherManager.DRA),
        (here(pod(dynamic_mig=True, **NEW_DRA)), OtherManager.DRA),
        (here(HAMI, annotations={HAMI_REGISTER: HAMI_MIG}), OtherManager.HAMI),
        (unlisted(annotations={HAMI_REGISTER: HAMI_MIG}), OtherManager.HAMI),
        (
            unlisted(annotations={HAMI_REGISTER: "GPU-0,7,40960,100,A100,0,true,0,mig:"}),
            OtherManager.HAMI,
        ),
        (here(pod(name="instaslice-daemonset")), OtherManager.INSTASLICE),
        (here(pod(app="das-daemonset")), OtherManager.INSTASLICE),
        (unlisted(allocatable={"mig.das.com/1g.5gb": "7"}), OtherManager.INSTASLICE),
    ]
    for (node, pods), owner in cases:
        [(found, evidence)] = claims(node, pods).items()
        assert found is owner
        [problem] = owned_by_others(node, pods)
        assert evidence in problem.message
        assert problem.remedy
        assert owned_by_others(node, pods, tolerated={owner}) == ()


def test_what_only_looks_like_one() -> None:
    """What has ended, what does not split, and what known pods belie is no owner."""
    cases: list[Known] = [
        unlisted(),
        here(),
        unlisted(annotations={HAMI_REGISTER: "[" * 100_000}),
        here(labels={MIG_MANAGER_LABEL: "true", NOS_LABEL: "mig"}),
        unlisted(labels={MIG_MANAGER_LABEL: "false", NOS_LABEL: "mps"}),
        here(pod(phase="Succeeded", app="nvidia-mig-manager")),
        here(pod(app__kubernetes__io___name="mig-agent")),
        here(pod(app__kubernetes__io___name="gpu-agent", selects=NOS_LABEL)),
        here(pod(**DRA)),
        here(pod(**DRA)),
        here(pod(dynamic_mig=True, app="another")),
        here(annotations={HAMI_REGISTER: HAMI_MIG}),
        here(HAMI, annotations={HAMI_REGISTER: '[{"mode": "hami-core"}]'}),
        here(HAMI, annotations={HAMI_REGISTER: "{}"}),
        unlisted(annotations={HAMI_REGISTER: "GPU-0,7,40960,100,A100-mig,0,true:"}),
        unlisted(allocatable={"mig.das.com/1g.5gb": "0", "nvidia.com/mig-1g.5gb": "7"}),
    ]
    for node, pods in cases:
        assert owned_by_others(node, pods) == ()


def test_the_label_of_our_own_protocol_is_no_evidence() -> None:
    """A node that serves nos has its label; its mig-agent's pod still counts."""
    node = NodeView(labels={NOS_LABEL: "mig"})
    assert claims(node, None, source="nos") == {}
    assert claims(node, (MIG_AGENT,), source="nos")


def test_several_are_all_named() -> None:
    """A user who switches one off sees the next at once."""
    node, pods = here(MIG_AGENT, MIG_MANAGER)
    assert claims(node, pods).keys() == {OtherManager.MIG_MANAGER, OtherManager.NOS}
    assert len(owned_by_others(node, pods, tolerated={OtherManager.NOS})) == 1
