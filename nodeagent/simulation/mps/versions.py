"""What differs between the versions of the MPS programs.

535 and 550 were compared with the real programs (535.261.03, 550.163.01); 555 and later follow
documents and public issues.
"""

from typing import NamedTuple


class Version(NamedTuple):
    """How the programs of one driver branch behave."""

    name: str
    pid_file: bool = True
    server_status: bool = True  # whether it has the command get_server_status
    guards_settings: bool = True  # else any user may change them
    flags: frozenset[str] = frozenset()  # beside -d, -f and -h
    strict_flags: bool = True  # an unknown flag is an error; before, it meant the front-end
    limits_by_uuid: bool = False  # else such a limit clears that of device 0
    starter_is_server: bool = True  # `Starting new server` is logged with the server's pid
    names_forced_shutdown: bool = True  # logs `Force shutting down server`
    quit_tells_status: bool = False  # the front-end that quits ends with the daemon's status
    new_server_lines: bool = False  # the wording of server.log since 580
    binary_version: str = ""  # logged first, where there is one
    contexts: int = 48  # on one device; 60 since CUDA 13.1


_MULTIUSER = frozenset({"-multiuser-server"})

VERSIONS = {
    version.name: version
    for version in (
        Version(
            "535",
            pid_file=False,
            server_status=False,
            guards_settings=False,
            strict_flags=False,
            starter_is_server=False,
            names_forced_shutdown=False,
            quit_tells_status=True,
        ),
        Version("550", strict_flags=False),
        Version("555", flags=_MULTIUSER),
        Version(
            "580",
            flags=_MULTIUSER | {"-M"},
            limits_by_uuid=True,
            new_server_lines=True,
            binary_version="13000",
        ),
        Version(
            "615",
            flags=_MULTIUSER | {"-M", "-v", "-m", "--multiuser", "--daemon", "--foreground"},
            limits_by_uuid=True,
            new_server_lines=True,
            binary_version="13030",
            contexts=60,
        ),
    )
}
