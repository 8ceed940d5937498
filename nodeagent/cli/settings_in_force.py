"""The settings that bear on commands which do one thing and end.

Reading settings takes a tenth of a second, most of it for pydantic, which would be half of what a
whole `assert` may take. So when nothing is set, neither in the settings file nor in the
environment, the defaults below hold, and a test sees to it that they equal the settings' own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nodeagent.cli.options import Options
from nodeagent.plan.plan import Policy

DEFAULT_FILE = Path("/etc/nodeagent/settings.yaml")


@dataclass(frozen=True, slots=True)
class KubeletInForce:
    """What the settings `kubelet.*` say; `deadline` in seconds."""

    use: str = "auto"
    socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    deadline: float = 5.0


@dataclass(frozen=True, slots=True)
class InForce:
    """What the settings of the same names say; deadlines in seconds."""

    observe_deadline: float = 10.0
    step_deadline: float = 60.0
    parallel: int = 8
    reset: str = "never"
    run_dir: Path = Path("/run/nodeagent")
    state_dir: Path = Path("/var/lib/nodeagent")
    nvidia_smi: tuple[str, ...] = ("nvidia-smi",)
    compute_mode: str = "exclusive"  # of devices with MPS
    kubelet: KubeletInForce = KubeletInForce()
    kubernetes: str = "auto"  # whether the node belongs to a cluster
    kubeconfig: Path | None = None

    @property
    def policy(self) -> Policy:
        return Policy(
            reset_when_idle=self.reset == "whenIdle",
            exclusive_mps=self.compute_mode == "exclusive",
        )


def in_force(options: Options, environment: Mapping[str, str] | None = None) -> InForce:
    """The settings file and the environment, then the flags of this command line."""
    variables = os.environ if environment is None else environment
    file: Path | None = getattr(options, "settings", None)
    anything = file is not None or _anything_set(variables)
    found = _read(file, variables) if anything else InForce()
    return replace(
        found,
        parallel=getattr(options, "parallel", None) or found.parallel,
        reset=getattr(options, "reset", None) or found.reset,
        run_dir=getattr(options, "run_dir", None) or found.run_dir,
        state_dir=getattr(options, "state_dir", None) or found.state_dir,
    )


def _anything_set(variables: Mapping[str, str]) -> bool:
    return DEFAULT_FILE.exists() or any(name.startswith("NODEAGENT_") for name in variables)


def _read(file: Path | None, variables: Mapping[str, str]) -> InForce:
    from nodeagent.settings import load_settings

    settings = load_settings(file, variables, {})
    return InForce(
        observe_deadline=settings.driver.observe_deadline,
        step_deadline=settings.driver.step_deadline,
        parallel=settings.gpu.parallel,
        reset=settings.reset,
        run_dir=settings.run.dir,
        state_dir=settings.state.dir,
        nvidia_smi=settings.nvidia_smi,
        compute_mode=settings.mps.compute_mode,
        kubelet=KubeletInForce(
            settings.kubelet.use, settings.kubelet.socket, settings.kubelet.deadline
        ),
        kubernetes=settings.kubernetes.use,
        kubeconfig=settings.kubernetes.kubeconfig,
    )
