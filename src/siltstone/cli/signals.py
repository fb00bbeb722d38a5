"""Handles Ctrl-C: one line of output, exit code 130, and no JVM left running.

PySpark's own handler calls into the JVM. PySpark's clean-up then waits for the work there or fails with it. So an
interrupt becomes another error on its way up. A command owns its process, so its handler is simple. It ends the child
processes, raises KeyboardInterrupt, and records that it was raised. Spark never commits, so a JVM may end at any point.
"""

import logging
import os
import signal
from typing import Final

from siltstone.spark.jvm import end_children

INTERRUPTED: Final = 130
KIND: Final = "interrupted"
MESSAGE: Final = "Interrupted. The running operation may or may not be done."


class Interrupts:
    """Records whether Ctrl-C was pressed in this process."""

    def __init__(self) -> None:
        self.happened = False

    def watch(self) -> None:
        """Install the handler, unless the parent process set the signal to be ignored.

        Logging of libraries is switched off from now on. A command reports its errors itself, and py4j logs every
        call that an interrupt ends or that finds no JVM.
        """
        logging.disable(logging.CRITICAL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, _number: int, _frame: object) -> None:
        if self.happened:
            os._exit(INTERRUPTED)  # pressed again: the user does not wait for the clean-up
        self.happened = True
        end_children()
        raise KeyboardInterrupt
