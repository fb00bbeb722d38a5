"""Where a process runs: with whom it shares file locks, and with whom process ids.

A host name is for people: two machines may have the same one, and containers made from one image often do. A process id means
something only inside one space of ids: every container may have a process 1.
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
    """Return what all processes that see each other's file locks have in common, and those of another machine do not.

    That is the running kernel: containers share it, and a machine that was started anew cannot see who died with it.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode():x}"


@cache
def installation() -> str:
    """Return what stays the same when this machine is started anew; empty if nothing tells that.

    It is the system's own id with the host name. Both may be copied with an image, so whoever can ask the lease asks it first.
    """
    for path in MACHINE_IDS:
        try:
            found = path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return _digest(found, socket.gethostname())
    return ""


@cache
def process_space() -> str:
    """Return what all processes that see each other's process ids have in common, and no others."""
    # psutil knows neither the namespace of process ids nor, above, the id of the boot.
    try:
        return _digest(machine(), str(Path("/proc/self/ns/pid").stat().st_ino))
    except OSError:
        return _digest(machine())


def process_name() -> str:
    """Return a name that no other process has while this one lives, wherever it runs; for drafts in folders that are shared."""
    return f"{process_space()[:12]}-{os.getpid()}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(("siltstone", *parts)).encode()).hexdigest()[:_DIGITS]
