"""SIGTERM and SIGHUP end the demo as Ctrl-C does: the server gets back the policy that it had."""

from __future__ import annotations

import signal
from types import FrameType


class StopSignal:
    """Hands SIGTERM and SIGHUP on as SIGINT, which asyncio turns into cancelled tasks, and remembers which it was."""

    def __init__(self) -> None:
        self._number = signal.SIGINT

    @property
    def exit_code(self) -> int:
        """The shell's: 128 and the signal's number."""
        return 128 + self._number

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Under nohup the hang-up is ignored, and stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._number = signal.Signals(number)
        # A second one must not break off what the first has begun.
        for other in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        # A shell's background job is started with SIGINT ignored.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)
