"""Others that split the node's GPUs, by what they leave on it; and what only looks like them."""

from __future__ import annotations

import json

from nodeagent.cluster.drain.owners import (
    HAMI_REGISTER,
    MIG_MANAGER_LABEL,
    NOS_LABEL,
    Owner,
    claims,
    owned_by_others,
)
from nodeagent.cluster.drain.steps import NodeFacts, PodFact


def pod(phase: str = "Running", gates: str = "", selects: str = "", **labels: str) -> PodFact:
    """A pod with these labels, dots and slashes written as double and triple underscores."""
    spelled = {k.replace("___", "/").replace("__", "."): v for k, v in labels.items()}
    return PodFact(
        "ns",
        "one-x7",
        {key.replace("_", "-"): value for key, value in spelled.items()},
        phase=phase,
        selects=frozenset({selects} - {""}),
        environment={"FEATURE_GATES": gates},
    )


MIG_MANAGER = pod(app="nvidia-mig-manager")
MIG_AGENT = pod(app__kubernetes__io___name="mig-agent", selects=NOS_LABEL)
DRA = {"nvidia_dra_driver_gpu_component": "kubelet-plugin"}
NEW_DRA = {"dra_driver_nvidia_gpu_component": "kubelet-plugin"}
HAMI = pod(app__kubernetes__io___component="hami-device-plugin")
HAMI_MIG = json.dumps([{"id": "GPU-0", "mode": "hami-core"}, {"id": "GPU-1", "mode": "mig"}])


def test_each_is_recognised_and_named() -> None:
    """One of them is one refusal, which says by what it was seen and how it is switched off."""
    cases: list[tuple[NodeFacts, Owner]] = [
        (NodeFacts(pods=(MIG_MANAGER,)), Owner.MIG_MANAGER),
        (NodeFacts(labels={MIG_MANAGER_LABEL: "true"}), Owner.MIG_MANAGER),
        (NodeFacts(pods=(MIG_AGENT,)), Owner.NOS),
        (NodeFacts(labels={NOS_LABEL: "mig"}), Owner.NOS),
        (NodeFacts(pods=(pod(gates="MPSSupport=false,DynamicMIG=true,", **DRA),)), Owner.DRA),
        (NodeFacts(pods=(pod(gates="DynamicMIG=True", **NEW_DRA),)), Owner.DRA),
        (NodeFacts(annotations={HAMI_REGISTER: HAMI_MIG}, pods=(HAMI,)), Owner.HAMI),
        (NodeFacts(annotations={HAMI_REGISTER: HAMI_MIG}), Owner.HAMI),
        (
            NodeFacts(annotations={HAMI_REGISTER: "GPU-0,7,40960,100,A100,0,true,0,mig:"}),
            Owner.HAMI,
        ),
        (NodeFacts(pods=(pod(name="instaslice-daemonset"),)), Owner.INSTASLICE),
        (NodeFacts(pods=(pod(app="das-daemonset"),)), Owner.INSTASLICE),
        (NodeFacts(allocatable={"mig.das.com/1g.5gb": "7"}), Owner.INSTASLICE),
    ]
    for node, owner in cases:
        [claim] = claims(node)
        assert claim.owner is owner
        [problem] = owned_by_others(node)
        assert claim.evidence in problem.message
        assert problem.remedy
        assert owned_by_others(node, tolerated={owner}) == ()


def test_what_only_looks_like_one() -> None:
    """What has ended, what does not split, and what known pods belie stops nobody."""
    cases: list[NodeFacts] = [
        NodeFacts(),
        NodeFacts(pods=()),
        NodeFacts(annotations={HAMI_REGISTER: "[" * 100_000}),
        NodeFacts(labels={MIG_MANAGER_LABEL: "true", NOS_LABEL: "mig"}, pods=()),
        NodeFacts(labels={MIG_MANAGER_LABEL: "false", NOS_LABEL: "mps"}),
        NodeFacts(pods=(pod(phase="Succeeded", app="nvidia-mig-manager"),)),
        NodeFacts(pods=(pod(app__kubernetes__io___name="mig-agent"),)),
        NodeFacts(pods=(pod(app__kubernetes__io___name="gpu-agent", selects=NOS_LABEL),)),
        NodeFacts(pods=(pod(**DRA),)),
        NodeFacts(pods=(pod(gates="DynamicMIG=false", **DRA),)),
        NodeFacts(pods=(pod(gates="NotDynamicMIG=true", **DRA),)),
        NodeFacts(pods=(pod(gates="DynamicMIG=true", app="another"),)),
        NodeFacts(annotations={HAMI_REGISTER: HAMI_MIG}, pods=()),
        NodeFacts(annotations={HAMI_REGISTER: '[{"mode": "hami-core"}]'}, pods=(HAMI,)),
        NodeFacts(annotations={HAMI_REGISTER: "{}"}, pods=(HAMI,)),
        NodeFacts(annotations={HAMI_REGISTER: "GPU-0,7,40960,100,A100-mig,0,true:"}),
        NodeFacts(allocatable={"mig.das.com/1g.5gb": "0", "nvidia.com/mig-1g.5gb": "7"}),
    ]
    for node in cases:
        assert owned_by_others(node) == ()


def test_the_label_of_our_own_protocol_is_no_evidence() -> None:
    """A node that serves nos has its label; its mig-agent's pod still counts."""
    node = NodeFacts(labels={NOS_LABEL: "mig"})
    assert claims(node, source="nos") == ()
    assert claims(NodeFacts(labels=node.labels, pods=(MIG_AGENT,)), source="nos")


def test_several_are_all_named() -> None:
    """Who switches one off is told of the next at once."""
    node = NodeFacts(pods=(MIG_AGENT, MIG_MANAGER))
    assert {claim.owner for claim in claims(node)} == {Owner.MIG_MANAGER, Owner.NOS}
    assert len(owned_by_others(node, tolerated={Owner.NOS})) == 1
