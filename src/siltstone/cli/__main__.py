"""Entry point of the `silt` process. It starts and ends quickly, because a person waits for both."""

import atexit
import gc
import os
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command of this process and exit with its exit code."""
    gc.disable()  # imports create no garbage
    if "SPARK_REMOTE" not in os.environ:  # a parent with a Connect session has set the mode for its own process
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    from siltstone.cli.app import main

    gc.enable()
    leave(main())


def leave(code: int) -> NoReturn:
    """Run the registered exit functions, such as the release of a Spark session, and end the process.

    Python's teardown of all modules is skipped, because its delay is noticeable at a shell, above all with Spark's
    client.
    """
    atexit._run_exitfuncs()  # noqa: SLF001
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
