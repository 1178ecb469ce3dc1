"""Tool results shared through the runtime: a decorator for plain and for async functions.

    memo = Memo("http://127.0.0.1:8000", api_key="...")

    @memo.tool("search", version="3")
    def search(query: str) -> list[str]: ...

    with memo.session("task-17"):
        search("a")

The runtime's configuration says which tools may be memoized; any other is run as if nothing were here, and so
is every tool while the runtime can't be reached. Of callers with the same arguments, in whatever process, one
runs the tool and the others get its result. What a tool raises is never kept. Within a session the runtime learns
which call follows which; one that it expects is run ahead in the background where the tool's decorator (`ahead=True`)
and the runtime's configuration both allow it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

import httpx

from agent_client.ahead import AT_ONCE, AsyncAhead, Offer, PlainAhead

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

WAIT_S = 20.0
"""How long one question waits for a run under way; then it is asked again."""
EXTRA_S = 10.0
MAX_PAUSE_S = 1.0
MAX_WAITS = 180
"""An hour of waiting for one run: then the caller runs the tool itself."""

UNREACHABLE = {"outcome": "run", "ticket": None}
SESSION: contextvars.ContextVar[str | None] = contextvars.ContextVar("agent_runtime_session", default=None)
KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Found:
    """`is_hit`: `value` is the result. Else the tool is to be run; with a `ticket` its result may be kept."""

    is_hit: bool
    value: Any = None
    ticket: str | None = None


class Memo:
    """Connections to one runtime. Thread-safe; the async functions that it wraps must share one event loop. `session`
    is the one of calls outside of `with memo.session(...)`; `ahead_at_once` bounds what is run ahead at a time, threads
    and tasks each (0: nothing)."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        wait_s: float = WAIT_S,
        transport: httpx.BaseTransport | None = None,
        async_transport: httpx.AsyncBaseTransport | None = None,
        session: str | None = None,
        ahead_at_once: int = AT_ONCE,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        options: dict[str, Any] = {"base_url": base_url, "headers": headers, "timeout": wait_s + EXTRA_S}
        self._wait_s = wait_s
        self._client = httpx.Client(transport=transport, **options)
        self._async_client = httpx.AsyncClient(transport=async_transport, **options)
        self._session = session
        self.plain_ahead = PlainAhead(self, ahead_at_once)
        self.async_ahead = AsyncAhead(self, ahead_at_once)

    @contextlib.contextmanager
    def session(self, name: str) -> Iterator[None]:
        """Calls within it, of this thread or task, belong to that session."""
        token = SESSION.set(name)
        try:
            yield
        finally:
            SESSION.reset(token)

    def tool(
        self, name: str | None = None, version: str | None = None, ahead: bool = False
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Memoize a function under `name` (its own by default). `version` is to change with what it does. `ahead`: it
        changes nothing anywhere and may be run in the background, a plain function on another thread."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            tool = name or function.__name__
            signature = inspect.signature(function)
            if inspect.iscoroutinefunction(function):
                run = cast(Callable[P, Awaitable[Any]], function)
                if ahead and _takes_names(signature):
                    self.async_ahead.offers[tool] = Offer(version, lambda told: cast(Any, run)(**told))

                @functools.wraps(function)
                async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
                    arguments = _told(signature, args, kwargs)
                    return await self.acall(tool, arguments, lambda: run(*args, **kwargs), version)

                return cast(Callable[P, R], asynchronous)

            if ahead and _takes_names(signature):
                self.plain_ahead.offers[tool] = Offer(version, lambda told: cast(Any, function)(**told))

            @functools.wraps(function)
            def plain(*args: P.args, **kwargs: P.kwargs) -> R:
                return self.call(tool, _told(signature, args, kwargs), lambda: function(*args, **kwargs), version)

            return plain

        return decorate

    # --- plain ------------------------------------------------------------------------------------------

    def call(self, tool: str, arguments: dict[str, Any] | None, run: Callable[[], R], version: str | None = None) -> R:
        """The result of `run`, its own or that of an earlier call. `arguments` None: not to be memoized."""
        found = self._look(tool, arguments, version) if arguments is not None else Found(False)
        if found.is_hit:
            return cast(R, found.value)
        try:
            result = run()
        except BaseException:
            self._finish(found.ticket, None)
            raise
        self._finish(found.ticket, _kept(result))
        return result

    def invalidate(self, tool: str) -> int:
        """Drop what is kept of a tool. Raises httpx.HTTPError if it could not be done now."""
        answer = self._client.post("/runtime/memo/invalidate", json={"tool": tool})
        answer.raise_for_status()
        return int(answer.json()["invalidated"])

    def _look(self, tool: str, arguments: dict[str, Any], version: str | None) -> Found:
        for _ in range(MAX_WAITS):
            answer = self._post("lookup", self._question(tool, arguments, version))
            found = _found(answer)
            if found is not None:
                self.plain_ahead.take(answer)
                return found
            time.sleep(_pause_s(answer))
        return Found(False)

    def _finish(self, ticket: str | None, kept: _Kept | None) -> None:
        if ticket is not None:
            self.plain_ahead.take(self._post(*_report(ticket, kept)))

    def _post(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return _answer(self._client.post(f"/runtime/memo/{what}", json=body))
        except (httpx.HTTPError, ValueError) as error:
            logger.warning("memo %s: %r; the tool is run", what, error)
            return UNREACHABLE

    def ticket_ahead(self, tool: str, version: str | None, arguments: dict[str, Any]) -> str | None:
        return _ticket(self._quietly("lookup", _question_ahead(tool, arguments, version)))

    def end_ahead(self, ticket: str, offer: Offer, result: Any, failed: bool) -> None:
        self._quietly(*_report(ticket, None if failed or not offer.keep(result) else _kept(result)))

    def _quietly(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return _answer(self._client.post(f"/runtime/memo/{what}", json=body))
        except (httpx.HTTPError, ValueError, RuntimeError) as error:
            logger.debug("memo %s ahead: %r", what, error)
            return {}

    # --- async ------------------------------------------------------------------------------------------

    async def acall(
        self,
        tool: str,
        arguments: dict[str, Any] | None,
        run: Callable[[], Awaitable[R]],
        version: str | None = None,
        keep: Callable[[R], bool] = lambda result: True,
    ) -> R:
        """As `call`; a result that `keep` refuses is returned and not kept."""
        found = await self._alook(tool, arguments, version) if arguments is not None else Found(False)
        if found.is_hit:
            return cast(R, found.value)
        try:
            result = await run()
        except BaseException:
            await self._afinish(found.ticket, None)
            raise
        await self._afinish(found.ticket, _kept(result) if keep(result) else None)
        return result

    async def _alook(self, tool: str, arguments: dict[str, Any], version: str | None) -> Found:
        for _ in range(MAX_WAITS):
            answer = await self._apost("lookup", self._question(tool, arguments, version))
            found = _found(answer)
            if found is not None:
                self._take_ahead(answer)
                return found
            await asyncio.sleep(_pause_s(answer))
        return Found(False)

    async def _afinish(self, ticket: str | None, kept: _Kept | None) -> None:
        if ticket is not None:
            self._take_ahead(await self._apost(*_report(ticket, kept)))

    async def _apost(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return _answer(await self._async_client.post(f"/runtime/memo/{what}", json=body))
        except (httpx.HTTPError, ValueError) as error:
            logger.warning("memo %s: %r; the tool is run", what, error)
            return UNREACHABLE

    async def aticket_ahead(self, tool: str, version: str | None, arguments: dict[str, Any]) -> str | None:
        return _ticket(await self._aquietly("lookup", _question_ahead(tool, arguments, version)))

    async def aend_ahead(self, ticket: str, offer: Offer, result: Any, failed: bool) -> None:
        await self._aquietly(*_report(ticket, None if failed or not offer.keep(result) else _kept(result)))

    async def _aquietly(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return _answer(await self._async_client.post(f"/runtime/memo/{what}", json=body))
        except (httpx.HTTPError, ValueError, RuntimeError) as error:
            logger.debug("memo %s ahead: %r", what, error)
            return {}

    def _take_ahead(self, answer: dict[str, Any]) -> None:
        self.plain_ahead.take(answer)
        self.async_ahead.take(answer)

    def _question(self, tool: str, arguments: dict[str, Any], version: str | None) -> dict[str, Any]:
        body = {"tool": tool, "version": version, "arguments": arguments, "wait_s": self._wait_s}
        session = SESSION.get() or self._session
        return body if session is None else {**body, "session_id": session}

    # --- the whole --------------------------------------------------------------------------------------

    def close(self) -> None:
        self.plain_ahead.close()
        self._client.close()

    async def aclose(self) -> None:
        await self.async_ahead.aclose()
        self.close()
        await self._async_client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@dataclass(frozen=True, slots=True)
class _Kept:
    value: Any


def _kept(result: Any) -> _Kept | None:
    """None if a later caller would not get the same: a tuple would come back as a list."""
    try:
        same = json.loads(json.dumps(result, allow_nan=False)) == result
    except (TypeError, ValueError, RecursionError):
        return None
    return _Kept(result) if same and not _has_tuple(result) else None


def _has_tuple(value: Any) -> bool:
    if isinstance(value, dict):
        return any(not isinstance(key, str) or _has_tuple(item) for key, item in value.items())
    return isinstance(value, tuple) or (isinstance(value, list) and any(map(_has_tuple, value)))


def _told(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments by name, defaults filled in, so that each way to call it is the same call; None if one of
    them isn't JSON."""
    try:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        told = {name: list(value) if isinstance(value, tuple) else value for name, value in bound.arguments.items()}
        json.dumps(told, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return told


def _takes_names(signature: inspect.Signature) -> bool:
    """Whether all its arguments can be given by name: those are all that a prediction has."""
    return all(parameter.kind in KEYWORDS for parameter in signature.parameters.values())


def _question_ahead(tool: str, arguments: dict[str, Any], version: str | None) -> dict[str, Any]:
    return {"tool": tool, "version": version, "arguments": arguments, "ahead": True}


def _ticket(answer: dict[str, Any]) -> str | None:
    """None: it is not to be run."""
    ticket = answer.get("ticket") if answer.get("outcome") == "run" else None
    return ticket if isinstance(ticket, str) else None


def _report(ticket: str, kept: _Kept | None) -> tuple[str, dict[str, Any]]:
    return ("release", {"ticket": ticket}) if kept is None else ("store", {"ticket": ticket, "value": kept.value})


def _answer(response: httpx.Response) -> dict[str, Any]:
    """Raises httpx.HTTPStatusError, or ValueError for what isn't an object."""
    response.raise_for_status()
    answer = response.json()
    if not isinstance(answer, dict):
        raise ValueError("not an object")
    return answer


def _pause_s(answer: dict[str, Any]) -> float:
    """Before the next question: 0 after one that waited already."""
    asked = answer.get("retry_after_s")
    return min(max(float(asked), 0.0), MAX_PAUSE_S) if isinstance(asked, (int, float)) else MAX_PAUSE_S


def _found(answer: dict[str, Any]) -> Found | None:
    """None: somebody else runs it, ask again."""
    if answer.get("outcome") == "hit" and "value" in answer:
        return Found(True, answer["value"])
    if answer.get("outcome") == "wait":
        return None
    ticket = answer.get("ticket")
    return Found(False, ticket=ticket if isinstance(ticket, str) else None)
