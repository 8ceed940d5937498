"""Every setting: name, kind, default, unit and meaning; those of the cluster are in `cluster`."""

# Without postponed annotations: these are the rules themselves, and no string is evaluated.
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from nodeagent.settings.cluster import DraSettings, KubeletSettings, KubernetesSettings
from nodeagent.settings.values import (
    AbsoluteCommand,
    Address,
    Command,
    Duration,
    FilePath,
    Group,
    ListenAddress,
    Text,
    WholeNumber,
)

if TYPE_CHECKING:  # commands that only ask the agent do without it
    from nodeagent.plan.plan import Policy


class ApiSettings(Group):
    """The agent's local HTTP API."""

    listen: Annotated[
        ListenAddress,
        "Where the read-only API listens: HOST:PORT; without a host, on all addresses.",
    ] = Address("127.0.0.1", 9470)


class RunSettings(Group):
    """What lives as long as the agent runs."""

    dir: Annotated[FilePath, "Directory for files that a reboot may remove: sockets."] = Path(
        "/run/nodeagent"
    )


class StateSettings(Group):
    """What must survive a restart."""

    dir: Annotated[FilePath, "Directory for state that must survive a restart."] = Path(
        "/var/lib/nodeagent"
    )
    use_days: Annotated[
        WholeNumber, "Days of use that advice is made of: so many at most, half of them at least."
    ] = 14


class LogSettings(Group):
    """What is logged, to standard error."""

    format: Annotated[
        Literal["auto", "json", "console"],
        "json, console (for people), or auto: console on a terminal, else json.",
    ] = "auto"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], "The least severe messages that are logged."
    ] = "info"


class PlanSettings(Group):
    """Where the plan comes from."""

    source: Annotated[
        Literal["auto", "file", "annotation", "nos", "mig-config"],
        "Where the plan comes from: plan.file, the Node's annotations "
        "nodeagent.io/plan and plan-name, nos' annotations, or the label nvidia.com/mig.config. "
        "auto: annotation in a cluster, else file.",
    ] = "auto"
    file: Annotated[
        FilePath,
        "The plan, or an nvidia-mig-parted file; a change in it acts at once. With the "
        "sources annotation and mig-config, where names of configurations are looked up.",
    ] = Path("/etc/nodeagent/plan.yaml")
    name: Annotated[
        Text | None, "The configuration to take when the file is an nvidia-mig-parted file."
    ] = None


class ResyncSettings(Group):
    """How often the hardware is looked at when nothing else asks for it."""

    interval: Annotated[
        Duration, "Seconds between two looks at the hardware when nothing happens."
    ] = 60.0


class GpuSettings(Group):
    """How GPUs are worked on."""

    parallel: Annotated[
        WholeNumber | None,
        "How many GPUs are changed at once, else all; the steps of one GPU stay in order.",
    ] = None


class AfterChangeSettings(Group):
    """What else of the node has to hear of changed devices."""

    command: Annotated[
        AbsoluteCommand | None,
        "A program and its arguments, run without a shell at the agent's start and after each "
        "change of MIG modes and MIG devices.",
    ] = None
    deadline: Annotated[Duration, "Seconds it may take; then it is killed."] = 60.0


class DriverSettings(Group):
    """How long the driver may take."""

    observe_deadline: Annotated[
        Duration,
        "Seconds one call into the driver may take when a GPU is read, and a sixth of "
        "what all of them may; after that its state is unknown.",
    ] = 10.0
    step_deadline: Annotated[
        Duration, "Seconds one change of a GPU may take; after that its state is unknown."
    ] = 60.0


