"""The Python processes of a Spark server. Spark starts a daemon for every session that runs Python, and never ends it.

A server that outlives its sessions would gather one of them, of some 50 MB, for every command. The server's owner ends them
when no session is left. Spark starts a new daemon where a session still needs one that was ended.
"""

import os
import signal
from contextlib import suppress
from typing import Final

DAEMON: Final = "pyspark.daemon"


def end_python_workers(server: int) -> int:
    """End the Python daemons and workers below a server's process; return their number."""
    daemons = python_daemons(server)
    for process in daemons:
        with suppress(ProcessLookupError):  # ended with its parent
            os.kill(process, signal.SIGTERM)
    return len(daemons)


def python_daemons(server: int) -> list[int]:
    """Return the Python daemons below a server's process, and their workers, which have the same name."""
    return [process for process, arguments in _descendants(server).items() if DAEMON in arguments]


def java_processes(server: int) -> list[int]:
    """Return the JVMs below a server's process."""
    return [process for process, arguments in _descendants(server).items() if arguments[0].rpartition("/")[2] == "java"]


def _descendants(server: int) -> dict[int, list[str]]:
    """Return the arguments of all processes below a server's, by process id."""
    import psutil  # here, because clients of a server import this module and need no psutil

    arguments: dict[int, list[str]] = {}
    with suppress(psutil.Error):
        for process in psutil.Process(server).children(recursive=True):
            with suppress(psutil.Error):  # it has ended
                arguments[process.pid] = process.cmdline() or [""]
    return arguments
