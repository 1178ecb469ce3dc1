"""Requests that were started before anybody asked: what runs, whose it becomes, when it is thrown away.

A guess goes to a replica as its request would: same fields, owner, salt; only its priority is the lowest. What
comes back is kept here. The session's next request either is the guess, in every field, and gets what is there
and what is still to come, or ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from runtime_actor.policies.base import GuessEnded, GuessSuggestion, RequestView
from runtime_actor.policies.speculation import SpeculationPolicy, is_same
from serve_app.generation import Call
from serve_app.streaming import acceptance, error_of

logger = logging.getLogger("ray.serve")

JOIN_WAIT_S = 0.5
"""How long a request waits for a guess that the engine hasn't begun: it has the lowest priority, the request hasn't."""
MAX_ITEMS = 65_536
"""Items that are kept of an answer that nobody has asked for; a longer one is thrown away."""
END = object()
Launch = Callable[[GuessSuggestion], Call]


class Guess:
    """One request that runs ahead."""

    def __init__(self, suggestion: GuessSuggestion, call: Call) -> None:
        self.suggestion = suggestion
        self.failed: BaseException | None = None
        self._call = call
        self._items: deque[Any] = deque()
        self._is_joined = False
        self._is_done = False
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            async for item in self._call:
                self._items.append(item)
                self._changed.set()
                if len(self._items) > MAX_ITEMS and not self._is_joined:
                    raise RuntimeError("the answer of a guess is too long")
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - raised for the client, if it becomes one's
            self.failed = error
        finally:
            self._is_done = True
            self._changed.set()

    @property
    def tokens(self) -> int:
        """About what it has cost: what was expected where the engine hasn't said anything yet."""
        accepted = acceptance(self._items[0]) if self._items else None
        if accepted is None:
            return self.suggestion.tokens
        return accepted.prompt_tokens + max(0, len(self._items) - 1, self._answered())

    def _answered(self) -> int:
        usage = getattr(self._items[-1], "usage", None)
        return int(getattr(usage, "completion_tokens", 0) or 0)

    async def has_begun(self, limit_s: float) -> bool:
        """Whether an item that is no error comes within that time."""
        try:
            async with asyncio.timeout(limit_s):
                while not self._items and not self._is_done:
                    await self._wait()
        except TimeoutError:
            return False
        return bool(self._items) and error_of(self._items[0]) is None and self.failed is None

    async def items(self) -> AsyncIterator[Any]:
        """From the first one, as they come, each once: they are its client's now. Raises what the call raised."""
        self._is_joined = True
        while True:
            while self._items:
                yield self._items.popleft()
            if self._is_done:
                break
            await self._wait()
        if self.failed is not None:
            raise self.failed

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def cancel(self) -> None:
        """End it in the engine, if it isn't over."""
        if not self._is_done:
            self._task.cancel()
            self._call.cancel()


class JoinedCall:
    """A client's call that is a guess's; `send` makes a call of its own if the guess comes to nothing. `on_end` is told
    once whether it was joined, also where the client leaves before that is known."""

    def __init__(self, guess: Guess, send: Callable[[], Call], on_end: Callable[[bool], None]) -> None:
        self._guess = guess
        self._send = send
        self._on_end = on_end
        self._own: Call | None = None
        self._is_told = False

    async def __aiter__(self) -> AsyncIterator[Any]:
        began = await self._guess.has_begun(JOIN_WAIT_S)
        self._tell(began)
        if began:
            async for item in self._guess.items():
                yield item
            return
        self._guess.cancel()
        self._own = self._send()
        async for item in self._own:
            yield item

    def cancel(self) -> None:
        self._guess.cancel()
        self._tell(False)
        if self._own is not None:
            self._own.cancel()

    def _tell(self, is_joined: bool) -> None:
        if not self._is_told:
            self._is_told = True
            self._on_end(is_joined)


