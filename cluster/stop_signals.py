"""SIGINT, SIGTERM and SIGHUP: told to the user at once, whatever the main thread is doing, and obeyed once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MESSAGE = "\nserve: stopping, this may take a minute"


class StopRequested(BaseException):
    """Raised in the main thread after one of the signals, and by nothing else."""


class StopSignals:
    """Python runs a handler once the main thread is back from native code, which can be most of a minute later.

    The byte that it writes to the wakeup descriptor comes at once: a thread reads it and prints.
    """

    def __init__(self) -> None:
        self._raised = False
        self._told = threading.Event()
        self._printed = threading.Event()

    def install(self) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._tell, args=(read_end,), name="stop-signals", daemon=True).start()
        self.take_over()

    def take_over(self) -> None:
        """Make the handlers ours; Ray's start puts its own there."""
        for number in SIGNALS:
            signal.signal(number, self._raise)

    def check(self) -> None:
        """Raises StopRequested if a signal came while another handler, or code that drops exceptions, had it."""
        if self._told.is_set():
            self._raised = True
            raise StopRequested

    def ignore(self) -> None:
        """From now on: a second Ctrl-C must not leave processes behind."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def wait(self) -> None:
        """Returns only by raising StopRequested."""
        self._told.wait()
        self.check()

    def wait_until_printed(self, timeout_s: float = 1.0) -> bool:
        """So that what is printed next comes after it."""
        return self._printed.wait(timeout_s)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if not self._raised:
            self._raised = True
            raise StopRequested

    def _tell(self, read_end: int) -> None:
        while numbers := os.read(read_end, 64):
            if set(SIGNALS).intersection(numbers):
                self._told.set()
                print(MESSAGE, flush=True)
                self._printed.set()
                return
