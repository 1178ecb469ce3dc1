"""A request's way to a replica and back: call, retry once, accept, answer."""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayError, RayTaskError, WorkerCrashedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from serve_app.http.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    ApiError,
    bad_request,
    is_context_error,
    overloaded,
    timed_out,
    unavailable,
)
from serve_app.http.field_checks import ANSWER_LIMITS
from serve_app.streaming import FAILED_IN_ENGINE, EngineRefusal, Opened, client_events, open_response, refusal_error

logger = logging.getLogger("ray.serve")

DEATHS = (RayActorError, DeploymentUnavailableError, WorkerCrashedError, NodeDiedError, ObjectLostError)
"""The replica is gone, or its node, or with it what it had answered; another one can take the request if the client has
seen nothing of it yet."""

LOOK_EVERY_S = 1.0
"""How often a request that waits for its first content asks whether its replica's engine is stuck."""

PROMPT_FIELDS = ("messages", "input", "prompt")

_ENGINE_DEATH = "EngineDead"

_OF_CONSTRAINT = re.compile(r"grammar|json schema|regex|structural tag", re.IGNORECASE)
_PLACE = re.compile(r'File "([^"\n]{1,256})", line (\d{1,7}), in (\w{1,64})')
MAX_PLACES = 5

GENERATION_ERROR = "GenerationError"
"""Name of vLLM's exception when a request ended with an error inside the engine's loop."""


class Call(Protocol):
    """A call to a replica: its items, and a way to end it early."""

    def __aiter__(self) -> AsyncIterator[Any]: ...

    def cancel(self) -> None: ...


class EngineStuck(Exception):
    """Raised when a request waits for an engine that says nothing, and another replica could take it."""


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """`usable_tokens` is what prompt and answer may take together; `model_tokens` the model's own limit."""

    usable_tokens: int
    model_tokens: int


