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
NO_ANSWER = (httpx.HTTPError, httpx.InvalidURL, ValueError, RuntimeError)
"""What a call of the runtime may end with; RuntimeError: httpx, once it is closed."""
PLAIN = (str, int, float, bool)
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
            answer = self._post("lookup", self._question(tool, arguments, version)) or UNREACHABLE
            found = _found(answer)
            if found is not None:
                self.plain_ahead.take(answer)
                return found
            time.sleep(_pause_s(answer))
        return Found(False)

    def _finish(self, ticket: str | None, kept: _Kept | None, level: int = logging.WARNING) -> None:
        """A result that could not be stored is given back: others wait for it."""
        if ticket is None:
            return
        answer = self._post("store", {"ticket": ticket, "value": kept.value}, level) if kept is not None else None
        if answer is None:
            self._post("release", {"ticket": ticket}, level)
        else:
            self.plain_ahead.take(answer)

    def _post(self, what: str, body: dict[str, Any], level: int = logging.WARNING) -> dict[str, Any] | None:
        """None: the runtime didn't answer, or not as it should, and the log says why."""
        try:
            return _answer(self._client.post(f"/runtime/memo/{what}", json=body))
        except NO_ANSWER as error:
            logger.log(level, "memo %s: %r; the tool is run", what, error)
            return None

    def ticket_ahead(self, tool: str, version: str | None, arguments: dict[str, Any]) -> str | None:
        return _ticket(self._post("lookup", _question_ahead(tool, arguments, version), logging.DEBUG))

    def end_ahead(self, ticket: str, offer: Offer, result: Any, failed: bool) -> None:
        self._finish(ticket, _kept_ahead(offer, result, failed), logging.DEBUG)

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
            kept = _kept(result) if keep(result) else None
        except BaseException:
            await self._afinish(found.ticket, None)
            raise
        await self._afinish(found.ticket, kept)
        return result

    async def _alook(self, tool: str, arguments: dict[str, Any], version: str | None) -> Found:
        for _ in range(MAX_WAITS):
            answer = await self._apost("lookup", self._question(tool, arguments, version)) or UNREACHABLE
            found = _found(answer)
            if found is not None:
                self._take_ahead(answer)
                return found
            await asyncio.sleep(_pause_s(answer))
        return Found(False)

    async def _afinish(self, ticket: str | None, kept: _Kept | None, level: int = logging.WARNING) -> None:
        if ticket is None:
            return
        told = {"ticket": ticket, "value": kept.value} if kept is not None else None
        answer = await self._apost("store", told, level) if told is not None else None
        if answer is None:
            await self._apost("release", {"ticket": ticket}, level)
        else:
            self._take_ahead(answer)

    async def _apost(self, what: str, body: dict[str, Any], level: int = logging.WARNING) -> dict[str, Any] | None:
        try:
            return _answer(await self._async_client.post(f"/runtime/memo/{what}", json=body))
        except NO_ANSWER as error:
            logger.log(level, "memo %s: %r; the tool is run", what, error)
            return None

    async def aticket_ahead(self, tool: str, version: str | None, arguments: dict[str, Any]) -> str | None:
        return _ticket(await self._apost("lookup", _question_ahead(tool, arguments, version), logging.DEBUG))

    async def aend_ahead(self, ticket: str, offer: Offer, result: Any, failed: bool) -> None:
        await self._afinish(ticket, _kept_ahead(offer, result, failed), logging.DEBUG)

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
    """None if a later caller would not get the same: a tuple would come back as a list, an enum as its text."""
    try:
        json.dumps(result, allow_nan=False)
        return _Kept(result) if _is_plain(result) else None
    except (TypeError, ValueError, RecursionError):
        return None


def _kept_ahead(offer: Offer, result: Any, failed: bool) -> _Kept | None:
    return None if failed or not offer.keep(result) else _kept(result)


def _is_plain(value: Any) -> bool:
    """Whether JSON has it, of exactly this type. Raises RecursionError."""
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    return all(map(_is_plain, value)) if type(value) is list else value is None or type(value) in PLAIN


def _has_text_keys(value: Any) -> bool:
    """JSON writes the keys 1 and "1" alike, and they are two calls. Raises RecursionError."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _has_text_keys(item) for key, item in value.items())
    return all(map(_has_text_keys, value)) if isinstance(value, (list, tuple)) else True


def _told(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments by name, defaults filled in, so that each way to call it is the same call; None if one of
    them isn't JSON."""
    try:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        told = {name: list(value) if isinstance(value, tuple) else value for name, value in bound.arguments.items()}
        json.dumps(told, allow_nan=False)
        return told if _has_text_keys(told) else None
    except (TypeError, ValueError, RecursionError):
        return None


def _takes_names(signature: inspect.Signature) -> bool:
    """Whether all its arguments can be given by name: those are all that a prediction has."""
    return all(parameter.kind in KEYWORDS for parameter in signature.parameters.values())


def _question_ahead(tool: str, arguments: dict[str, Any], version: str | None) -> dict[str, Any]:
    return {"tool": tool, "version": version, "arguments": arguments, "ahead": True}


def _ticket(answer: dict[str, Any] | None) -> str | None:
    """None: it is not to be run."""
    ticket = answer.get("ticket") if answer is not None and answer.get("outcome") == "run" else None
    return ticket if isinstance(ticket, str) else None


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
