"""The settings of the cluster: Kubernetes, the kubelet, and claims of pods."""

# Without postponed annotations, as in `model`.
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nodeagent.settings.group import Group, group, setting
from nodeagent.settings.values import Duration, FilePath, Memory, Text, Texts

if TYPE_CHECKING:
    from nodeagent.plan.problems import Problem


@group
class KubernetesSettings(Group):
    """The cluster that the node belongs to."""

    use: Literal["auto", "never"] = setting(
        "auto",
        "auto: there is a cluster where a kubeconfig is named, and in a pod with a "
        "service account. never: the agent uses no cluster.",
    )
    kubeconfig: FilePath | None = setting(
        None, "The kubeconfig to use; without one, the pod's service account."
    )
    context: Text | None = setting(
        None, "The context of the kubeconfig; without one, its current one."
    )
    tolerate: Texts = setting(
        (),
        "Other programs that split GPUs and that the agent ignores: mig-manager, nos, dra, hami, "
        "instaslice.",
    )
    clients: Literal["pauseLabels", "deletePods", "nothing"] = setting(
        "nothing",
        "How the GPU's other clients are prepared for a change of devices: the GPU "
        "Operator's labels nvidia.com/gpu.deploy.* are paused meanwhile, or the device plugin's "
        "pod is deleted afterwards, or nothing.",
    )
    plugin_pods: Texts = setting(
        (
            "app=nvidia-device-plugin-daemonset",
            "app.kubernetes.io/name=nvidia-device-plugin",
        ),
        "Labels of the pods that deletePods deletes on this node; several labels of "
        "one pod with commas between.",
    )
    plugin_configs: FilePath | None = setting(
        None,
        "Folder with the device plugin's configurations, one file for each name: what "
        "the node should offer to pods is known exactly then.",
    )
    cordon: bool = setting(False, "Whether the node is cordoned while its devices change.")
    taints: bool = setting(
        False,
        "Whether the node has the taint nodeagent.io/gpu-unhealthy while a GPU is unhealthy, and "
        "nodeagent.io/gpu-changing while its devices change.",
    )
    pods_deadline: Duration = setting(
        120.0, "Seconds to wait for paused pods to go; then the change is put off."
    )
    allocatable_deadline: Duration = setting(
        120.0,
        "Seconds after a change for the node to offer the new devices; then the "
        "difference is reported.",
    )
    nos_config_map: Text | None = setting(
        None,
        "NAMESPACE/NAME of the ConfigMap with nos' configurations of the device "
        "plugin, from which the shares of MPS nodes are read.",
    )
    layout_labels: bool = setting(
        False, "Whether the facts for schedulers are written as labels, too."
    )


@group
class KubeletSettings(Group):
    """The kubelet of this node, which knows what is allocated to pods."""

    use: Literal["auto", "always", "never"] = setting(
        "auto",
        "Whether the kubelet is asked who holds devices. While it does not answer, "
        "everything counts as in use. auto: where the agent is in a cluster, or the folder of the "
        "socket exists; never with --simulate.",
    )
    socket: FilePath = setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        "The kubelet's socket for pod resources; in a pod its folder is mounted.",
    )
    dir: FilePath = setting(
        Path("/var/lib/kubelet"),
        "The kubelet's root directory, in which it looks for plugins; in a pod it has to be "
        "mounted at the same path.",
    )
    deadline: Duration = setting(5.0, "Seconds for the kubelet to answer.")


@group
class DraSettings(Group):
    """Claims of pods by Kubernetes' Dynamic Resource Allocation."""

    mode: Literal["off", "static", "dynamic"] = setting(
        "off",
        "Whether claims are served, by the DRA driver gpu.nodeagent.io. static: whole GPUs and the "
        "plan's MIG devices are offered, nothing is made; needs Kubernetes 1.34. dynamic: MIG "
        "devices are made when a claim is prepared, too, and taken down when it is released; needs "
        "Kubernetes 1.36.",
    )
    share: Memory | None = setting(
        None,
        "Memory of one MPS share, a quantity such as 8Gi: GPUs without MIG, and those with mig: "
        "disabled in the plan, are offered in such shares, too. Without it there are none; needs "
        "mode dynamic.",
    )
    nvidia_configs: bool = setting(
        False,
        "Whether GpuConfig and MigDeviceConfig of NVIDIA's DRA driver count in claims and classes, "
        "also those for the driver gpu.nvidia.com.",
    )

    def without_effect(self, *, in_cluster: bool) -> "tuple[Problem, ...]":
        """What is set here and offers nothing, because of what else is set or is not there."""
        from nodeagent.plan.problems import Code, Problem

        if self.mode != "off" and not in_cluster:
            return (Problem.of(Code.NO_EFFECT, "noCluster", mode=self.mode),)
        if self.share is not None and self.mode != "dynamic":
            return (Problem.of(Code.NO_EFFECT, "share", mode=self.mode),)
        if self.nvidia_configs and self.mode == "off":
            return (Problem.of(Code.NO_EFFECT, "nvidiaConfigs"),)
        return ()
