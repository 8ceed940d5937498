"""Every setting: name, kind, default, unit and meaning; those of the cluster are in `cluster`."""

# Without postponed annotations: `fields` gives the kinds themselves, and no string is evaluated.
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nodeagent.settings.cluster import DraSettings, KubeletSettings, KubernetesSettings
from nodeagent.settings.group import Group, group, setting
from nodeagent.settings.values import (
    Address,
    Command,
    Duration,
    FilePath,
    ListenAddress,
    Text,
    WholeNumber,
)

if TYPE_CHECKING:  # commands that only ask the agent do without it
    from nodeagent.plan.plan import Policy


@group
class ApiSettings(Group):
    """The agent's local HTTP API."""

    listen: ListenAddress = setting(
        Address("127.0.0.1", 9470),
        "Where the read-only API listens: HOST:PORT; without a host, on all addresses.",
    )


@group
class RunSettings(Group):
    """What lives as long as the agent runs."""

    dir: FilePath = setting(
        Path("/run/nodeagent"), "Directory for files that a reboot may remove: sockets."
    )


@group
class StateSettings(Group):
    """What must survive a restart."""

    dir: FilePath = setting(
        Path("/var/lib/nodeagent"), "Directory for state that must survive a restart."
    )


@group
class LogSettings(Group):
    """What is logged, to standard error."""

    format: Literal["auto", "json", "console"] = setting(
        "auto", "json, console (for people), or auto: console on a terminal, else json."
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least severe messages that are logged."
    )


@group
class PlanSettings(Group):
    """Where the plan comes from."""

    source: Literal["auto", "file", "annotation", "nos", "mig-config"] = setting(
        "auto",
        "Where the plan comes from: plan.file, the Node's annotations "
        "nodeagent.io/plan and plan-name, nos' annotations, or the label nvidia.com/mig.config. "
        "auto: annotation in a cluster, else file. A change of it in the settings file acts at "
        "once.",
    )
    file: FilePath = setting(
        Path("/etc/nodeagent/plan.yaml"),
        "The plan, or an nvidia-mig-parted file; a change in it acts at once. With the "
        "sources annotation and mig-config, where names of configurations are looked up.",
    )
    name: Text | None = setting(
        None, "The configuration to take when the file is an nvidia-mig-parted file."
    )


@group
class ResyncSettings(Group):
    """How often the hardware is looked at when nothing else asks for it."""

    interval: Duration = setting(
        60.0, "Seconds between two looks at the hardware when nothing happens."
    )


@group
class GpuSettings(Group):
    """How GPUs are worked on."""

    parallel: WholeNumber | None = setting(
        None, "How many GPUs are changed at once, else all; the steps of one GPU stay in order."
    )


@group
class DriverSettings(Group):
    """How long the driver may take."""

    observe_deadline: Duration = setting(
        10.0,
        "Seconds one call into the driver may take when a GPU is read, and a sixth of "
        "what all of them may; after that its state is unknown.",
    )
    step_deadline: Duration = setting(
        60.0, "Seconds one change of a GPU may take; after that its state is unknown."
    )


@group
class MpsSettings(Group):
    """How MPS daemons are run and watched."""

    user: Text = setting(
        "1000",
        "The user that MPS runs as where the plan does not say: uid, uid:gid or a name. "
        "Root and any count only in the plan itself.",
    )
    control: Command = setting(
        ("nvidia-cuda-mps-control",), "The control program, found in mps.path."
    )
    path: Text = setting(
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "The PATH of daemons, in which they find nvidia-cuda-mps-server.",
    )
    library_path: Text | None = setting(
        None, "Where libcuda is, if not where the loader looks: LD_LIBRARY_PATH."
    )
    launch: Literal["auto", "child", "systemd", "hostSystemd"] = setting(
        "auto",
        "What daemons are: children of the agent, transient services of the systemd "
        "beside it, or of the host's systemd when the agent is in a pod. auto: systemd where it "
        "runs, else child.",
    )
    shm: Literal["auto", "host", "device"] = setting(
        "auto",
        "What daemons and clients have as /dev/shm: the host's, or each device a "
        "directory of its own, for containers only. auto: device in a pod that may make mounts, "
        "else host.",
    )
    compute_mode: Literal["exclusive", "leave"] = setting(
        "exclusive",
        "Whether a device with MPS gets compute mode EXCLUSIVE_PROCESS, in which a "
        "program that misses the daemon fails loudly, or its mode is left alone.",
    )
    start_deadline: Duration = setting(15.0, "Seconds from a daemon's start to its first answer.")
    limit_deadline: Duration = setting(
        10.0, "Seconds from the first answer to limits that were read back."
    )
    initialize_deadline: Duration = setting(60.0, "Seconds that a server may be INITIALIZING.")
    quit_deadline: Duration = setting(
        10.0, "Seconds from asking a daemon to end to its end; then it is killed."
    )
    kill_deadline: Duration = setting(5.0, "Seconds after which a kill is repeated and reported.")
    answer_deadline: Duration = setting(5.0, "Seconds for a daemon to answer a query.")
    most_silences: WholeNumber = setting(
        2, "How many unanswered queries in a row until the daemon is replaced."
    )
    check_interval: Duration = setting(
        15.0, "Seconds between two queries of a daemon when nothing happens."
    )
    first_delay: Duration = setting(
        1.0, "Seconds before a daemon that failed quickly is restarted; doubled each time."
    )
    longest_delay: Duration = setting(300.0, "The longest wait before a restart, in seconds.")
    steady: Duration = setting(60.0, "Seconds; a daemon that ran shorter has failed quickly.")
    most_failures: WholeNumber = setting(
        5, "How many quick failures in a row until it is Failed, tried every longest_delay."
    )
    most_attempts: WholeNumber = setting(
        3, "How many attempts to set the limits of a daemon that was never Ready."
    )
    terminate_deadline: Duration = setting(
        30.0, "Seconds for a daemon to end a client, whose work goes on until then."
    )
    grace: Duration = setting(
        5.0, "Seconds between the steps of ending a client or an orphaned server."
    )
    log_size: WholeNumber = setting(
        10, "MiB that a daemon's log may have; then all but its end is cut off."
    )