@dataclass(slots=True)
class Exchange:
    """One client request and the call that serves it now.

    `send` is given the fields, and whether the call before failed with its replica: a dead engine's replica stands
    in the ranking until Serve has noticed, and what was cached there would draw the second call to it too.
    `is_stuck`: whether the replica of the newest call says that its engine is, while another one isn't.
    `is_over`: the answer has come to its own end.
    """

    send: Callable[[dict[str, Any], bool], Call]
    fields: dict[str, Any]
    limits: ContextLimits
    timeout_s: float
    on_retry: Callable[[], None]
    is_stuck: Callable[[], bool] = lambda: False
    started_s: float = field(default_factory=time.monotonic)
    clipped: bool = False
    call: Call | None = None
    is_over: bool = False

    @property
    def left_s(self) -> float:
        return max(0.0, self.started_s + self.timeout_s - time.monotonic())

    def end(self) -> None:
        """The whole answer is here."""
        self.call = None
        self.is_over = True

    def close(self) -> None:
        """End the call in the engine if it is still going on."""
        call, self.call = self.call, None
        if call is not None:
            call.cancel()

    async def open(self) -> Opened:
        """The response with its first content. Raises ApiError."""
        retried = False
        while True:
            try:
                return await self._attempt(retried)
            except EngineRefusal as refusal:
                self.close()
                if self._clip(refusal):
                    continue
                if self._is_bad_constraint(str(refusal.error.get("message"))):
                    raise constraint_error(self._constraint) from None
                if refusal.error.get("code") not in (500, None) or retried:
                    error = refusal_error(refusal, self.limits.usable_tokens, self.limits.model_tokens)
                    raise self._blamed(error) from None
            except EngineStuck:
                self.close()
            except DEATHS:
                self.close()
                if retried:
                    raise unavailable("The replica that served this request is gone.") from None
            except RayTaskError as error:
                self.close()
                if self._is_bad_constraint(type(error).__name__):
                    raise constraint_error(self._constraint) from None
                if not is_engine_death(error) or retried:
                    raise failure(error) from None
            retried = True
            self.on_retry()

    async def _attempt(self, has_failed: bool) -> Opened:
        self.call = self.send(self.fields, has_failed)
        watch = _StuckWatch(self.is_stuck)
        try:
            async with asyncio.timeout(self.left_s) as limit:
                with contextlib.nullcontext() if has_failed else watch.over(limit):
                    return await open_response(aiter(self.call))
        except TimeoutError:
            self.close()
            if watch.has_ended_it:
                raise EngineStuck from None
            raise timed_out(self.timeout_s) from None
        except BackPressureError:
            self.close()
            raise overloaded(1) from None
        except (RayTaskError, *DEATHS):
            raise
        except (RayError, RayServeException) as error:
            self.close()
            raise failure(error) from None
        except BaseException:
            self.close()
            raise

    def _clip(self, refusal: EngineRefusal) -> bool:
        """True once, if asking for fewer tokens may help: the answer then ends where the cache does.

        Only where the cache, not the model, is the limit: beyond the model's own context a client is
        told so, as by OpenAI.
        """
        asked = max(self.fields.get(name) or 0 for name in ANSWER_LIMITS)
        if (
            self.clipped
            or not is_context_error(str(refusal.error.get("message")))
            or not 0 < asked < self.limits.model_tokens
            or self.limits.usable_tokens >= self.limits.model_tokens
        ):
            return False
        self.clipped = True
        self.fields = {name: value for name, value in self.fields.items() if name not in ANSWER_LIMITS}
        return True

    def _blamed(self, error: ApiError) -> ApiError:
        """Where prompt and answer together are too long: the field that asks for most of it. Of a constraint the engine
        says what is wrong, and not where."""
        if error.status == 400 and error.param is None and self._constraint and _OF_CONSTRAINT.search(error.message):
            error.param = self._constraint
        if error.code == CONTEXT_LENGTH_EXCEEDED:
            error.param = next((name for name in PROMPT_FIELDS if name in self.fields), "prompt")
            for name in ANSWER_LIMITS:
                asked = self.fields.get(name) or 0
                if 2 * asked > self.limits.usable_tokens:
                    error.param = name
                    error.message = f"{error.message} `{name}` asks for {asked} of them."
        return error

    @property
    def _constraint(self) -> str | None:
        """The field that binds the answer to a form."""
        text = self.fields.get("text")
        if isinstance(text, dict) and text.get("format") is not None:
            return "text.format"
        return next((name for name in ("response_format", "structured_outputs") if name in self.fields), None)

    def _is_bad_constraint(self, failure_text: str) -> bool:
        """The engine compiles a grammar in its own loop and fails the request without saying why."""
        return self._constraint is not None and (failure_text == FAILED_IN_ENGINE or GENERATION_ERROR in failure_text)

    async def events(self, opened: Opened) -> AsyncIterator[str]:
        """The client's events. Raises ApiError for what goes wrong after the first one."""
        events = client_events(opened, self.limits.usable_tokens, self.limits.model_tokens)
        try:
            while True:
                async with asyncio.timeout(self.left_s):
                    event = await anext(events, None)
                if event is None:
                    self.end()
                    return
                yield event
        except TimeoutError:
            raise timed_out(self.timeout_s) from None
        except ApiError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, a stream that has begun ends with a word about it
            raise failure(error) from None
        finally:
            self.close()


class _StuckWatch:
    """Lets a time limit be over at once when `is_stuck` says so; a timer, since a task for each request costs more."""

    def __init__(self, is_stuck: Callable[[], bool]) -> None:
        self._is_stuck = is_stuck
        self.has_ended_it = False

    @contextlib.contextmanager
    def over(self, limit: asyncio.Timeout) -> Iterator[None]:
        self._look_later(limit)
        try:
            yield
        finally:
            self._timer.cancel()

    def _look_later(self, limit: asyncio.Timeout) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look, limit)

    def _look(self, limit: asyncio.Timeout) -> None:
        if limit.expired():
            return
        if self._is_stuck():
            self.has_ended_it = True
            limit.reschedule(asyncio.get_running_loop().time())
        else:
            self._look_later(limit)


def constraint_error(field: str | None) -> ApiError:
    return bad_request("The engine could not compile this constraint.", field, "invalid_value")


def is_engine_death(error: BaseException) -> bool:
    return _ENGINE_DEATH in type(error).__name__ or _ENGINE_DEATH in str(error)[-2000:]


def where(error: BaseException) -> str:
    """Kinds and places of an error, of a replica's too, and not its message: that may quote the request."""
    kinds = [type(one).__name__ for one in (error, getattr(error, "cause", None)) if isinstance(one, BaseException)]
    places = _PLACE.findall(str(error))[-MAX_PLACES:]
    return ", ".join([*kinds, *(f"{file}:{line} {name}" for file, line, name in places)])


def failure(error: BaseException) -> ApiError:
    """A failure of the serving side, told without its inner details."""
    if isinstance(error, DEATHS) or is_engine_death(error):
        return unavailable("The replica that served this request is gone.")
    logger.error("A request failed: %s", where(error))
    return ApiError(500, "The request failed inside the server.", code="internal_error")
