"""How MPS daemons are run, and how containers get their shares."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from nodeagent.settings.groups.group import Group
from nodeagent.settings.values import Command, Duration, FilePath, Text, WholeNumber


class MpsSettings(Group):
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
        "directory of its own, for containers only. auto: device in a pod that may make mounts, "
        "else host.",
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
        1.0, description="Seconds before a daemon that failed quickly is started again; doubled."
    )
    longest_delay: Duration = Field(
        300.0, description="Seconds that are waited at most before another start."
    )
    steady: Duration = Field(
        60.0, description="Seconds; a daemon that ran shorter has failed quickly."
    )
    most_failures: WholeNumber = Field(
        5, description="So many quick failures in a row, and it is Failed, tried at longest_delay."
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


class CdiSettings(Group):
    """The Container Device Interface, by which containers get MPS shares."""

    dir: FilePath = Field(
        Path("/var/run/cdi"), description="Directory for the CDI specification of MPS shares."
    )
