"""Several leading system messages: roles behind common rules are agents, notes behind a role are none."""

from __future__ import annotations

from serve_app.identity import IdentityResolver
from tests.unit.conversation_kit import Messages, reply, user

ROLE = "You are the keeper of a weir. Answer in few words."


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def agent(resolver: IdentityResolver, messages: Messages) -> str:
    resolved = resolver.resolve("t", {}, {"messages": messages})
    resolver.accept(resolved)
    resolver.answered(resolved, "Yes.")
    return resolved.identity.agent


def conversation(resolver: IdentityResolver, number: int) -> list[str]:
    """Its note stands before the last message of each turn and isn't kept."""
    kept: Messages = []
    found = []
    for turn in range(3):
        note = system(f"note {number * 10 + turn}: the gauge stands high")
        found.append(agent(resolver, [system(ROLE), *kept, note, user(f"Weir {number}, turn {turn}?")]))
        kept += [user(f"Weir {number}, turn {turn}?"), reply("Yes.")]
    return found


def test_a_note_before_the_first_message_makes_an_agent_no_more_than_once() -> None:
    resolver = IdentityResolver(b"secret")
    first, *others = [conversation(resolver, number) for number in range(6)]
    assert len({*first[1:], *(one for some in others for one in some)}) == 1


def test_a_note_that_stands_there_in_every_turn_makes_few_agents() -> None:
    resolver = IdentityResolver(b"secret")
    found = [agent(resolver, [system(ROLE), system(f"Now you look at {n}."), user(f"So {n}?")]) for n in range(40)]
    assert len(set(found[7:])) == 1 and found[7] == agent(resolver, [system(ROLE), user("So?")])


def test_roles_behind_common_rules_are_agents() -> None:
    """Also where a conversation has a message of the system's in the middle."""
    resolver = IdentityResolver(b"secret")
    rules = system("Be brief. Speak of herons alone.")
    agent(resolver, [rules, user("Hm?"), reply("Yes."), system("Hurry."), user("So?")])
    roles = [f"Role: counter {n}" for n in range(12)] + [f"Your role is to look at weir {n}." for n in range(12)]
    for _ in range(3):
        assert len({agent(resolver, [rules, system(role), user("Count.")]) for role in roles}) == len(roles)


def test_texts_that_come_back_are_agents() -> None:
    resolver = IdentityResolver(b"secret")
    rules = system("Be brief. Speak of herons alone.")
    texts = ["Look at the plan and mend it.", "Look at the count and mend it.", "Say what is missing."]
    found = [[agent(resolver, [rules, system(text), user(f"Run {n}.")]) for text in texts] for n in range(6)]
    assert all(some == found[0] for some in found) and len(set(found[0])) == 3
