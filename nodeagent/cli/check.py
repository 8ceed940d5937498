"""`nodeagent check`: what would keep the agent from working, with a remedy for each."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from nodeagent.app.shared import source_of
from nodeagent.claims.records import FOLDER as RECORDS
from nodeagent.claims.records import driver_in_force, read_records
from nodeagent.cli import event_loop
from nodeagent.cli.checks import PreflightFinding, error, files, machine, mps, ok, warning
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.node import is_simulated, lock_file, observed_node, run_dir
from nodeagent.cli.output import Output
from nodeagent.cluster.client.presence import runs_as
from nodeagent.errors import DriverError, UsageError
from nodeagent.mps.programs import Programs
from nodeagent.mps.setup import accounts_for, has_private_shm
from nodeagent.plan.desired import PlanDocument
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.shares import Account, Host
from nodeagent.processes import commands
from nodeagent.programs import PATH
from nodeagent.settings import Settings
from nodeagent.settings.cluster import DraSettings
from nodeagent.terminal.explain_page import check_page

if TYPE_CHECKING:
    from nodeagent.cluster.client.node_view import NodeView


def run_check(options: Namespace, output: Output) -> ExitCode:
    """Look at everything; fails when an error was found."""
    findings = list(_findings(options))
    output.page(check_page(findings))
    # A finding without a remedy has no such key.
    rows = [{k: v for k, v in finding._asdict().items() if v} for finding in findings]
    output.document({"findings": rows})
    failed = any(finding.level == "error" for finding in findings)
    return ExitCode.FAILED if failed else ExitCode.DONE


def _findings(options: Namespace) -> Iterator[PreflightFinding]:
    try:
        settings = command_settings(options)
    except UsageError as wrong:
        yield error("settings", wrong)
        return
    agent = runs_as(settings.kubernetes)
    in_cluster = bool(agent)
    yield ok("settings", "valid")
    yield from _claims(settings, in_cluster=in_cluster)
    simulated = is_simulated(options)
    observed = _observe(options, settings)
    yield from machine.driver_findings(observed)
    permission = machine.permission_finding(simulated=simulated)
    yield permission
    smi, reset_allowed = () if simulated else settings.nvidia_smi, settings.reset != "never"
    # What a pod has, all in it have; on the host who runs this may have another PATH than services.
    path = os.environ.get("PATH", PATH) if agent == "pod" else PATH
    for command, its_path in ((settings.after_change.command, PATH), (smi, path)):
        yield from machine.own_program_findings(command, its_path) if command else ()
    if isinstance(observed, ObservedNode) and not simulated:
        yield from machine.nvidia_smi_findings(observed, smi, path, reset_allowed=reset_allowed)
        yield from machine.persistence_findings(observed, smi, path)
        yield from machine.fabric_findings(commands())
    as_agent = permission.level == "ok"
    yield machine.directory_finding("run.dir", settings.run.dir, as_agent=as_agent)
    yield machine.directory_finding("state.dir", settings.state.dir, as_agent=as_agent)
    yield from files.health_findings(settings.health, simulated=simulated)
    yield from files.metrics_findings(settings.metrics)
    yield machine.lock_finding(lock_file(options, settings.run.dir))
    try:
        source = source_of(settings.plan, in_cluster=in_cluster)
    except UsageError as wrong:
        yield error("settings", wrong)
        return
    node, document = None, None
    if in_cluster:
        from nodeagent.cli.checks.cluster import cluster_findings  # loads its heavy library

        found, node = cluster_findings(
            settings.kubernetes,
            settings.node_name,
            source,
            dra=settings.dra,
            kubelet_dir=settings.kubelet.dir,
        )
        yield from found
    if source == "file" or node is not None:  # else the node's plan is not known
        finding, document = _plan(settings, source, node)
        yield finding
    if node is not None and _has_shares(settings.dra, document):
        from nodeagent.cli.checks.cluster import counting

        yield event_loop.run(counting(settings.kubernetes))
    kubelet = settings.kubelet
    yield from machine.kubelet_findings(kubelet, in_cluster=in_cluster, simulated=simulated)
    accounts = {} if document is None else accounts_for(document, settings.mps.user)
    if document is not None and isinstance(observed, ObservedNode):
        yield files.fit_finding(document, observed, Host(settings.mps.user, accounts))
    yield from _mps(options, settings, document, accounts)
    yield from machine.owner_findings(commands())


def _observe(options: Namespace, settings: Settings) -> ObservedNode | DriverError:
    driver_settings = Settings(driver=settings.driver, nvidia_smi=settings.nvidia_smi)
    try:
        return event_loop.run(observed_node(options, driver_settings))
    except DriverError as failure:
        return failure


def _plan(
    settings: Settings, source: str, node: NodeView | None
) -> tuple[PreflightFinding, PlanDocument | None]:
    if source == "file" or node is None:
        return files.file_finding(settings.plan)
    for_claims = settings.dra.mode != "off"
    return files.node_finding(node, source, settings.plan, for_claims=for_claims)


def _claims(settings: Settings, *, in_cluster: bool) -> Iterator[PreflightFinding]:
    """Check what is set for claims beside what else is set, and what claims have."""
    for problem in settings.dra.without_effect(in_cluster=in_cluster):
        yield warning("settings", problem)
    if settings.dra.mode != "off":
        records = read_records(settings.state.dir / RECORDS)
        _, held_back = driver_in_force(settings.dra.driver, records)
        if held_back:
            yield warning("DRA driver", held_back)


def _has_shares(dra: DraSettings, document: PlanDocument | None) -> bool:
    """Whether claims may have parts of GPUs, by the settings or the plan."""
    planned = document.entries if document else ()
    wanted = dra.is_shared or any(entry.share not in (None, "off") for entry in planned)
    return wanted and dra.mode == "dynamic"


def _mps(
    options: Namespace,
    settings: Settings,
    document: PlanDocument | None,
    accounts: Mapping[str, Account],
) -> Iterator[PreflightFinding]:
    """Check what MPS needs; the machine's programs only where the node is not simulated."""
    users = mps.users_of(document, settings.mps.user)
    directory = run_dir(options, settings)
    if not is_simulated(options):
        setting = settings.mps
        programs = Programs(setting.control, setting.path, setting.library_path or "")
        private_shm = has_private_shm(setting, simulated=False)
        yield from mps.mps_findings(programs, directory, users=users, private_shm=private_shm)
    elif users:
        yield mps.path_finding(directory, wanted=True)
    yield from mps.user_findings(accounts, users, directory)
