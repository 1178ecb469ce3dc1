"""A bare scheduler that logs what its pool does, and the load that the tests drive through it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bare_scheduler import BLOCK_TOKENS, BareScheduler, make_config
from runtime_actor.messages import DEMAND, OWNER_XARG, OwnerTag

__all__ = ["BLOCK_TOKENS", "Engine", "make_config", "text", "workload"]


class Engine(BareScheduler):
    """A scheduler, stepped with random tokens. runtime None: vLLM's own scheduler."""

    def __init__(
        self, folder: Path, runtime: dict[str, Any] | None, num_blocks: int = 120, seed: int = 0, **options: Any
    ) -> None:
        super().__init__(folder, runtime, num_blocks, seed, **options)
        self.log: list[tuple[Any, ...]] = []
        self.cached_tokens: dict[str, int] = {}
        self._watch_pool()

    def _watch_pool(self) -> None:
        """Log every allocation, with the hashes it evicts, and every free, in order."""
        pool = self.pool
        get_new_blocks, free_blocks = pool.get_new_blocks, pool.free_blocks

        def logged_get(count: int) -> Any:
            before = [block.block_hash for block in pool.blocks]
            blocks = get_new_blocks(count)
            self.log.append(("get", [(b.block_id, before[b.block_id]) for b in blocks]))
            return blocks

        def logged_free(ordered: Any) -> None:
            ordered = list(ordered)
            self.log.append(("free", [block.block_id for block in ordered]))
            free_blocks(ordered)

        pool.get_new_blocks = logged_get
        pool.free_blocks = logged_free

    def add(
        self,
        name: str,
        tokens: list[int],
        agent: str = "",
        session: str = "",
        max_tokens: int = 4,
        kind: str = DEMAND,
        salt: str | None = None,
        extra: Any = None,
        priority: int = 0,
    ) -> None:
        args = {OWNER_XARG: OwnerTag("w", agent, session, kind).encode()} if agent else None
        request = self.request(
            name,
            tokens,
            max_tokens,
            extra if extra is not None else args,
            cache_salt=salt,
            arrival_time=float(len(self.log)),
            priority=priority,
        )
        self.scheduler.add_request(request)

    def step(self) -> None:
        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.cached_tokens[new.req_id] = new.num_computed_tokens
        self.scheduler.update_from_output(output, self.answer(output))

    def drain(self, most: int = 20_000) -> None:
        for _ in range(most):
            if not self.scheduler.has_unfinished_requests():
                return
            self.step()
        raise AssertionError("the queue did not drain")

    def serve(self, name: str, tokens: list[int], *owner: str, **options: Any) -> int:
        """Run one request to its end; its cached tokens."""
        self.add(name, tokens, *owner, **options)
        self.drain()
        return self.cached_tokens[name]


def text(seed: str, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 4000) for _ in range(count)]


def workload(seed: int, requests: int) -> Iterator[tuple[int, str, list[int], str, str, int, int]]:
    """(steps to run first, name, prompt, agent, session, max tokens, aborts) of a mixed load: four agents,
    sessions that grow, unique prompts, enough at once to preempt."""
    rng = random.Random(seed)
    history: dict[str, list[int]] = {}
    for i in range(requests):
        agent = rng.choice("abcd")
        session = f"s{rng.randrange(12)}"
        if rng.random() < 0.2:
            prompt = text(f"unique{i}", rng.randrange(20, 400))
            agent = rng.choice(["", agent])
        else:
            grown = history.setdefault(session, [])
            grown.extend(text(f"turn{i}", rng.randrange(8, 60)))
            if len(grown) > 300:
                grown.clear()
            prompt = text(f"anchor{agent}", 96) + list(grown)
        yield (
            rng.choice((0, 0, 0, 1, 5, 40)),
            f"r{i}",
            prompt,
            agent,
            session,
            rng.randrange(1, 80),
            int(rng.random() < 0.05),
        )
