"""The program `nodeagent`, also as `python -m nodeagent`."""

import gc
import signal
import sys


def main() -> int:
    """Run the command line of this process; gives its exit code.

    A SIGTERM that comes while the agent is still being imported waits until the agent can end
    well: for the init of a container the kernel would drop it, for others it would be a failure.
    It arrives at once where the command turns out to be another one.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    gc.disable()  # looking through what is imported for garbage takes 10 ms
    from nodeagent.cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
