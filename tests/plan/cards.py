"""GPUs as values, made from the simulator's board files, and every layout they can have."""

import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from nodeagent.plan import observed
from nodeagent.plan.desired import DesiredGpu, Layout, WantedInstance
from nodeagent.plan.layouts import Card
from nodeagent.plan.names import device_name
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace

IN_USE = Usage((User(4711, "python"),))
NOT_KNOWN = Usage(known=False, reason="the driver did not say")

Multiset = tuple[tuple[str, int], ...]
Place = tuple[str, int]


@cache
def card(board: str, *, reported: bool = False) -> observed.Gpu:
    """An empty GPU of that board with MIG on; `reported`: the driver reported compute profiles."""
    data = json.loads(files("nodeagent.simulation").joinpath(f"boards/{board}.json").read_text())
    major, minor = (int(part) for part in data["compute_capability"].split("."))
    capable = bool(data["profiles"])
    return observed.Gpu(
        index=0,
        uuid=f"GPU-{board}",
        name=data["product"],
        pci_bus_id="00000000:1A:00.0",
        pci_device_id=int(data["pci_device_id"], 16),
        memory=data["memory_mib"] << 20,
        compute_capability=(major, minor),
        mig=observed.MigMode(current=True, pending=True) if capable else None,
        mode_change_needs_reset=bool(data["mode_change_needs_reset"]) if capable else False,
        profiles=tuple(_profile(p, reported=reported) for p in data["profiles"]),
    )


def _profile(data: dict[str, object], *, reported: bool) -> observed.GpuInstanceProfile:
    row: dict[str, object] = data
    compute = row["compute"] if reported else []
    assert isinstance(compute, list)
    places = row["placements"]
    assert isinstance(places, list)
    number = {k: v for k, v in row.items() if isinstance(v, int)}
    return observed.GpuInstanceProfile(
        id=number["id"],
        kind=number["kind"],
        name=str(row["name"]),
        slices=number["slices"],
        memory=number.get("memory_mib", 0) << 20,
        multiprocessors=number.get("multiprocessors", 0),
        max_count=number["max_instances"],
        placements=tuple(observed.Placement(p["start"], p["size"]) for p in places),
        engines=observed.Engines(
            copy=number.get("copy_engines", 0),
            decoder=number.get("decoders", 0),
            encoder=number.get("encoders", 0),
            jpeg=number.get("jpeg", 0),
            ofa=number.get("ofa", 0),
        ),
        compute=tuple(
            observed.ComputeInstanceProfile(
                id=c["id"],
                slices=c["slices"],
                max_count=c["max_instances"],
                multiprocessors=c["multiprocessors"] or 0,
                placements=tuple(observed.Placement(*p) for p in c["placements"]),
            )
            for c in compute
        ),
    )


def wanted(gpu: observed.Gpu, counts: Iterable[tuple[str, int]]) -> DesiredGpu:
    """Whole instances, anywhere."""
    instances = tuple(
        WantedInstance(name, profile.slices, None, "gpus[0].mig")
        for name, count in counts
        for profile in [gpu.profile(name)]
        if profile is not None
        for _ in range(count)
    )
    return DesiredGpu(Layout(instances, "gpus[0].mig"), "gpus[0]")


def devices(gpu: observed.Gpu, *parts: tuple[str, int, int | None]) -> DesiredGpu:
    """Devices given as (GPU instance profile, compute slices, start or None)."""
    instances = tuple(
        WantedInstance(n, c, s, f"gpus[0].mig[{i}]") for i, (n, c, s) in enumerate(parts)
    )
    return DesiredGpu(Layout(instances, "gpus[0].mig"), "gpus[0]")


def with_instances(
    gpu: observed.Gpu, places: Iterable[Place], used: Iterable[int] = ()
) -> observed.Gpu:
    """The GPU holding whole instances at `places`; those whose number is in `used` are in use."""
    used = set(used)
    instances = []
    for number, (name, start) in enumerate(places):
        profile = gpu.profile(name)
        assert profile is not None
        placement = next(p for p in profile.placements if p.start == start)
        usage = IN_USE if number in used else Usage()
        device = observed.ComputeInstance(0, name, profile.slices, f"MIG-{number}", None, usage)
        instances.append(observed.GpuInstance(number + 1, profile.id, name, placement, (device,)))
    return replace(gpu, instances=tuple(instances))


def divided(
    gpu: observed.Gpu, name: str, start: int, *sizes: int, used: Iterable[int] = ()
) -> observed.Gpu:
    """The GPU with one more instance, divided into compute instances one behind the other."""
    profile = gpu.profile(name)
    assert profile is not None
    placement = next(p for p in profile.placements if p.start == start)
    compute, at, used = [], 0, set(used)
    for number, slices in enumerate(sizes):
        usage = IN_USE if number in used else Usage()
        place = observed.Placement(at, slices)
        label = device_name(name, profile.slices, slices)
        compute.append(
            observed.ComputeInstance(number, label, slices, f"MIG-{start}-{number}", place, usage)
        )
        at += slices
    instance = observed.GpuInstance(10 + start, profile.id, name, placement, tuple(compute))
    return replace(gpu, instances=(*gpu.instances, instance))


def places(gpu: observed.Gpu) -> set[Place]:
    return {(i.profile, i.placement.start) for i in gpu.instances}


def present(gpu: observed.Gpu) -> Counter[str]:
    """The devices there are, by name."""
    return Counter(c.profile for i in gpu.instances for c in i.compute)


@cache
def layouts(board: str) -> dict[Multiset, tuple[frozenset[Place], ...]]:
    """Every non-empty set of instances a card can hold, with every way to place it.

    Found by trying each placement of each profile, without any of the planner's search.
    """
    table = Card.of(card(board))
    items = [
        (name, start, mask) for name, p in table.profiles.items() for start, mask in p.masks.items()
    ]
    found: dict[Multiset, list[frozenset[Place]]] = {}

    def extend(first: int, occupied: int, chosen: tuple[Place, ...]) -> None:
        if chosen:
            key = tuple(sorted(Counter(name for name, _ in chosen).items()))
            found.setdefault(key, []).append(frozenset(chosen))
        for i in range(first, len(items)):
            name, start, mask = items[i]
            if not mask & occupied and table.spare([*(n for n, _ in chosen), name]):
                extend(i + 1, occupied | mask, (*chosen, (name, start)))

    extend(0, 0, ())
    return {key: tuple(ways) for key, ways in found.items()}
