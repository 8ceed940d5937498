"""The rows of the dashboard about GPUs, their slices, and who has and shares them."""

from __future__ import annotations

from tools.dashboard.panels import (
    BAD_ABOVE_0,
    CLIENT,
    GPU,
    HELD,
    HOLDER,
    NAME,
    NODE,
    PART,
    POD,
    SLICE,
    YES_NO,
    Panel,
    Rows,
    by_namespace,
    figure,
    graph,
    states,
    table,
)

MIB = 1 << 20


def _graph_of_held(title: str, unit: str, *, idle: bool = False, about: str = "") -> Panel:
    held, used = (
        f"rate(nodeagent_{how}_{unit}_total{{{HOLDER}}}[$__rate_interval])"
        for how in ("held", "used")
    )
    by = by_namespace(f"{held} - {used}" if idle else held)
    return graph(title, by, "{{namespace}}", stacked=True, about=about)


GPU_ROWS: Rows = (
    (
        "Overview",
        (
            figure("Nodes with an agent", f"count(nodeagent_build_info{{{NODE}}})"),
            figure(
                "Nodes not as planned",
                f"count(nodeagent_plan_applied{{{NODE}}} == 0) or vector(0)",
                steps=BAD_ABOVE_0,
            ),
            figure(
                "Findings: unhealthy",
                f'count(nodeagent_gpu_finding{{{NODE}, severity="unhealthy"}}) or vector(0)',
                steps=BAD_ABOVE_0,
            ),
            figure("Slices", f"sum(nodeagent_mig_instances{{{GPU}}}) or vector(0)"),
            figure("Free memory slices", f"sum(nodeagent_mig_slots_free{{{GPU}}}) or vector(0)"),
            figure("MPS clients", f"sum(nodeagent_mps_clients{{{SLICE}}}) or vector(0)"),
        ),
    ),
    (
        "Slices",
        (
            table(
                "Layout",
                f"nodeagent_mig_device_info{{{SLICE}}}",
                *("instance", "gpu", "start", "size", "GPU_I_PROFILE", "device_profile"),
                *("GPU_I_ID", "compute_instance", "share", "mig_uuid"),
                width=24,
                height=10,
                about="start and size in memory slices; share of the GPU's memory slices.",
            ),
            graph(
                "Instances",
                f"sum by (GPU_I_PROFILE) (nodeagent_mig_instances{{{GPU}}})",
                "{{GPU_I_PROFILE}}",
                stacked=True,
            ),
            graph(
                "What still fits",
                f"sum by (GPU_I_PROFILE) (nodeagent_mig_creatable{{{GPU}}})",
                "{{GPU_I_PROFILE}}",
                about="Each profile taken alone: they do not all fit at once.",
            ),
            Panel(
                "Free memory slices",
                (
                    (f"nodeagent_mig_slots_free{{{GPU}}}", f"{NAME} free"),
                    (f"nodeagent_mig_largest_creatable_slots{{{GPU}}}", f"{NAME} largest"),
                ),
                about="How many no instance has, and how many of them the largest profile gets.",
            ),
            Panel(
                "Fragmentation",
                (
                    (f"nodeagent_mig_fragmentation_ratio{{{GPU}}}", NAME),
                    (f"nodeagent_mig_slots_unusable_ratio{{{GPU}}}", f"{NAME} unusable slices"),
                ),
                unit="percentunit",
                limits=(0, 1),
                about="Share of further instances that would fit if those that are there lay "
                "better, and of the free memory slices that no profile can use.",
            ),
            graph(
                "Utilization",
                f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{HELD}}}",
                POD,
                unit="percentunit",
                limits=(0, 1),
                about="Of slices, and of GPUs without MIG. Hopper and newer.",
            ),
            graph(
                "GPU utilization",
                f"DCGM_FI_DEV_GPU_UTIL{{{HELD}}}",
                POD,
                unit="percent",
                limits=(0, 100),
                about="On cards older than Hopper there is none with MIG on.",
            ),
            Panel(
                "Streaming multiprocessors",
                (
                    (f"DCGM_FI_PROF_SM_ACTIVE{{{HELD}}}", f"{POD} active"),
                    (f"DCGM_FI_PROF_SM_OCCUPANCY{{{HELD}}}", f"{POD} occupancy"),
                ),
                unit="percentunit",
                limits=(0, 1),
            ),
            Panel(
                "Tensor cores and memory interface",
                (
                    (f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{HELD}}}", f"{POD} tensor"),
                    (f"DCGM_FI_PROF_DRAM_ACTIVE{{{HELD}}}", f"{POD} memory"),
                ),
                unit="percentunit",
                limits=(0, 1),
            ),
            graph("Memory used", f"DCGM_FI_DEV_FB_USED{{{HELD}}} * {MIB}", POD, unit="bytes"),
            graph("Memory free", f"DCGM_FI_DEV_FB_FREE{{{HELD}}} * {MIB}", POD, unit="bytes"),
        ),
    ),
    (
        "Who has them",
        (
            _graph_of_held("GPUs held", "seconds", about="A slice counts as its share of the GPU."),
            _graph_of_held("GPUs held and idle", "seconds", idle=True),
            _graph_of_held("Memory slices held", "slice_seconds"),
            _graph_of_held("Memory slices held and idle", "slice_seconds", idle=True),
            table(
                "Held and idle for",
                f"nodeagent_held_idle_seconds{{{HELD}}}",
                *("instance", "gpu", "GPU_I_ID", "GPU_I_PROFILE", "namespace", "pod"),
                *("container", "Value"),
                unit="s",
                value="idle for",
                width=24,
                about="Devices that are allocated, and since when they have done nothing.",
            ),
        ),
    ),
    (
        "MPS",
        (
            states(
                "Daemons that serve",
                f"nodeagent_mps_daemon_up{{{SLICE}}}",
                f"{PART} {{{{mig_uuid}}}}",
                values=YES_NO,
            ),
            states(
                "Servers that are active",
                f"nodeagent_mps_server_active{{{SLICE}}}",
                f"{PART} {{{{mig_uuid}}}}",
                values=YES_NO,
                about="A gap: no client has come yet, so the daemon has no server.",
            ),
            graph(
                "Restarts in an hour",
                f"increase(nodeagent_mps_restarts_total{{{SLICE}}}[1h])",
                PART,
                width=8,
            ),
            graph("Clients", f"nodeagent_mps_clients{{{SLICE}}}", PART, width=8),
            graph(
                "Threads that a client may use",
                f"nodeagent_mps_client_active_thread_percentage{{{HELD}}}",
                CLIENT,
                unit="percent",
                limits=(0, 100),
                width=8,
            ),
            graph(
                "Memory of clients",
                f"nodeagent_mps_client_memory_bytes{{{HELD}}}",
                CLIENT,
                unit="bytes",
            ),
            graph(
                "Memory of clients against their limit",
                f"nodeagent_mps_client_memory_bytes{{{HELD}}}"
                f" / nodeagent_mps_client_memory_limit_bytes{{{HELD}}}",
                CLIENT,
                unit="percentunit",
                limits=(0, 1),
                steps=(("green", None), ("orange", 0.8), ("red", 0.95)),
            ),
        ),
    ),
)
