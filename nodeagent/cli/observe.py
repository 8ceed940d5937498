"""`nodeagent export` and `profiles`: the node as it is, and what its GPUs offer."""

from argparse import Namespace

from nodeagent.cli import event_loop
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.node import observed_node
from nodeagent.cli.output import Output, complain
from nodeagent.cli.shared_node import reading_node
from nodeagent.documents import writing
from nodeagent.plan.layouts import creatable
from nodeagent.plan.mig import unlisted
from nodeagent.plan.observed import Gpu, GpuInstanceProfile, ObservedNode
from nodeagent.plan.remedies import silent_remedy
from nodeagent.structs import asdict
from nodeagent.terminal.profiles_page import profiles_page


def run_export(options: Namespace, output: Output) -> ExitCode:
    """Write the document in YAML, or as JSON; fails when a GPU had to be left out."""
    observed = event_loop.run(_observed(options))
    _write(observed, output, mig_parted=options.export_format == "mig-parted")
    silent = [gpu for gpu in observed.gpus if not gpu.answers]
    for gpu in silent[:1]:
        more = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
        complain(
            f"GPU {gpu.index}{more} does not answer and is left out: {gpu.access_reason}",
            f"{silent_remedy(gpu)}; applied elsewhere, the document leaves that GPU as it is",
        )
    return ExitCode.FAILED if silent else ExitCode.DONE


async def _observed(options: Namespace) -> ObservedNode:
    async with reading_node(options, command_settings(options), None) as (node, _):
        return await node.observe()


def _write(observed: ObservedNode, output: Output, *, mig_parted: bool) -> None:
    if output.format == "json":
        data = writing.mig_parted_data if mig_parted else writing.plan_data
        output.document(data(observed))
    else:
        text = writing.mig_parted_document if mig_parted else writing.plan_document
        output.text(text(observed))


def run_profiles(options: Namespace, output: Output) -> ExitCode:
    """List the profiles; fails when a GPU does not answer."""
    observed = event_loop.run(observed_node(options, command_settings(options)))
    offers = [(gpu, creatable(gpu)) for gpu in observed.gpus]
    if output.is_text:
        output.page(profiles_page(offers))
    output.document({"gpus": [_gpu_json(gpu, more) for gpu, more in offers]})
    answering = all(gpu.answers for gpu in observed.gpus)
    return ExitCode.DONE if answering else ExitCode.FAILED


def _gpu_json(gpu: Gpu, more: dict[str, int]) -> dict[str, object]:
    names = {"uuid": gpu.uuid, "name": gpu.name, "pciBusId": gpu.pci_bus_id}
    known: dict[str, object] = {
        "index": gpu.index,
        **{key: value for key, value in names.items() if value},
    }
    if gpu.mig is not None or gpu.answers:
        known["migCapable"] = gpu.mig is not None
    known["profiles"] = [_profile_json(profile, more) for profile in gpu.profiles]
    if not gpu.answers:
        known["problem"] = f"{gpu.access}: {gpu.access_reason}"
    elif gpu.unlisted:
        known["problem"] = unlisted(gpu).message
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
