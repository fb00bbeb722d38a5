"""The memory of the machine or of the control group of this process."""

import os
from contextlib import suppress
from pathlib import Path

from siltstone.model.units import BYTES_PER_MB


def machine_memory_mb() -> int:
    """Return the memory that this process may use: the machine's, or its control group's if that is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total // BYTES_PER_MB
