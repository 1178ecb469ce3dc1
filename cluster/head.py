"""Ray's head process (its GCS) on one machine: what it knows is kept in files, and it is started again when it ends.

Without, its end is the cluster's. Replicas, gateways and the actor go on without it; what waits for it is starting
processes and looking actors up.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ray._private.node import Node
from ray._private.ray_constants import PROCESS_TYPE_GCS_SERVER

logger = logging.getLogger(__name__)

PERIOD_S = 0.25
MAX_STARTS = 5
WITHIN_S = 60.0
"""A head that ends five times in a minute won't stay: it is left, and Ray ends its workers after another minute."""

STOP_TIMEOUT_S = 10.0


class HeadFiles:
    """Where a cluster's head keeps what it knows: a folder of its own, gone with the cluster."""

    def __init__(self) -> None:
        self._path = tempfile.mkdtemp(prefix="agent-runtime-head-")

    @property
    def system_config(self) -> dict[str, Any]:
        """For `ray.init`: Ray's embedded store, which its 2.60 calls alpha."""
        return {"gcs_storage": "rocksdb", "gcs_storage_path": self._path}

    def remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


class HeadWatch:
    """A thread that calls `restart` when `has_ended`; `stop` before the head is ended on purpose."""

    def __init__(
        self,
        has_ended: Callable[[], bool],
        restart: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._has_ended = has_ended
        self._restart = restart
        self._clock = clock
        self._starts_s: deque[float] = deque(maxlen=MAX_STARTS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="head-watch", daemon=True)

    @classmethod
    def of(cls, node: Node) -> HeadWatch:
        def has_ended() -> bool:
            return any(info.process.poll() is not None for info in node.all_processes.get(PROCESS_TYPE_GCS_SERVER, ()))

        def restart() -> None:
            if PROCESS_TYPE_GCS_SERVER in node.all_processes:
                node.kill_gcs_server(check_alive=False)
            node.start_gcs_server()

        return cls(has_ended, restart)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def look(self) -> bool:
        """Once; False when it isn't worth looking again."""
        if not self._has_ended():
            return True
        now_s = self._clock()
        if len(self._starts_s) == MAX_STARTS and now_s - self._starts_s[0] < WITHIN_S:
            logger.error("Ray's head has ended %d times within %.0f s and is left", MAX_STARTS + 1, WITHIN_S)
            return False
        self._starts_s.append(now_s)
        logger.warning("Ray's head has ended and is started again")
        try:
            self._restart()
        except Exception:  # whatever Ray raises, the next look tries again
            logger.exception("Ray's head did not start")
        return True

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            if not self.look():
                return