class MpsSettings(Group):
    """How MPS daemons are run and watched."""

    user: Annotated[
        Text,
        "The user that MPS runs as where the plan does not say: uid, uid:gid or a name. "
        "Root and any count only in the plan itself.",
    ] = "1000"
    control: Annotated[Command, "The control program, found in mps.path."] = (
        "nvidia-cuda-mps-control",
    )
    path: Annotated[Text, "The PATH of daemons, in which they find nvidia-cuda-mps-server."] = (
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    )
    library_path: Annotated[
        Text | None, "Where libcuda is, if not where the loader looks: LD_LIBRARY_PATH."
    ] = None
    launch: Annotated[
        Literal["auto", "child", "systemd", "hostSystemd"],
        "What daemons are: children of the agent, transient services of the systemd "
        "beside it, or of the host's systemd when the agent is in a pod. auto: systemd where it "
        "runs, else child.",
    ] = "auto"
    shm: Annotated[
        Literal["auto", "host", "device"],
        "What daemons and clients have as /dev/shm: the host's, or each device a "
        "directory of its own, for containers only. auto: device in a pod that may make mounts, "
        "else host.",
    ] = "auto"
    compute_mode: Annotated[
        Literal["exclusive", "leave"],
        "Whether a device with MPS gets compute mode EXCLUSIVE_PROCESS, in which a "
        "program that misses the daemon fails loudly, or its mode is left alone.",
    ] = "exclusive"
    start_deadline: Annotated[Duration, "Seconds from a daemon's start to its first answer."] = 15.0
    limit_deadline: Annotated[
        Duration, "Seconds from the first answer to limits that were read back."
    ] = 10.0
    initialize_deadline: Annotated[Duration, "Seconds that a server may be INITIALIZING."] = 60.0
    quit_deadline: Annotated[
        Duration, "Seconds from asking a daemon to end to its end; then it is killed."
    ] = 10.0
    kill_deadline: Annotated[Duration, "Seconds after which a kill is repeated and reported."] = 5.0
    answer_deadline: Annotated[Duration, "Seconds for a daemon to answer a query."] = 5.0
    most_silences: Annotated[
        WholeNumber, "How many unanswered queries in a row until the daemon is replaced."
    ] = 2
    check_interval: Annotated[
        Duration, "Seconds between two queries of a daemon when nothing happens."
    ] = 15.0
    first_delay: Annotated[
        Duration, "Seconds before a daemon that failed quickly is restarted; doubled each time."
    ] = 1.0
    longest_delay: Annotated[Duration, "The longest wait before a restart, in seconds."] = 300.0
    steady: Annotated[Duration, "Seconds; a daemon that ran shorter has failed quickly."] = 60.0
    most_failures: Annotated[
        WholeNumber,
        "How many quick failures in a row until it is Failed, tried every longest_delay.",
    ] = 5
    most_attempts: Annotated[
        WholeNumber, "How many attempts to set the limits of a daemon that was never Ready."
    ] = 3
    terminate_deadline: Annotated[
        Duration, "Seconds for a daemon to end a client, whose work goes on until then."
    ] = 30.0
    grace: Annotated[
        Duration, "Seconds between the steps of ending a client or an orphaned server."
    ] = 5.0
    log_size: Annotated[
        WholeNumber, "MiB that a daemon's log may have; then all but its end is cut off."
    ] = 10


class CdiSettings(Group):
    """The Container Device Interface, by which containers get MPS shares."""

    dir: Annotated[FilePath, "Directory for the CDI specification of MPS shares."] = Path(
        "/var/run/cdi"
    )


class SampleSettings(Group):
    """How often the GPUs are asked what they are doing."""

    interval: Annotated[
        Duration,
        "Seconds between two samples of what changes fast: utilization, clocks, power, "
        "memory, processes.",
    ] = 5.0
    slow_interval: Annotated[
        Duration,
        "Seconds between two samples of what changes slowly: ECC, remapped rows, NVLink, PCIe.",
    ] = 60.0
    deadline: Annotated[
        Duration,
        "Seconds one GPU may take for a sample, and NVML for its events; after that "
        "the values are the last ones, and their age is reported.",
    ] = 5.0


class MetricsSettings(Group):
    """What Prometheus gets."""

    listen: Annotated[
        ListenAddress | None,
        "A second listener for /metrics, /healthz and /readyz alone, such as :9400; "
        "without it, metrics are on api.listen only.",
    ] = None
    web_config: Annotated[
        FilePath | None,
        "TLS and basic auth of metrics.listen: a file in Prometheus' web-config "
        "format. A change in it, or in the files it names, acts at once.",
    ] = None
    counters: Annotated[
        FilePath | None,
        "Which fields are exported: a file in dcgm-exporter's format. Without one, "
        "its default set and more. A change in it acts at once.",
    ] = None
    names: Annotated[
        Literal["asWritten", "renamed"],
        "Whether fields have the names of the file of counters, or those that DCGM "
        "gave them in 4.6.",
    ] = "asWritten"
    host_label: Annotated[
        Literal["Hostname", "hostname", "none"],
        "The label with the node's name: Hostname as up to dcgm-exporter 4.8.2, "
        "hostname as since, or none.",
    ] = "Hostname"
    repeat_whole: Annotated[
        bool,
        "Whether each MIG instance repeats the values of its whole GPU (power, "
        "temperature), as dcgm-exporter does; sums of them are wrong then.",
    ] = False


class HealthSettings(Group):
    """How the GPUs' health is judged."""

    kernel_log: Annotated[
        FilePath,
        "The kernel log, the second source of XIDs beside NVML's events. A simulated "
        "node reads it only if it is named.",
    ] = Path("/dev/kmsg")
    xids: Annotated[
        FilePath | None,
        "A file with classes of XIDs of your own, laid over those of the program. "
        "Findings of XIDs that it calls otherwise are over at the next start.",
    ] = None


class Settings(Group):
    """Everything that can be set."""

    node_name: Annotated[
        Text, "The node's name. Default: the variable NODE_NAME, else the host name."
    ] = os.uname().nodename.lower()
    api: ApiSettings = ApiSettings()
    run: RunSettings = RunSettings()
    state: StateSettings = StateSettings()
    plan: PlanSettings = PlanSettings()
    resync: ResyncSettings = ResyncSettings()
    drift: Annotated[
        Literal["mend", "report"],
        "When another program changes the layout: mend it, or only report it.",
    ] = "mend"
    reset: Annotated[
        Literal["never", "whenIdle"],
        "Whether a GPU proven idle may be reset where its MIG mode needs that.",
    ] = "never"
    nvidia_smi: Annotated[
        Command,
        "The command that resets GPUs and sets time slices; split into words as a "
        "shell does, run without.",
    ] = ("nvidia-smi",)
    after_change: AfterChangeSettings = AfterChangeSettings()
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
