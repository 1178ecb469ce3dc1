"""Turns -> the numbers that the table shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from demo.session import Turn


@dataclass(frozen=True, slots=True)
class Row:
    """Numbers of one member, or of all ("team"). Shares in [0, 1]; times in seconds."""

    member: str
    requests: int
    errors: int
    prompt_tokens: int
    cached_share: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float

    @classmethod
    def of(cls, member: str, turns: Iterable[Turn]) -> Row:
        turns = list(turns)
        good = [turn for turn in turns if not turn.error]
        prompt_tokens = sum(turn.prompt_tokens for turn in good)
        waits_s = sorted(turn.ttft_s for turn in good)
        return cls(
            member=member,
            requests=len(turns),
            errors=len(turns) - len(good),
            prompt_tokens=prompt_tokens,
            cached_share=sum(turn.cached_tokens for turn in good) / prompt_tokens if prompt_tokens else 0.0,
            ttft_mean_s=sum(waits_s) / len(waits_s) if waits_s else 0.0,
            ttft_p50_s=percentile(waits_s, 50),
            ttft_p99_s=percentile(waits_s, 99),
        )


def rows(turns: Sequence[Turn], members: Iterable[str]) -> list[Row]:
    each = [Row.of(name, (turn for turn in turns if turn.member == name)) for name in members]
    return [*each, Row.of("team", turns)]


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Nearest rank; 0.0 of nothing."""
    if not ascending:
        return 0.0
    rank = max(1, -(-len(ascending) * percent // 100))
    return ascending[int(rank) - 1]
