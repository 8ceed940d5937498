"""The programs of MPS."""

from nodeagent.mps.processes import CONTROL
from nodeagent.structs import Struct


class Programs(Struct, frozen=True):
    """The programs of MPS.

    `control` is the program with leading arguments, if any; `path` is its PATH, in which it looks
    for the server (distributions put that into /usr/sbin); `library_path` says where libcuda is,
    if not where the loader looks.
    """

    control: tuple[str, ...] = (CONTROL,)
    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    library_path: str = ""

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
