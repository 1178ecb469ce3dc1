"""What prompts have in common and whose it is, as frameworks write them: identity and block hashes together."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

from replicas.cache.sharing import SharedPrefix, SharedPrefixes
from serve_app.identity import Identity, IdentityResolver

BLOCK_WORDS = 4
Messages = list[dict[str, Any]]


def words(name: str, count: int) -> str:
    return " ".join(f"{name}{n}" for n in range(count))


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def rendered(messages: Messages, tools: list[dict[str, Any]]) -> list[bytes]:
    """A chat template's order (tools, then turns), a word a token; the chained hashes of the full blocks."""
    tokens = [token for tool in tools for token in f"tool {tool['function']['name']} end end".split()]
    for message in messages:
        tokens += ["<turn>", message["role"], *message["content"].split()]
    hashes, prefix = [], b""
    for at in range(0, len(tokens) - BLOCK_WORDS + 1, BLOCK_WORDS):
        prefix = hashlib.sha256(prefix + " ".join(tokens[at : at + BLOCK_WORDS]).encode()).digest()
        hashes.append(prefix)
    return hashes


class Path:
    """A gateway's identity and a replica's memory of prefixes."""

    def __init__(self) -> None:
        self.resolver = IdentityResolver(b"secret")
        self.prefixes = SharedPrefixes()

    def send(
        self, messages: Messages, tools: list[dict[str, Any]] | None = None, answer: str = "", **fields: Any
    ) -> tuple[Identity, SharedPrefix]:
        body = {"messages": messages, **({"tools": tools} if tools else {}), **fields}
        resolved = self.resolver.resolve("t", {}, body)
        self.resolver.accept(resolved)
        self.resolver.answered(resolved, answer)
        who = resolved.identity
        return who, self.prefixes.see(rendered(messages, tools or []), ("t", who.agent), who.session)


@pytest.fixture
def path() -> Path:
    return Path()


def test_the_boundary_is_the_end_of_system_prompt_and_tools(path: Path) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("look", "book")]
    sent = [path.send([system(words("rule", 18)), user(f"task {n} " + words(f"own{n}-", 30))], tools) for n in range(3)]
    assert len({who.agent for who, _ in sent}) == 1 and len({who.session for who, _ in sent}) == 3
    # two tools of 4 words, then "<turn> system" and 18 words
    assert [prefix.num_blocks for _, prefix in sent] == [0, 7, 7]


def test_a_role_in_the_first_user_message(path: Path) -> None:
    """Each role is an agent of its own, and its wording is its anchor."""
    found = {}
    for role in ("planner", "coder"):
        for n in range(3):
            text = f"You are the {role} of a team. {words(role, 15)} Task: {words(f'own{n}-{role}-', 20)}"
            who, prefix = path.send([user(text)])
            found.setdefault(who.agent, []).append(prefix.num_blocks)
    assert len(found) == 2
    # "<turn> user", seven words of role, 15 of wording and "Task:" are 25 tokens, six full blocks
    assert [blocks[1:] for blocks in found.values()] == [[6, 6], [6, 6]]


@pytest.mark.parametrize(
    "text", ["You are given three numbers. Sort them.", "What is a role: explain it.", "Hello there. You are kind."]
)
def test_a_first_message_without_a_role_is_nobodys(path: Path, text: str) -> None:
    plain, _ = path.send([user("hi")])
    assert path.send([user(text)])[0].agent == plain.agent


@pytest.mark.parametrize("noise", ["Current time: 2026-03-09 18:00:{:02}", "run id: 7f3a-{}", '"session_id": "abc{}"'])
def test_noise_in_the_system_prompt_ends_the_boundary_and_not_the_agent(path: Path, noise: str) -> None:
    sent = []
    for n in range(3):
        text = f"{words('rule', 14)}\n{noise.format(n)}\n{words('more', 20)}"
        sent.append(path.send([system(text), user(words(f"own{n}-", 20))]))
    assert len({who.agent for who, _ in sent}) == 1
    assert len({who.session for who, _ in sent}) == 3
    # "<turn> system" and 14 words stand before the noise
    assert [prefix.num_blocks for _, prefix in sent][1:] == [4, 4]


