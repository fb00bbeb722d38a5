"""Ctrl-C: one line, exit code 130, and no JVM left behind.

PySpark's own handler calls into the JVM, and PySpark's clean-up then waits for whatever was running there or fails with
it, so an interrupt turns into some other error on its way up. A command owns its process and can do the plain thing:
end the children, raise KeyboardInterrupt, and remember that it was raised. Spark never commits, so a JVM may end anywhere.
"""

import logging
import os
import signal
from typing import Final

from siltstone.spark.jvm import end_children

INTERRUPTED: Final = 130
KIND: Final = "interrupted"
MESSAGE: Final = "Interrupted; what was under way may or may not be done."


class Interrupts:
    """Whether somebody pressed Ctrl-C in this process."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.happened = False

    def watch(self) -> None:
        """Take the signal over, unless whoever started this process wanted it ignored.

        Libraries may not log from now on: a command says all it has to say itself, and py4j logs every call that an
        interrupt ends or that meets no JVM.
        """
        logging.disable(logging.CRITICAL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, _number: int, _frame: object) -> None:
        if self.happened:
            os._exit(INTERRUPTED)  # pressed again: whoever did it will not wait for the way out
        self.happened = True
        end_children()
        raise KeyboardInterrupt
