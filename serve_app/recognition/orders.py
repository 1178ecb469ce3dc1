"""System texts that say the same lines in another order (pure, bounded).

Frameworks list tools, rules or members as a set gives them, in an order that changes with every process or request.
Such texts are one text: the order that came first stands for all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runtime_actor.fair_map import FairMap
from serve_app.recognition.canonical import digest

MAX_ORDERS = 4096
"""System texts of all tenants, who share the memory fairly; the one not sent for longest is forgotten."""


@dataclass(slots=True)
class OneText:
    """`first`: the digest of the order that came first; `name`: of the lines alone, once there was a second order."""

    first: str
    name: bytes | None = None


class OrderIndex:
    """System text by digest, and by its lines."""

    def __init__(self) -> None:
        self._known: FairMap[str, OneText] = FairMap(MAX_ORDERS)
        self._by_lines: FairMap[int, OneText] = FairMap(MAX_ORDERS)

    def of(self, tenant: str, text: Callable[[], str], of_text: str, scope: bytes) -> OneText:
        """What `text`, without clocks and ids, with the digest `of_text` is an order of; only texts of one scope
        (tenant, tools) are alike.
        """
        known = self._known.part(tenant)
        found = known.get(of_text)
        if found is None:
            found = known[of_text] = self._order_of(tenant, text(), of_text, scope)
            self._known.trim(tenant)
        else:
            known.move_to_end(of_text)
        return found

    def _order_of(self, tenant: str, text: str, of_text: str, scope: bytes) -> OneText:
        lines = frozenset(map(str.strip, text.split("\n")))
        by_lines = self._by_lines.part(tenant)
        # The interpreter's own keyed hash never leaves the process; the name, which does, is a digest.
        key = hash((scope, lines))
        found = by_lines.setdefault(key, OneText(of_text))
        by_lines.move_to_end(key)
        self._by_lines.trim(tenant)
        if found.name is None and found.first != of_text:
            found.name = digest("\n".join(sorted(lines)).encode())
        return found