def test_shuffled_tools_are_one_agent_with_a_short_boundary(path: Path) -> None:
    tools = [{"type": "function", "function": {"name": f"tool{n}"}} for n in range(6)]
    rng = random.Random(3)
    agents, blocks = set(), []
    for n in range(4):
        shuffled = tools[:1] + rng.sample(tools[1:], 5)
        who, prefix = path.send([system("Use the tools."), user(f"task {n}")], shuffled)
        agents.add(who.agent)
        blocks.append(prefix.num_blocks)
    assert len(agents) == 1
    assert all(1 <= shared <= 6 for shared in blocks[1:])


def test_a_summarised_history_stays_in_its_session_and_its_agent(path: Path) -> None:
    opening = [system(words("rule", 14)), user(words("task", 10))]
    first, _ = path.send(opening)
    history = list(opening)
    for turn in range(6):
        history += [reply(words(f"said{turn}-", 12)), user(words(f"asked{turn}-", 12))]
        path.send(history)
    rewritten = [*opening, reply("Summary: " + words("short", 10)), user("Go on from there.")]
    who, prefix = path.send(rewritten)
    assert (who.agent, who.session) == (first.agent, first.session)
    # What one session alone has sent is no anchor; the kept head is known, the summary isn't.
    assert prefix.num_blocks == 0 and prefix.known_blocks == (2 + 14 + 2 + 10) // BLOCK_WORDS


def test_a_history_rewritten_from_its_first_message_is_found_by_what_it_quotes(path: Path) -> None:
    rules = system(words("rule", 14))
    answer = "The bridge was paid for by the guild of dyers in the end."
    first, _ = path.send([rules, user("Who paid for the bridge?")], answer=answer)
    quoted = [rules, user(f"So far we know:\n- {answer}\nWho paid for the wall?")]
    who, _ = path.send(quoted)
    assert who.session == first.session
    other, _ = path.send([rules, user("So far we know nothing that was said before. Who paid for the wall?")])
    assert other.session != first.session and other.agent == first.agent


def test_sub_agents_forked_from_one_context_share_its_session_and_make_no_anchor(path: Path) -> None:
    context = [user(words("task", 10)), reply(words("plan", 30))]
    lead, _ = path.send([system("You lead the team."), context[0]])
    forks = [path.send([system("You lead the team."), *context, user(f"Do part {n} alone.")]) for n in range(4)]
    assert {who.session for who, _ in forks} == {lead.session}
    assert {who.agent for who, _ in forks} == {lead.agent}
    assert all(prefix.num_blocks == 0 for _, prefix in forks)
    assert forks[3][1].known_blocks >= (2 + 4 + 2 + 10 + 2 + 30) // BLOCK_WORDS


def test_forks_that_declare_sessions_of_their_own_share_what_they_were_forked_from(path: Path) -> None:
    head = [system("You lead the team."), user(words("task", 10)), reply(words("plan", 30))]
    forks = [path.send([*head, user(f"Do part {n} alone.")], session_id=f"fork-{n}") for n in range(3)]
    assert len({who.session for who, _ in forks}) == 3
    shared = (2 + 4 + 2 + 10 + 2 + 30 + len(["<turn>", "user", "Do", "part"])) // BLOCK_WORDS
    assert [prefix.num_blocks for _, prefix in forks][1:] == [shared, shared]


def test_forks_with_their_own_prompts_are_agents_of_one_session(path: Path) -> None:
    context = [user(words("task", 10)), reply(words("plan", 30))]
    lead, _ = path.send([system("You lead the team."), context[0]])
    forks = [path.send([system(f"You do part {n}."), *context, user("Begin.")])[0] for n in range(4)]
    assert {who.session for who in forks} == {lead.session}
    assert len({who.agent for who in (lead, *forks)}) == 5


def test_agents_with_a_common_preamble_share_its_blocks(path: Path) -> None:
    """Blocks that two agents send belong to both, up to where their prompts part."""
    runs = []
    for n in range(3):
        for role in ("planner", "coder"):
            who, prefix = path.send([system(f"{words('rule', 18)} {words(role, 12)}"), user(words(f"own{n}", 9))])
            runs.append((who.agent, prefix.runs))
    (planner, of_planner), (coder, of_coder) = runs[-2:]
    assert planner != coder
    both = (("t", planner), ("t", coder))
    assert of_planner[0] == (5, tuple(sorted(both))) and of_planner[1] == (8, (both[0],))
    assert of_coder[0] == (5, tuple(sorted(both))) and of_coder[1] == (8, (both[1],))
