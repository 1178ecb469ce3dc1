"""Ready means: as many replicas as there should be have answered a request and report to the runtime."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

from cluster.errors import LaunchError

REQUEST_TIMEOUT_S = 10.0
PAUSE_S = 0.2


def wait_until_ready(url: str, replicas: int, timeout_s: float, progress: Callable[[int, int], None]) -> None:
    """Ask the gateway until it knows of `replicas` replicas. No request of its own enters the statistics.

    Raises:
        LaunchError: `timeout_s` is over; names the last answer.
    """
    last = "no answer"
    deadline_s = time.monotonic() + timeout_s
    with httpx.Client(base_url=url, timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        while True:
            try:
                response = client.get("/readyz")
                last = f"{response.status_code} {response.text[:200]}"
                ready = int(response.json()["replicas"]) if response.status_code == 200 else 0
            except (httpx.HTTPError, ValueError, KeyError) as error:
                last, ready = f"{type(error).__name__}: {error}", 0
            progress(ready, replicas)
            if ready >= replicas:
                return
            if time.monotonic() >= deadline_s:
                break
            time.sleep(PAUSE_S)
    raise LaunchError(f"fewer than {replicas} replicas were ready within {timeout_s:.0f} s (last answer: {last})")
