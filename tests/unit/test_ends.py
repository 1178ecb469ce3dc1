"""Where conversations stand: bounded end by end, shared fairly."""

from __future__ import annotations

import timeit

from hypothesis import given
from hypothesis import strategies as st

from serve_app.recognition.ends import MAX_SESSIONS_PER_END, End, Ends


@given(st.lists(st.tuples(st.sampled_from("tu"), st.integers(0, 5), st.booleans()), max_size=60))
def test_ends_are_bounded_end_by_end(requests: list[tuple[str, int, bool]]) -> None:
    """Many sessions at few histories as well as few at many; a tenant within an equal share loses none to others."""
    ends = Ends(cap=8)
    added: dict[str, int] = {"t": 0, "u": 0}
    for number, (tenant, key, _) in enumerate(requests):
        ends.add(tenant, key, End(f"s{number}", "a", number, 0.0))
        added[tenant] += 1
        held = {name: sum(map(len, ends.part(name).values())) for name in "tu"}
        assert len(ends) == sum(held.values()) <= 8
        assert all(held[name] >= min(added[name], 4) for name in "tu")


def test_no_more_sessions_stand_at_one_history_than_are_looked_at() -> None:
    ends = Ends()
    for number in range(MAX_SESSIONS_PER_END + 9):
        ends.add("t", 1, End(f"s{number}", "a", number, 0.0))
    assert [end.session for end in ends.part("t")[1]][:1] == ["s9"]
    assert len(ends) == len(ends.part("t")[1]) == MAX_SESSIONS_PER_END


def test_an_end_more_costs_the_same_beside_many_tenants() -> None:
    """All tenants' ends were added up for each: 80 us beside 10,000 tenants."""

    def cost_s(tenants: int) -> float:
        ends = Ends()
        for number in range(tenants):
            ends.add(f"t{number}", 1, End("s", "a", number, 0.0))
        keys = iter(range(2, 10**9))
        return min(timeit.repeat(lambda: ends.add("t0", next(keys), End("s", "a", 0, 0.0)), number=50, repeat=20))

    assert cost_s(10_000) < 8 * cost_s(10)
