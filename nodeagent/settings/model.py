"""Every setting: its name, default, unit and meaning."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.settings.values import (
    Address,
    Command,
    Duration,
    FilePath,
    ListenAddress,
    Text,
    Texts,
    WholeNumber,
)


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApiSettings(_Group):
    """The agent's local HTTP API."""

    listen: ListenAddress = Field(
        Address("127.0.0.1", 9470),
        description="Where the read-only API listens: HOST:PORT; without a host, on all addresses.",
    )


class RunSettings(_Group):
    """What lives as long as the agent runs."""

    dir: FilePath = Field(
        Path("/run/nodeagent"), description="Directory for what a reboot may take away: sockets."
    )


class StateSettings(_Group):
    """What must survive a restart."""

    dir: FilePath = Field(
        Path("/var/lib/nodeagent"), description="Directory for what must survive a restart."
    )


class PlanSettings(_Group):
    """Where the plan comes from."""

    source: Literal["auto", "file", "annotation", "nos", "mig-config"] = Field(
        "auto",
        description="Where the plan comes from: plan.file, the Node's annotations nodeagent.io/plan "
        "and plan-name, nos' annotations, or the label nvidia.com/mig.config. auto: annotation in "
        "a cluster, else file. A change of it in the settings file acts at once.",
    )
    file: FilePath = Field(
        Path("/etc/nodeagent/plan.yaml"),
        description="The plan, or an nvidia-mig-parted file; a change in it acts at once. With the "
        "sources annotation and mig-config, where names of configurations are looked up.",
    )
    name: Text | None = Field(
        None, description="The configuration to take when the file is an nvidia-mig-parted file."
    )


class ResyncSettings(_Group):
    """How often the hardware is looked at when nothing else asks for it."""

    interval: Duration = Field(
        60.0, description="Seconds between two looks at the hardware when nothing happens."
    )


class GpuSettings(_Group):
    """How GPUs are worked on."""

    parallel: WholeNumber = Field(
        8, description="How many GPUs are changed at once; the steps of one GPU stay in order."
    )


class DriverSettings(_Group):
    """How long the driver may take."""

    observe_deadline: Duration = Field(
        10.0, description="Seconds one GPU may take to be read; after that its state is unknown."
    )
    step_deadline: Duration = Field(
        60.0, description="Seconds one change of a GPU may take; after that its state is unknown."
    )