@group
class CdiSettings(Group):
    """The Container Device Interface, by which containers get MPS shares."""

    dir: FilePath = setting(
        Path("/var/run/cdi"), "Directory for the CDI specification of MPS shares."
    )


@group
class SampleSettings(Group):
    """How often the GPUs are asked what they are doing."""

    interval: Duration = setting(
        5.0,
        "Seconds between two samples of what changes fast: utilization, clocks, power, "
        "memory, processes.",
    )
    slow_interval: Duration = setting(
        60.0,
        "Seconds between two samples of what changes slowly: ECC, remapped rows, NVLink, PCIe.",
    )
    deadline: Duration = setting(
        5.0,
        "Seconds one GPU may take for a sample, and NVML for its events; after that "
        "the values are the last ones, and their age is reported.",
    )


@group
class MetricsSettings(Group):
    """What Prometheus gets."""

    listen: ListenAddress | None = setting(
        None,
        "A second listener for /metrics, /healthz and /readyz alone, such as :9400; "
        "without it, metrics are on api.listen only.",
    )
    web_config: FilePath | None = setting(
        None,
        "TLS and basic auth of metrics.listen: a file in Prometheus' web-config "
        "format. A change in it, or in the files it names, acts at once.",
    )
    counters: FilePath | None = setting(
        None,
        "Which fields are exported: a file in dcgm-exporter's format. Without one, "
        "its default set and more. A change in it acts at once.",
    )
    names: Literal["asWritten", "renamed"] = setting(
        "asWritten",
        "Whether fields have the names of the file of counters, or those that DCGM "
        "gave them in 4.6.",
    )
    host_label: Literal["Hostname", "hostname", "none"] = setting(
        "Hostname",
        "The label with the node's name: Hostname as up to dcgm-exporter 4.8.2, "
        "hostname as since, or none.",
    )
    repeat_whole: bool = setting(
        False,
        "Whether each MIG instance repeats the values of its whole GPU (power, "
        "temperature), as dcgm-exporter does; sums of them are wrong then.",
    )


@group
class HealthSettings(Group):
    """How the GPUs' health is judged."""

    kernel_log: FilePath = setting(
        Path("/dev/kmsg"),
        "The kernel log, the second source of XIDs beside NVML's events. A simulated "
        "node reads it only if it is named.",
    )
    xids: FilePath | None = setting(
        None,
        "A file with classes of XIDs of your own, laid over those of the program. "
        "Findings of XIDs that it calls otherwise are over at the next start.",
    )


@group
class Settings(Group):
    """Everything that can be set."""

    node_name: Text = setting(
        os.uname().nodename.lower(),
        "The node's name. Default: the variable NODE_NAME, else the host name.",
    )
    api: ApiSettings = ApiSettings()
    run: RunSettings = RunSettings()
    state: StateSettings = StateSettings()
    plan: PlanSettings = PlanSettings()
    resync: ResyncSettings = ResyncSettings()
    drift: Literal["mend", "report"] = setting(
        "mend", "When another program changes the layout: mend it, or only report it."
    )
    reset: Literal["never", "whenIdle"] = setting(
        "never",
        "Whether a GPU proven idle may be reset where its MIG mode needs that.",
    )
    nvidia_smi: Command = setting(
        ("nvidia-smi",),
        "The command that resets GPUs and sets time slices; split into words as a "
        "shell does, run without.",
    )
    gpu: GpuSettings = GpuSettings()
    driver: DriverSettings = DriverSettings()
    mps: MpsSettings = MpsSettings()
    cdi: CdiSettings = CdiSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    kubelet: KubeletSettings = KubeletSettings()
    dra: DraSettings = DraSettings()
    sample: SampleSettings = SampleSettings()
    metrics: MetricsSettings = MetricsSettings()
    health: HealthSettings = HealthSettings()
    log: LogSettings = LogSettings()

    @property
    def policy(self) -> "Policy":
        from nodeagent.plan.plan import Policy

        return Policy(
            reset_when_idle=self.reset == "whenIdle",
            exclusive_mps=self.mps.compute_mode == "exclusive",
        )
