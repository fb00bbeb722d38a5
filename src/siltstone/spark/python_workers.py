"""The Python processes of a Spark server. Spark starts a daemon for every session that runs Python, and never ends it.

A server that outlives its sessions would accumulate one daemon, of some 50 MB, for every command. A caller that knows that no
session is left ends them. Spark restarts a daemon if a session still needs it.

The processes are found in ``/proc``. On systems without it nothing is ended; the processes end with the server.
"""

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Final

DAEMON: Final = b"pyspark.daemon"
_PROCESSES: Final = Path("/proc")


def end_python_workers(server: int) -> int:
    """End the Python daemons and workers below a server's process; return their number."""
    daemons = python_daemons(server)
    for process in daemons:
        with suppress(ProcessLookupError):  # ended with its parent
            os.kill(process, signal.SIGTERM)
    return len(daemons)


def python_daemons(server: int) -> list[int]:
    """Return the Python daemons below a server's process, and their workers, which have the same name."""
    return [process for process in _below(server) if DAEMON in _arguments(process)]


def java_processes(server: int) -> list[int]:
    """Return the JVMs below a server's process."""
    return [process for process in _below(server) if _arguments(process)[:1] and _is_java(_arguments(process)[0])]


def _is_java(program: bytes) -> bool:
    return program.rpartition(b"/")[2] == b"java"


def _below(root: int) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for folder in _PROCESSES.glob("[0-9]*"):
        with suppress(OSError, ValueError):  # the process has ended
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            children[int(after_name[1])].append(int(folder.name))
    processes = [root]
    for process in processes:
        processes += children[process]
    return processes[1:]


def _arguments(process: int) -> list[bytes]:
    try:
        return (_PROCESSES / str(process) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
