"""The programs of MPS."""

from nodeagent.mps.processes import CONTROL, SERVER
from nodeagent.programs import PATH, require_own
from nodeagent.structs import Struct


class Programs(Struct, frozen=True):
    """The programs of MPS.

    `control` is the program with leading arguments, if any; `path` is its PATH, in which it looks
    for the server (distributions put that into /usr/sbin); `library_path` says where libcuda is,
    if not where the loader looks. `stand_ins`: they are a simulated node's own, beside its state.
    """

    control: tuple[str, ...] = (CONTROL,)
    path: str = PATH
    library_path: str = ""
    stand_ins: bool = False

    def require_own(self) -> None:
        """Raise PermissionError where other users could replace them."""
        for command in () if self.stand_ins else (self.control, (SERVER,)):
            require_own(command, self.path)

    def environment(self, pipe_directory: str, log_directory: str) -> dict[str, str]:
        """All that a program of the daemon at this place has in its environment."""
        environment = {
            "CUDA_MPS_LOG_DIRECTORY": log_directory,
            "CUDA_MPS_PIPE_DIRECTORY": pipe_directory,
            "LC_ALL": "C",
            "PATH": self.path,
        }
        if self.library_path:
            environment["LD_LIBRARY_PATH"] = self.library_path
        return environment
