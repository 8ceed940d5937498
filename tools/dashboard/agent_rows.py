"""The rows of the dashboard about health, changes, and the agent itself."""

from __future__ import annotations

from tools.dashboard.panels import (
    GPU,
    NAME,
    NODE,
    OF_AGENT,
    YES_NO,
    Panel,
    Rows,
    graph,
    states,
    table,
)

ROUNDS = f"nodeagent_reconcile_duration_seconds_bucket{{{NODE}}}[$__rate_interval]"
NAMED_XIDS = f"increase(nodeagent_gpu_xid_total{{{GPU}}}[$__rate_interval])"

AGENT_ROWS: Rows = (
    (
        "Health",
        (
            table(
                "Findings",
                f'nodeagent_gpu_finding{{{NODE}, gpu=~"$gpu"}} == 1',
                *("instance", "gpu", "GPU_I_ID", "compute_instance", "check", "cause", "code"),
                *("severity", "action"),
                width=24,
                about="What is wrong now, and what would help: docs/health.md.",
            ),
            states(
                "Checks",
                f"min by (instance, check) (nodeagent_gpu_health{{{GPU}}})",
                "{{instance}} {{check}}",
                height=12,
                values={
                    "1": ("healthy", "green"),
                    "0.5": ("degraded", "orange"),
                    "0": ("unhealthy", "red"),
                },
                about="Of all chosen GPUs, the worst. A gap: the driver does not say.",
            ),
            Panel(
                "XIDs",
                (
                    (
                        f"increase(nodeagent_gpu_xid_events_total{{{GPU}}}[$__rate_interval])",
                        f"{NAME} any XID",
                    ),
                    (
                        f"sum by (instance, gpu, xid) ({NAMED_XIDS})",
                        f"{NAME} XID {{{{xid}}}}",
                    ),
                ),
                height=12,
                about="The first of a number is counted with any XID; the next table names it.",
            ),
            table(
                "When which XID was last seen",
                f"nodeagent_gpu_xid_last_timestamp_seconds{{{GPU}}} * 1000",
                *("instance", "gpu", "GPU_I_ID", "xid", "Value"),
                unit="dateTimeFromNow",
                value="last seen",
                width=8,
            ),
            Panel(
                "Temperature",
                (
                    (f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}}", NAME),
                    (f"DCGM_FI_DEV_MEMORY_TEMP{{{GPU}}}", f"{NAME} memory"),
                ),
                unit="celsius",
                width=8,
            ),
            graph("Power", f"DCGM_FI_DEV_POWER_USAGE{{{GPU}}}", NAME, unit="watt", width=8),
            Panel(
                "Remapped rows of memory",
                (
                    (f"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{GPU}}}", f"{NAME} uncorrectable"),
                    (f"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS{{{GPU}}}", f"{NAME} correctable"),
                ),
            ),
            graph(
                "PCIe replays",
                f"increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{GPU}}}[$__rate_interval])",
                NAME,
            ),
        ),
    ),
    (
        "Changes",
        (
            states(
                "As planned",
                f"nodeagent_plan_applied{{{NODE}}}",
                "{{instance}}",
                values=YES_NO,
            ),
            states(
                "Phase",
                f"nodeagent_phase{{{NODE}}}",
                "{{instance}} {{phase}}",
                values={"1": ("now", "blue"), "0": ("", "transparent")},
            ),
            graph(
                "Steps taken",
                "sum by (kind, result) "
                f"(increase(nodeagent_steps_total{{{NODE}}}[$__rate_interval]))",
                "{{kind}} {{result}}",
                width=8,
                about="The very first of a kind is not seen.",
            ),
            graph(
                "Memory slices out of use",
                "sum by (instance, gpu) "
                f"(increase(nodeagent_mig_slot_out_of_use_seconds_total{{{GPU}}}[$__rate_interval]))",
                NAME,
                unit="s",
                width=8,
                about="Seconds for which changes kept slices from being used, all slices together.",
            ),
            Panel(
                "How long a round takes",
                tuple(
                    (
                        f"histogram_quantile({quantile}, sum by (le) (rate({ROUNDS})))",
                        name,
                    )
                    for quantile, name in ((0.5, "half of them"), (0.95, "95 %"))
                ),
                unit="s",
                width=8,
            ),
        ),
    ),
    (
        "The agent itself",
        (
            graph(
                "Processor",
                f"rate(process_cpu_seconds_total{{{NODE}}}[$__rate_interval]) {OF_AGENT}",
                "{{instance}}",
                unit="percentunit",
                about="1 is one core.",
            ),
            graph(
                "Memory",
                f"process_resident_memory_bytes{{{NODE}}} {OF_AGENT}",
                "{{instance}}",
                unit="bytes",
            ),
            graph(
                "How long a reader takes",
                f"max by (instance, reader) (nodeagent_reader_duration_seconds{{{NODE}}})",
                "{{instance}} {{reader}}",
                unit="s",
            ),
            graph(
                "How old its values are",
                f"max by (instance, reader) (nodeagent_sample_age_seconds{{{NODE}}})",
                "{{instance}} {{reader}}",
                unit="s",
            ),
            states(
                "Readers that succeed",
                f"min by (instance, reader) (nodeagent_reader_success{{{NODE}}})",
                "{{instance}} {{reader}}",
                values=YES_NO,
                width=8,
            ),
            graph(
                "Lines of the file of counters that are not used",
                f"nodeagent_counters_ignored{{{NODE}}}",
                "{{instance}}",
                width=8,
                about="The log and /v1/status name them.",
            ),
            graph("Open files", f"process_open_fds{{{NODE}}} {OF_AGENT}", "{{instance}}", width=8),
        ),
    ),
)
