"""Makes the parts that run MPS from the settings, for the agent and for one-shot commands alike,
and looks up the users that plans and claims name.
"""

import os
import pwd
import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from nodeagent.gpu.original_settings import FILE_NAME
from nodeagent.mps.context import START_TIMEOUT, Check, MpsContext
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.launch.child import ChildLauncher, can_mount_own_shm
from nodeagent.mps.launch.launcher import Launcher, StartError
from nodeagent.mps.launch.probing import Probe, probe
from nodeagent.mps.launch.service import ServiceLauncher
from nodeagent.mps.lifecycle.model import Report
from nodeagent.mps.programs import Programs
from nodeagent.plan.desired import PlanDocument
from nodeagent.plan.shares import ANY_USER, Account, Host, user_ids
from nodeagent.settings import MpsSettings, Settings
from nodeagent.structs import Struct

_SYSTEMD_RUNS = Path("/run/systemd/system")  # as sd_booted(3) says
_IN_A_POD = "KUBERNETES_SERVICE_HOST"
_PROBES = "probes"  # the folder below run.dir in which programs are tried out
_SERVICE_DEADLINE = 15.0  # seconds for systemd to start a unit


class MpsPlaces(Struct, frozen=True):
    """The paths and programs of MPS. `memory` is the file with the original settings of devices.
    `simulated`: the programs are stand-ins.
    """

    run_dir: Path
    cdi_dir: Path
    memory: Path
    programs: Programs
    simulated: bool = False


def places_of(settings: Settings) -> MpsPlaces:
    """The places that the settings name, for the machine's own GPUs."""
    return MpsPlaces(
        run_dir=settings.run.dir.absolute(),
        cdi_dir=settings.cdi.dir,
        memory=settings.state.dir / FILE_NAME,
        programs=Programs(
            control=settings.mps.control,
            path=settings.mps.path,
            library_path=settings.mps.library_path or "",
        ),
    )


def make_fleet(
    settings: MpsSettings,
    places: MpsPlaces,
    *,
    check: Check,
    report: Callable[[str, Report], None],
    changed: Callable[[], None],
) -> Fleet:
    """The fleet; the caller enters and leaves it."""
    return Fleet(
        MpsContext(
            run_dir=places.run_dir,
            programs=places.programs,
            launcher=_launcher(settings, places),
            settings=settings,
            check=check,
            report=report,
            changed=changed,
            jitter=random.SystemRandom().random,
            private_shm=has_private_shm(settings, simulated=places.simulated),
        )
    )


def host_for(settings: MpsSettings) -> Callable[[PlanDocument], Host]:
    """Looks up the users that a document names; may block."""
    return lambda document: Host(settings.user, accounts_for(document, settings.user))


def longest_step(settings: MpsSettings) -> float:
    """Seconds that the start or the end of a daemon may take when nothing goes well; rather more
    than less, since an agent that takes longer is replaced as one that is stuck.
    """
    answer = settings.answer_deadline
    ending = settings.quit_deadline + 4 * (settings.kill_deadline + answer + settings.grace)
    return max(START_TIMEOUT + answer, ending)


def has_private_shm(settings: MpsSettings, *, simulated: bool) -> bool:
    """Whether each device's daemon and clients have a /dev/shm of their own."""
    if settings.shm != "auto":
        return settings.shm == "device"
    by_systemd = launch_of(settings, simulated=simulated) != "child"
    return _IN_A_POD in os.environ and (by_systemd or can_mount_own_shm())


def launch_of(settings: MpsSettings, *, simulated: bool) -> str:
    """What daemons are: `child`, `systemd` or `hostSystemd`."""
    if settings.launch != "auto":
        return settings.launch
    beside_systemd = _SYSTEMD_RUNS.is_dir() and _IN_A_POD not in os.environ
    return "systemd" if beside_systemd and not simulated else "child"


def _launcher(settings: MpsSettings, places: MpsPlaces) -> Launcher:
    programs, way = places.programs, launch_of(settings, simulated=places.simulated)

    async def find_flag() -> str:
        scratch = places.run_dir / _PROBES
        found = await probe(programs, scratch=scratch, deadline=settings.answer_deadline)
        if found.multi_user_flag is None:
            raise _not_known(found)
        return found.multi_user_flag

    if way == "child":
        return ChildLauncher(programs, find_flag=find_flag)
    return ServiceLauncher(
        programs, host=way == "hostSystemd", deadline=_SERVICE_DEADLINE, find_flag=find_flag
    )


def _not_known(found: Probe) -> StartError:
    """Which is no lack of the driver: another trial may find the flag."""
    if os.geteuid() == 0:
        why = "; ".join(problem.message for problem in found.problems)
        remedy = "; ".join(problem.remedy for problem in found.problems if problem.remedy)
    else:
        why = "only root can find out"
        remedy = "run the agent as root, or name one user in the plan"
    return StartError.of("multiUserUnknown", why=why, mend=remedy)


# --- users ----------------------------------------------------------------------------------------


_MAX_ID = 2**32 - 2  # the number above means "no change" to the kernel


def accounts_for(document: PlanDocument, default_user: str) -> Mapping[str, Account]:
    """Look up each `user` in the document, and the default, as `accounts_of` does."""
    named = {mps.user for entry in document.entries for mps in entry.mps_entries() if mps.user}
    return accounts_of({default_user, *named})


def accounts_of(users: Collection[str]) -> Mapping[str, Account]:
    """Look up each of the `users`, by its text; unknown ones are left out. May ask a directory
    service (LDAP), and block for as long as that takes.

    `uid:gid` is taken at its word and has no further groups. A uid alone has the group and the
    further groups that its user has, or its own number as group where there is no such user.
    """
    found = {user: _account(user) for user in sorted(users)}
    return {user: account for user, account in found.items() if account is not None}


def _account(user: str) -> Account | None:
    if user == ANY_USER:  # a word of the plan's; whom such a server runs as, the plan knows
        return None
    ids = user_ids(user)
    if ids is None:
        return _entry(user)
    if max(ids) > _MAX_ID:
        return None
    return (None if ":" in user else _entry(ids[0])) or Account(*ids)


def _entry(user: str | int) -> Account | None:
    """Look the user up in the user database; None when it has no such user."""
    try:
        entry = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except (KeyError, ValueError):  # ValueError: a zero byte in the name
        return None
    # In order, because a daemon whose groups differ has to be started anew.
    groups = sorted(set(os.getgrouplist(entry.pw_name, entry.pw_gid)) - {entry.pw_gid})
    return Account(entry.pw_uid, entry.pw_gid, tuple(groups))
