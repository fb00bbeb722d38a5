"""Identity of the host: which processes share file locks, and which share process ids.

A host name is for display only. Two machines may have the same one, and containers made from one image often do. A
process id is unique only inside one id space: every container may have a process 1.
"""

import hashlib
import os
import socket
import uuid
from functools import cache
from pathlib import Path
from typing import Final

MACHINE_IDS: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_DIGITS: Final = 32


@cache
def machine() -> str:
    """Return the id of all processes that see each other's file locks. It differs on other machines.

    It identifies the running kernel. Containers share it. It changes with a reboot, because locks of the old kernel are gone.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode():x}"


@cache
def installation() -> str:
    """Return an id that survives a reboot of this machine; empty if the system has none.

    It combines the system's own id with the host name. Both may be copied with an image, so a caller that can check the lease
    checks it first.
    """
    for path in MACHINE_IDS:
        try:
            machine_id = path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if machine_id:
            return _digest(machine_id, socket.gethostname())
    return ""


@cache
def process_space() -> str:
    """Return an id that is the same for exactly the processes that see each other's process ids."""
    # psutil knows neither the namespace of process ids nor, above, the id of the boot.
    try:
        return _digest(machine(), str(Path("/proc/self/ns/pid").stat().st_ino))
    except OSError:
        return _digest(machine())


def process_name() -> str:
    """Return a name that is unique among all live processes on all hosts, for drafts in shared folders."""
    return f"{process_space()[:12]}-{os.getpid()}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(("siltstone", *parts)).encode()).hexdigest()[:_DIGITS]
