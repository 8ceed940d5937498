"""What becomes of the GPUs: the plan, and how the driver is asked and changed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from nodeagent.settings.groups.group import Group
from nodeagent.settings.values import Duration, FilePath, Text, WholeNumber


class PlanSettings(Group):
    """Where the plan comes from."""

    source: Literal["auto", "file", "annotation", "nos", "mig-config"] = Field(
        "auto",
        description="Where the plan comes from: plan.file, the Node's annotations "
        "nodeagent.io/plan and plan-name, nos' annotations, or the label nvidia.com/mig.config. "
        "auto: annotation in a cluster, else file. A change of it in the settings file acts at "
        "once.",
    )
    file: FilePath = Field(
        Path("/etc/nodeagent/plan.yaml"),
        description="The plan, or an nvidia-mig-parted file; a change in it acts at once. With the "
        "sources annotation and mig-config, where names of configurations are looked up.",
    )
    name: Text | None = Field(
        None, description="The configuration to take when the file is an nvidia-mig-parted file."
    )


class ResyncSettings(Group):
    """How often the hardware is looked at when nothing else asks for it."""

    interval: Duration = Field(
        60.0, description="Seconds between two looks at the hardware when nothing happens."
    )


class GpuSettings(Group):
    """How GPUs are worked on."""

    parallel: WholeNumber = Field(
        8, description="How many GPUs are changed at once; the steps of one GPU stay in order."
    )


class DriverSettings(Group):
    """How long the driver may take."""

    observe_deadline: Duration = Field(
        10.0,
        description="Seconds one call into the driver may take when a GPU is read, and a sixth of "
        "what all of them may; after that its state is unknown.",
    )
    step_deadline: Duration = Field(
        60.0, description="Seconds one change of a GPU may take; after that its state is unknown."
    )
