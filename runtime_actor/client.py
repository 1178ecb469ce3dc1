"""The runtime actor as its neighbours see it: bounded in time, found again after a restart.

Whatever goes wrong on the way is `RuntimeUnavailable`; the caller then works from its last snapshot.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from runtime_actor.actor import find, get_or_create
from runtime_actor.errors import ConfigurationError, MessageError, RuntimeUnavailable
from runtime_actor.messages import ExchangeReply, ExchangeRequest
from runtime_actor.settings import RuntimeSettings

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
MAX_CREATION_BACKOFF_S = 120.0
"""An actor that ends as soon as it is made costs a process's start each time, on the machine that serves."""

RESOLVE_TIMEOUT_S = 30.0
REFUSALS = (ConfigurationError, MessageError)


class RuntimeClient:
    """One per process and event loop.

    After a failure, calls are refused at once until a back-off has passed, so that a request never waits
    for an actor that is known to be away. A dead actor's handle is dropped; the next call after the
    back-off looks the actor up, creates it if it is gone for good, and configures it. One that ends before it
    has been configured is created again ever more rarely (`MAX_CREATION_BACKOFF_S`) and only looked up meanwhile.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        config_version: int,
        resolve: Callable[[dict[str, Any], int], ActorHandle] = get_or_create,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[], ActorHandle] = find,
    ) -> None:
        """`config_version` must grow from one deployment to the next. Raises ConfigurationError."""
        parsed = RuntimeSettings.from_dict(settings)
        self._settings = settings
        self._config_version = config_version
        self._timeout_s = parsed.call_timeout_s
        self._max_horizon = parsed.max_horizon
        self._resolve = resolve
        self._look = look
        self._clock = clock
        self._handle: ActorHandle | None = None
        self._resolving: asyncio.Task[ActorHandle] | None = None
        self._backoff_s = FIRST_BACKOFF_S
        self._retry_at_s = 0.0
        self._creation_backoff_s = FIRST_BACKOFF_S
        self._create_at_s = 0.0
        self._epoch = 0
        self.failures = 0

    # --- calls --------------------------------------------------------------------------------------

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Raises RuntimeUnavailable; MessageError if the actor refuses the request."""
        wire = await self._call("exchange", request.to_wire())
        try:
            reply = ExchangeReply.from_wire(wire)
        except MessageError as error:
            raise self._failed("exchange", error, forget=False) from error
        if reply.epoch < self._epoch:
            self._epoch = 0
            raise self._failed("exchange", "an older incarnation answered", forget=True)
        self._epoch = reply.epoch
        return reply

    async def state(self, tenant: str | None = None) -> dict[str, Any]:
        """GET /runtime/state of a tenant, or (None) of all. Raises RuntimeUnavailable."""
        view: dict[str, Any] = await self._call("state", tenant)
        return view

    async def predict(self, tenant: str, session: str, horizon: int) -> dict[str, Any] | None:
        """None for an unknown session. Raises RuntimeUnavailable, or ConfigurationError for the horizon."""
        if isinstance(horizon, bool) or not isinstance(horizon, int) or not 1 <= horizon <= self._max_horizon:
            raise ConfigurationError(
                f"horizon: {horizon!r} is not allowed; allowed: a whole number from 1 to {self._max_horizon}"
            )
        forecast: dict[str, Any] | None = await self._call("predict", tenant, session, horizon)
        return forecast

    async def configure(self, settings: dict[str, Any], version: int) -> bool:
        """False if a version as new is in force. Raises RuntimeUnavailable or ConfigurationError."""
        parsed = RuntimeSettings.from_dict(settings)
        applied: bool = await self._call("configure", settings, version)
        if version > self._config_version:
            self._settings, self._config_version = settings, version
            self._timeout_s, self._max_horizon = parsed.call_timeout_s, parsed.max_horizon
        return applied

    async def set_policy(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """All settings of the policy after the change. Raises RuntimeUnavailable or ConfigurationError."""
        policy: dict[str, Any] = await self._call("set_policy", name, changes)
        return policy

    # --- the way there ------------------------------------------------------------------------------

    async def _call(self, method: str, *arguments: Any) -> Any:
        if self._clock() < self._retry_at_s:
            raise RuntimeUnavailable(f"{method}: the runtime actor is away, next try in under {MAX_BACKOFF_S:g} s")
        try:
            async with asyncio.timeout(self._timeout_s):
                handle = await self._resolved()
                answer = await getattr(handle, method).remote(*arguments)
        except TimeoutError as error:
            raise self._failed(method, f"no answer within {self._timeout_s:g} s", forget=False) from error
        except RayTaskError as error:
            if isinstance(error, REFUSALS):
                raise _refusal(error) from error
            raise self._failed(method, error, forget=False) from error
        except ActorUnavailableError as error:
            raise self._failed(method, error, forget=False) from error
        except (ActorDiedError, RayError, OSError, RuntimeError, ValueError, AttributeError) as error:
            # AttributeError: an actor of that name without the method, left by another version.
            raise self._failed(method, error, forget=True) from error
        self._backoff_s = FIRST_BACKOFF_S
        self._retry_at_s = 0.0
        return answer

    def _failed(self, method: str, reason: object, forget: bool) -> RuntimeUnavailable:
        """Start or lengthen the back-off; `forget` when the handle may never work again."""
        self.failures += 1
        if forget:
            self._handle = None
        self._retry_at_s = self._clock() + self._backoff_s * random.uniform(0.5, 1.0)
        self._backoff_s = min(self._backoff_s * 2.0, MAX_BACKOFF_S)
        return RuntimeUnavailable(f"{method}: {reason}")

    async def _resolved(self) -> ActorHandle:
        """The handle; a look-up under way is shared and outlives the call that began it."""
        if self._handle is not None:
            return self._handle
        if self._resolving is None or self._resolving.done():
            self._resolving = asyncio.get_running_loop().create_task(self._look_up())
            self._resolving.add_done_callback(_retrieve)
        return await asyncio.shield(self._resolving)

    async def _look_up(self) -> ActorHandle:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            if self._clock() < self._create_at_s:
                handle = await asyncio.to_thread(self._look)
            else:
                handle = await asyncio.to_thread(self._resolve, self._settings, self._config_version)
            try:
                await handle.configure.remote(self._settings, self._config_version)
            except ActorDiedError:
                self._create_at_s = self._clock() + self._creation_backoff_s * random.uniform(0.5, 1.0)
                self._creation_backoff_s = min(self._creation_backoff_s * 2.0, MAX_CREATION_BACKOFF_S)
                raise
            except RayTaskError as error:
                if not isinstance(error, ConfigurationError):
                    raise
                # One of other code, from before a redeploy; better than none.
                logger.error("The runtime actor refused these settings and keeps its own: %s", _refusal(error))
        self._creation_backoff_s = FIRST_BACKOFF_S
        self._create_at_s = 0.0
        self._handle = handle
        return handle


def _refusal(error: Exception) -> Exception:
    """The plain error behind Ray's wrapper, without the remote traceback in its text."""
    cause = getattr(error, "cause", error)
    kind = next(kind for kind in REFUSALS if isinstance(error, kind))
    return kind(str(cause))


def _retrieve(task: asyncio.Task[ActorHandle]) -> None:
    """Take a failed look-up's error, which every waiting call has seen or timed out on."""
    if not task.cancelled():
        task.exception()