class MpsSettings(_Group):
    """How MPS daemons are run and watched."""

    user: Text = Field(
        "1000",
        description="Whom MPS runs as where the plan does not say: uid, uid:gid or a name. Root "
        "and any only count when the plan itself says so.",
    )
    control: Command = Field(
        ("nvidia-cuda-mps-control",), description="The control program, found in mps.path."
    )
    path: Text = Field(
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        description="The PATH of daemons, in which they find nvidia-cuda-mps-server.",
    )
    library_path: Text | None = Field(
        None, description="Where libcuda is, if not where the loader looks: LD_LIBRARY_PATH."
    )
    launch: Literal["auto", "child", "systemd", "hostSystemd"] = Field(
        "auto",
        description="What daemons are: children of the agent, transient services of the systemd "
        "beside it, or of the host's systemd when the agent is in a pod. auto: systemd where it "
        "runs, else child.",
    )
    shm: Literal["auto", "host", "device"] = Field(
        "auto",
        description="What daemons and clients have as /dev/shm: the host's, or each device a "
        "directory of its own, for containers only. auto: device in a pod, else host.",
    )
    compute_mode: Literal["exclusive", "leave"] = Field(
        "exclusive",
        description="Whether a device with MPS gets compute mode EXCLUSIVE_PROCESS, in which a "
        "program that misses the daemon fails loudly, or its mode is left alone.",
    )
    start_deadline: Duration = Field(
        15.0, description="Seconds from a daemon's start to its first answer."
    )
    limit_deadline: Duration = Field(
        10.0, description="Seconds from the first answer to limits that were read back."
    )
    initialize_deadline: Duration = Field(
        60.0, description="Seconds that a server may be INITIALIZING."
    )
    quit_deadline: Duration = Field(
        10.0, description="Seconds from asking a daemon to end to its end; then it is killed."
    )
    kill_deadline: Duration = Field(
        5.0, description="Seconds after which a kill is repeated and reported."
    )
    answer_deadline: Duration = Field(
        5.0, description="Seconds for a daemon to answer; unanswered so often in a row it hangs."
    )
    most_silences: WholeNumber = Field(
        2, description="So many questions unanswered in a row, and the daemon is replaced."
    )
    check_interval: Duration = Field(
        15.0, description="Seconds between two questions to a daemon when nothing happens."
    )
    first_delay: Duration = Field(
        1.0, description="Seconds before a daemon that ended is started again; doubled each time."
    )
    longest_delay: Duration = Field(
        300.0, description="Seconds that are waited at most before another start."
    )
    steady: Duration = Field(
        60.0, description="Seconds; a daemon that ran shorter has failed quickly."
    )
    most_failures: WholeNumber = Field(
        5, description="So many quick failures in a row, and it is Failed until a request."
    )
    most_attempts: WholeNumber = Field(
        3, description="So many attempts at setting the limits of a daemon that was never Ready."
    )
    terminate_deadline: Duration = Field(
        30.0, description="Seconds for a daemon to end a client, whose work goes on until then."
    )
    grace: Duration = Field(
        5.0, description="Seconds between the steps of ending a client or an orphaned server."
    )
    log_size: WholeNumber = Field(
        10, description="MiB that a daemon's log may have; then all but its end is cut off."
    )


class CdiSettings(_Group):
    """The Container Device Interface, by which containers get MPS shares."""

    dir: FilePath = Field(
        Path("/var/run/cdi"), description="Directory for the CDI specification of MPS shares."
    )


class KubernetesSettings(_Group):
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
        "Operator's labels nvidia.com/gpu.deploy.* are paused meanwhile, or the device plugin's pod "
        "is deleted afterwards, or nothing.",
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
        description="NAMESPACE/NAME of the ConfigMap with nos' configurations of the device plugin, "
        "from which the shares of MPS nodes are read.",
    )
    layout_labels: bool = Field(
        False, description="Whether the facts for schedulers are written as labels, too."
    )


class KubeletSettings(_Group):
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


class LogSettings(_Group):
    """What is logged, to standard error."""

    format: Literal["auto", "json", "console"] = Field(
        "auto", description="json, console (for people), or auto: console on a terminal, else json."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severe messages that are logged."
    )


class Settings(_Group):
    """Everything that can be set."""

    node_name: Text = Field(
        default_factory=lambda: platform.node().lower(),
        description="The node's name. Default: the variable NODE_NAME, else the host name.",
    )
    api: ApiSettings = ApiSettings()
    run: RunSettings = RunSettings()
    state: StateSettings = StateSettings()
    plan: PlanSettings = PlanSettings()
    resync: ResyncSettings = ResyncSettings()
    drift: Literal["mend", "report"] = Field(
        "mend", description="When someone else changes the layout: mend it, or only report it."
    )
    reset: Literal["never", "whenIdle"] = Field(
        "never",
        description="Whether a GPU proven idle may be reset where its MIG mode needs that.",
    )
    nvidia_smi: Command = Field(
        ("nvidia-smi",),
        description="The command that resets GPUs and sets time slices; split into words as a "
        "shell does, run without.",
    )
    gpu: GpuSettings = GpuSettings()
    driver: DriverSettings = DriverSettings()
    mps: MpsSettings = MpsSettings()
    cdi: CdiSettings = CdiSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    kubelet: KubeletSettings = KubeletSettings()
    log: LogSettings = LogSettings()
