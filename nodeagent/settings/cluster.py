"""The settings of the cluster: Kubernetes, the kubelet, and claims of pods."""

# Without postponed annotations, as in `model`.
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from nodeagent.settings.values import Duration, FilePath, Group, SharedGpu, Text, Texts

if TYPE_CHECKING:
    from nodeagent.plan.problems import Problem


class KubernetesSettings(Group):
    """The cluster that the node belongs to."""

    use: Annotated[
        Literal["auto", "never"],
        "auto: there is a cluster where a kubeconfig is named, and in a pod with a "
        "service account. never: the agent uses no cluster.",
    ] = "auto"
    kubeconfig: Annotated[
        FilePath | None, "The kubeconfig to use; without one, the pod's service account."
    ] = None
    context: Annotated[
        Text | None, "The context of the kubeconfig; without one, its current one."
    ] = None
    tolerate: Annotated[
        Texts,
        "Other programs that split GPUs and that the agent ignores: mig-manager, nos, dra, hami, "
        "instaslice.",
    ] = ()
    clients: Annotated[
        Literal["pauseLabels", "deletePods", "nothing"],
        "How the GPU's other clients are prepared for a change of devices: the GPU "
        "Operator's labels nvidia.com/gpu.deploy.* are paused meanwhile, or the device plugin's "
        "pod is deleted afterwards, or nothing.",
    ] = "nothing"
    plugin_pods: Annotated[
        Texts,
        "Labels of the pods that deletePods deletes on this node; several labels of "
        "one pod with commas between.",
    ] = ("app=nvidia-device-plugin-daemonset", "app.kubernetes.io/name=nvidia-device-plugin")
    cordon: Annotated[bool, "Whether the node is cordoned while its devices change."] = False
    taints: Annotated[
        bool,
        "Whether the node has the taint nodeagent.io/gpu-unhealthy while a GPU is unhealthy, and "
        "nodeagent.io/gpu-changing while its devices change.",
    ] = False
    pods_deadline: Annotated[
        Duration, "Seconds to wait for paused pods to go; then the change is put off."
    ] = 120.0
    allocatable_deadline: Annotated[
        Duration,
        "Seconds after a change for the node to offer the new devices; then the "
        "difference is reported.",
    ] = 120.0
    layout_labels: Annotated[
        bool, "Whether the facts for schedulers are written as labels, too."
    ] = False


class KubeletSettings(Group):
    """The kubelet of this node, which knows what is allocated to pods."""

    use: Annotated[
        Literal["auto", "always", "never"],
        "Whether the kubelet is asked who holds devices. While it does not answer, "
        "everything counts as in use. auto: where the agent is in a cluster, or the folder of the "
        "socket exists; never with --simulate.",
    ] = "auto"
    socket: Annotated[
        FilePath, "The kubelet's socket for pod resources; in a pod its folder is mounted."
    ] = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    dir: Annotated[
        FilePath,
        "The kubelet's root directory, in which it looks for plugins; in a pod it has to be "
        "mounted at the same path.",
    ] = Path("/var/lib/kubelet")
    deadline: Annotated[Duration, "Seconds for the kubelet to answer."] = 5.0


class DraSettings(Group):
    """Claims of pods by Kubernetes' Dynamic Resource Allocation."""

    mode: Annotated[
        Literal["off", "static", "dynamic"],
        "Whether claims are served, by a DRA driver. static: whole GPUs and the "
        "plan's MIG devices are offered, nothing is made; needs Kubernetes 1.34. dynamic: MIG "
        "devices are made when a claim is prepared, too, and taken down when it is released; needs "
        "Kubernetes 1.36.",
    ] = "off"
    share: Annotated[
        SharedGpu,
        "Whether claims may have parts of GPUs outside MIG mode; a plan's entry may say otherwise. "
        "memory: so much memory, and of the threads, as each requests, which MPS holds it to; a "
        "number: one of so many equal parts; time: by turns, and nothing holds a claim to its "
        "memory. Needs mode dynamic.",
    ] = "off"
    share_mig: Annotated[
        SharedGpu, "The same for MIG devices; time: by turns of the driver's length."
    ] = "off"
    driver: Annotated[
        Literal["gpu.nodeagent.io", "gpu.nvidia.com"],
        "The DRA driver's name. gpu.nvidia.com: that of NVIDIA's own, so that all that names it is "
        "for this one; only where NVIDIA's does not serve the node.",
    ] = "gpu.nodeagent.io"
    nvidia_configs: Annotated[
        bool,
        "Whether GpuConfig and MigDeviceConfig of NVIDIA's DRA driver count in claims and classes, "
        "also those for the driver gpu.nvidia.com.",
    ] = False
    mps_user: Annotated[
        Literal["default", "root", "any"],
        "Whom MPS of claims serves where no class says. default: mps.user. root: containers that "
        "run as root. any: every user, without protection of one from the other; needs MPS of "
        "driver 555 or later. For root and any MPS itself runs as root.",
    ] = "default"

    @property
    def is_shared(self) -> bool:
        return {self.share, self.share_mig} != {"off"}

    def without_effect(self, *, in_cluster: bool) -> "tuple[Problem, ...]":
        """What is set here and offers nothing, because of what else is set or is not there."""
        from nodeagent.plan.problems import Code, Problem
        from nodeagent.text import listed

        if self.mode != "off" and not in_cluster:
            return (Problem.of(Code.NO_EFFECT, "noCluster", mode=self.mode),)
        for_dynamic = {
            "dra.share": self.share != "off",
            "dra.share_mig": self.share_mig != "off",
            "dra.mps_user": self.mps_user != "default",
        }
        unused = [one for one, is_set in for_dynamic.items() if is_set and self.mode != "dynamic"]
        unused += ["dra.nvidia_configs"] if self.nvidia_configs and self.mode == "off" else []
        if unused:
            return (Problem.of(Code.NO_EFFECT, "mode", settings=listed(unused), mode=self.mode),)
        return ()
