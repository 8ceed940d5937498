"""`nodeagent profiles`: what each GPU offers, and how many more fit now."""

from __future__ import annotations

from argparse import Namespace

from nodeagent.cli import event_loop
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.node import observed_node
from nodeagent.cli.output import Output
from nodeagent.plan.layouts import creatable
from nodeagent.plan.observed import Access, Gpu, GpuInstanceProfile
from nodeagent.structs import asdict


def run(options: Namespace, output: Output) -> ExitCode:
    """List the profiles; fails when a GPU does not answer."""
    observed = event_loop.run(observed_node(options, command_settings(options)))
    offers = [(gpu, creatable(gpu)) for gpu in observed.gpus]
    if output.is_text:
        from nodeagent.terminal.profiles_page import profiles_page

        output.page(profiles_page(offers))
    output.document({"gpus": [_gpu_json(gpu, more) for gpu, more in offers]})
    answering = all(gpu.access is Access.OK for gpu in observed.gpus)
    return ExitCode.DONE if answering else ExitCode.FAILED


def _gpu_json(gpu: Gpu, more: dict[str, int]) -> dict[str, object]:
    names = {"uuid": gpu.uuid, "name": gpu.name, "pciBusId": gpu.pci_bus_id}
    known: dict[str, object] = {
        "index": gpu.index,
        **{key: value for key, value in names.items() if value},
    }
    if gpu.mig is not None or gpu.access is Access.OK:
        known["migCapable"] = gpu.mig is not None
    known["profiles"] = [_profile_json(profile, more) for profile in gpu.profiles]
    if gpu.access is not Access.OK:
        known["problem"] = f"{gpu.access}: {gpu.access_reason}"
    return known


def _profile_json(profile: GpuInstanceProfile, more: dict[str, int]) -> dict[str, object]:
    return {
        "profile": profile.name,
        "id": profile.id,
        "slices": profile.slices,
        "memory": profile.memory,
        "multiprocessors": profile.multiprocessors,
        "engines": asdict(profile.engines),
        "max": profile.max_count,
        "creatable": more.get(profile.name, 0),
        "placements": [asdict(placement) for placement in profile.placements],
    }
