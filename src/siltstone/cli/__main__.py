"""The `silt` command as a process: quick to start and quick to end, because a person waits for both."""

import atexit
import gc
import os
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command that this process was started for, and end with its exit code."""
    gc.disable()  # nothing of what is imported is garbage
    from siltstone.cli.app import main

    gc.enable()
    leave(main())


def leave(code: int) -> NoReturn:
    """End the process as soon as what was registered for its end is done, as letting go of a Spark session.

    Taking all modules apart afterwards, as Python does, is felt at a shell, above all with Spark's client.
    """
    atexit._run_exitfuncs()  # noqa: SLF001
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
