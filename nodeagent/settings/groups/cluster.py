"""The cluster that the node belongs to, and its kubelet."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from nodeagent.settings.groups.group import Group
from nodeagent.settings.values import Duration, FilePath, Text, Texts


class KubernetesSettings(Group):
    """The cluster that the node belongs to."""

    use: Literal["auto", "never"] = Field(
        "auto",
        description="auto: there is a cluster where a kubeconfig is named, and in a pod with a "
        "service account. never: the agent stays by itself.",
    )
    kubeconfig: FilePath | None = Field(
        None, description="The kubeconfig to use; without one, the pod's service account."
    )
    context: Text | None = Field(
        None, description="The context of the kubeconfig; without one, its current one."
    )
    tolerate: Texts = Field(
        (),
        description="Other programs that split GPUs beside which the agent works all the same: "
        "mig-manager, nos, dra, hami, instaslice.",
    )
    clients: Literal["pauseLabels", "deletePods", "nothing"] = Field(
        "nothing",
        description="What the GPU's other clients are told of a change of devices: the GPU "
        "Operator's labels nvidia.com/gpu.deploy.* are paused meanwhile, or the device plugin's "
        "pod is deleted afterwards, or nothing.",
    )
    plugin_pods: Texts = Field(
        (
            "app=nvidia-device-plugin-daemonset",
            "app.kubernetes.io/name=nvidia-device-plugin",
        ),
        description="Labels of the pods that deletePods deletes on this node; several labels of "
        "one pod with commas between.",
    )
    plugin_configs: FilePath | None = Field(
        None,
        description="Folder with the device plugin's configurations, one file for each name: what "
        "the node should offer to pods is known exactly then.",
    )
    cordon: bool = Field(
        False, description="Whether the node is cordoned while its devices change."
    )
    pods_deadline: Duration = Field(
        120.0, description="Seconds to wait for paused pods to go; then the change is put off."
    )
    allocatable_deadline: Duration = Field(
        120.0,
        description="Seconds after a change for the node to offer the new devices; then the "
        "difference is reported.",
    )
    nos_config_map: Text | None = Field(
        None,
        description="NAMESPACE/NAME of the ConfigMap with nos' configurations of the device "
        "plugin, from which the shares of MPS nodes are read.",
    )
    layout_labels: bool = Field(
        False, description="Whether the facts for schedulers are written as labels, too."
    )


class KubeletSettings(Group):
    """The kubelet of this node, which knows what is allocated to pods."""

    use: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether the kubelet is asked who holds devices. While it does not answer, "
        "everything counts as in use. auto: where the agent is in a cluster, or the folder of the "
        "socket exists; never with --simulate.",
    )
    socket: FilePath = Field(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        description="The kubelet's socket for pod resources; in a pod its folder is mounted.",
    )
    deadline: Duration = Field(5.0, description="Seconds for the kubelet to answer.")
