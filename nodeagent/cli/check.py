"""`nodeagent check`: what would keep the agent from working, with a remedy for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nodeagent.app.plan_service import source_of
from nodeagent.cli import event_loop
from nodeagent.cli.checks import cluster as cluster_preflight
from nodeagent.cli.checks import gpu as gpu_preflight
from nodeagent.cli.checks import health as health_preflight
from nodeagent.cli.checks import host as host_preflight
from nodeagent.cli.checks import metrics as metrics_preflight
from nodeagent.cli.checks import mps as mps_preflight
from nodeagent.cli.checks.cluster import ClusterFindings, asked_of_the_node
from nodeagent.cli.checks.findings import Finding, Level, error, ok
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.node import is_simulated, lock_file, observed_node
from nodeagent.cli.options import Options
from nodeagent.cli.output import Output
from nodeagent.cluster.client.presence import is_in_cluster
from nodeagent.errors import DriverError, UsageError
from nodeagent.mps.accounts import accounts_for
from nodeagent.mps.programs import Programs
from nodeagent.plan.desired import PlanDocument
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.resolve import Rejection, resolve
from nodeagent.plan.shares import Account, Host
from nodeagent.processes import commands
from nodeagent.settings import Settings
from nodeagent.simulation.mps.installation import directory_beside
from nodeagent.terminal.check_page import check_page


def run(options: Options, output: Output) -> ExitCode:
    """Look at everything; fails when an error was found."""
    findings = list(_look(options))
    output.page(check_page([(f.check, f.level.value, f.message, f.remedy) for f in findings]))
    output.document(
        {
            "findings": [
                {
                    "check": finding.check,
                    "level": finding.level.value,
                    "message": finding.message,
                    **({"remedy": finding.remedy} if finding.remedy else {}),
                }
                for finding in findings
            ]
        }
    )
    failed = any(finding.level is Level.ERROR for finding in findings)
    return ExitCode.FAILED if failed else ExitCode.DONE


def _look(options: Options) -> Iterator[Finding]:
    try:
        settings = command_settings(options)
    except UsageError as wrong:
        yield error("settings", wrong.message, wrong.remedy)
        return
    yield ok("settings", "valid")
    observed = _observe(options, settings)
    yield from gpu_preflight.driver_findings(observed)
    yield gpu_preflight.permission_finding(simulated=is_simulated(options))
    if isinstance(observed, ObservedNode):
        yield from _of_the_cards(options, settings, observed)
    yield host_preflight.directory_finding("run.dir", settings.run.dir)
    yield host_preflight.directory_finding("state.dir", settings.state.dir)
    yield from health_preflight.health_findings(settings.health, simulated=is_simulated(options))
    yield from metrics_preflight.metrics_findings(settings.metrics)
    yield host_preflight.lock_finding(lock_file(options, settings.run.dir))
    in_cluster = is_in_cluster(settings.kubernetes)
    try:
        source = source_of(settings.plan, in_cluster=in_cluster)
    except UsageError as wrong:
        yield error("settings", wrong.message, wrong.remedy)
        return
    found, finding, document = _plan_and_cluster(settings, source, in_cluster=in_cluster)
    yield from found
    yield from finding
    kubelet = cluster_preflight.kubelet_finding(
        settings.kubelet, in_cluster=in_cluster, simulated=is_simulated(options)
    )
    if kubelet is not None:
        yield kubelet
    accounts = {} if document is None else accounts_for(document, settings.mps.user)
    if document is not None and isinstance(observed, ObservedNode):
        yield _fit(document, observed, Host(settings.mps.user, accounts))
    yield from _of_mps(options, settings, document, accounts)
    yield from host_preflight.owner_findings(commands())


def _plan_and_cluster(
    settings: Settings, source: str, *, in_cluster: bool
) -> tuple[Sequence[Finding], Sequence[Finding], PlanDocument | None]:
    """What the cluster says, then what the plan is, from where it is to come."""
    cluster = ClusterFindings(())
    if in_cluster:
        cluster = cluster_preflight.look(settings.kubernetes, settings.node_name, source)
    if source == "file":
        finding, document = host_preflight.plan_finding(settings.plan.file, settings.plan.name)
        return cluster.findings, (finding,), document
    if cluster.node is None:  # what it asks for is not known
        return cluster.findings, (), None
    finding, document = asked_of_the_node(cluster.node, source, settings.plan)
    return cluster.findings, (finding,), document


def _of_mps(
    options: Options,
    settings: Settings,
    document: PlanDocument | None,
    accounts: Mapping[str, Account],
) -> Iterator[Finding]:
    """A simulated node brings its own programs, so the machine's do not matter there."""
    users = mps_preflight.users_of(document, settings.mps.user)
    run_dir = settings.run.dir
    if not is_simulated(options):
        mps = settings.mps
        programs = Programs(mps.control, mps.path, mps.library_path or "")
        yield from mps_preflight.mps_findings(programs, run_dir, users=users)
    elif options.state is not None and options.run_dir is None:
        run_dir = directory_beside(options.state) / "run"
    if is_simulated(options) and users:
        yield mps_preflight.path_finding(run_dir, wanted=True)
    yield from mps_preflight.user_findings(accounts, users, run_dir)


def _of_the_cards(
    options: Options, settings: Settings, observed: ObservedNode
) -> Iterator[Finding]:
    """What matters only for the GPUs that are really in this machine."""
    if is_simulated(options):
        return
    allowed = settings.reset != "never"
    for finding in (
        gpu_preflight.reset_finding(observed, settings.nvidia_smi, allowed=allowed),
        gpu_preflight.persistence_finding(observed, settings.nvidia_smi),
        host_preflight.fabric_finding(commands()),
    ):
        if finding is not None:
            yield finding


def _observe(options: Options, settings: Settings) -> ObservedNode | DriverError:
    of_the_driver = Settings(driver=settings.driver, nvidia_smi=settings.nvidia_smi)
    try:
        return event_loop.run(observed_node(options, of_the_driver))
    except DriverError as failure:
        return failure


def _fit(document: PlanDocument, observed: ObservedNode, host: Host) -> Finding:
    """Whether the plan names only what the node has, and asks only for what can be."""
    resolved = resolve(document, observed, host)
    if isinstance(resolved, Rejection):
        first = resolved.problems[0]
        return error("plan on this node", f"{first.path}: {first.message}", first.remedy)
    return ok("plan on this node", "it names what the node has")