class HedgedCall:
    """A call that is made once more, to another replica, where the first has said nothing after `after_s`; the one
    that speaks first goes on, the other one is ended. `waited_s`: where the second one goes on, how long it was not yet
    sent; how slow a replica is must not be told from that."""

    def __init__(self, send: Callable[[bool], Call], after_s: float, policy: SpeculationPolicy) -> None:
        self.waited_s = 0.0
        self._send = send
        self._after_s = after_s
        self._policy = policy
        self._calls: list[Call] = [send(False)]

    async def __aiter__(self) -> AsyncIterator[Any]:
        began_s = second_s = asyncio.get_running_loop().time()
        streams = [aiter(self._calls[0])]
        firsts: list[asyncio.Future[Any]] = [asyncio.ensure_future(anext(streams[0], END))]
        try:
            await asyncio.wait(firsts, timeout=self._after_s)
            if not firsts[0].done() and self._policy.may_hedge():
                second_s = asyncio.get_running_loop().time()
                self._calls.append(self._send(True))
                streams.append(aiter(self._calls[1]))
                firsts.append(asyncio.ensure_future(anext(streams[1], END)))
            best = await self._best(firsts)
        except BaseException:
            for first in firsts:
                first.cancel()
            raise
        self.waited_s = second_s - began_s if best else 0.0
        item = firsts[best].result()
        while item is not END:
            yield item
            item = await anext(streams[best], END)

    async def _best(self, firsts: list[asyncio.Future[Any]]) -> int:
        """Which of them to go on with: the first that has an item, else the first of all."""
        await asyncio.wait(firsts, return_when=asyncio.FIRST_COMPLETED)
        found = [index for index, first in enumerate(firsts) if _is_good(first)]
        if not found and len(firsts) > 1:
            await asyncio.wait(firsts)
            found = [index for index, first in enumerate(firsts) if _is_good(first)]
        best = found[0] if found else 0
        await asyncio.wait([firsts[best]])
        for index, first in enumerate(firsts):
            if index != best:
                first.cancel()
                self._calls[index].cancel()
                # What it raised is of no interest, and it must not be reported as forgotten.
                first.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        if best:
            self._policy.hedge_won()
        return best

    def cancel(self) -> None:
        for call in self._calls:
            call.cancel()


def _is_good(first: asyncio.Future[Any]) -> bool:
    if not first.done() or first.cancelled() or first.exception() is not None:
        return False
    return first.result() is not END and error_of(first.result()) is None


@dataclass(slots=True)
class Ahead:
    """All guesses of a gateway, at most one a session. `launch` sends one to a replica; `tell` the policies."""

    launch: Launch
    tell: Callable[[GuessEnded], None]
    _guesses: dict[tuple[str, str], tuple[Guess, asyncio.TimerHandle]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._guesses)

    def start(self, suggestion: GuessSuggestion) -> None:
        key = (suggestion.workload, suggestion.session)
        self.end(*key)
        try:
            guess = Guess(suggestion, self.launch(suggestion))
        except Exception:
            logger.exception("A guess could not be sent")
            self.drop(suggestion)
            return
        timer = asyncio.get_running_loop().call_later(suggestion.wait_s, self.end, *key)
        self._guesses[key] = (guess, timer)

    def drop(self, suggestion: GuessSuggestion) -> None:
        """It isn't started after all."""
        self._tell(suggestion, is_joined=False, wasted_tokens=0)

    def end(self, workload: str, session: str) -> None:
        """Nobody will ask for it."""
        found = self._guesses.pop((workload, session), None)
        if found is not None:
            guess, timer = found
            timer.cancel()
            guess.cancel()
            self._tell(guess.suggestion, is_joined=False, wasted_tokens=guess.tokens)

    def end_all(self) -> None:
        for key in list(self._guesses):
            self.end(*key)

    def take(self, request: RequestView) -> Guess | None:
        """The session's guess if this is it; any other ends here."""
        found = self._guesses.get((request.workload, request.session))
        if found is None:
            return None
        guess, timer = found
        if guess.failed is not None or not is_same(guess.suggestion, request):
            self.end(request.workload, request.session)
            return None
        timer.cancel()
        del self._guesses[request.workload, request.session]
        return guess

    def joined(self, guess: Guess, is_joined: bool) -> None:
        """What became of one that was taken."""
        self._tell(guess.suggestion, is_joined=is_joined, wasted_tokens=0 if is_joined else guess.tokens)

    def _tell(self, suggestion: GuessSuggestion, *, is_joined: bool, wasted_tokens: int) -> None:
        self.tell(GuessEnded(suggestion.tenant, suggestion.workload, suggestion.session, is_joined, wasted_tokens))
