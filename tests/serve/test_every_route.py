"""What holds on each route that generates text, against the running server: isolation, identity, counting, errors."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import httpx
import pytest

from tests.gateway_kit import agents, assert_error, ours, state, wait_for
from tests.route_kit import (
    CHAT,
    COMPLETIONS,
    CONVERSATIONS,
    MESSAGES,
    RESPONSES,
    ROUTES,
    ask,
    events,
    finished,
    said,
    turn,
    usage,
)
from tests.server_kit import CACHE_BLOCKS, MODEL, Filler, Server

BILLING = "x-anthropic-billing-header: cc_version=2.1.9.{0}; cc_entrypoint=cli; cch={0};\n"
CLOCK = "\nCurrent date and time: Monday, March 9, 2026 at 06:00:{} PM PDT\n"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


# --- one tenant's cache and tag reach the engine ----------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_a_tenants_prompt_is_cached_for_it_alone(server: Server, filler: Filler, route: str, stream: bool) -> None:
    text = filler(600)
    with server.client("one") as one, server.client("two") as two:
        first, second, theirs = (ask(client, route, text, stream=stream) for client in (one, one, two))
    assert first.status_code == theirs.status_code == 200, first.text + theirs.text
    assert int(ours(second, "cached-tokens")) >= 576 and ours(second, "agent") == ours(first, "agent")
    assert int(ours(theirs, "cached-tokens")) == 0 and ours(theirs, "agent") != ours(first, "agent")


def test_one_prompt_over_all_routes_is_one_agent_and_cached(client: httpx.Client, filler: Filler) -> None:
    text = filler(600)
    answers = {route: ask(client, route, text) for route in CONVERSATIONS}
    assert len({ours(answer, "agent") for answer in answers.values()}) == 1
    counted = {route: usage(route, answer) for route, answer in answers.items()}
    assert len({prompt for prompt, _, _ in counted.values()}) == 1
    assert counted[RESPONSES][1] >= 576 and counted[MESSAGES][1] >= 576


def test_an_agent_of_any_route_is_known_and_kept(client: httpx.Client, filler: Filler) -> None:
    """Its prompt outlives as much of others' as the cache holds, on every route as over chat.

    A completion's agent is the head of its prompt, which is long enough here.
    """
    texts = {route: filler(300) for route in ROUTES}
    for number in range(4):
        for route, text in texts.items():
            answer = ask(client, route, text, f"task {number}", {"x-session-id": f"kept-{route}-{number}"})
            assert answer.status_code == 200, answer.text
    ids = {route: ours(ask(client, route, text, "one more"), "agent") for route, text in texts.items()}
    assert len(set(ids.values())) == len(ROUTES)
    wait_for(lambda: all(agents(client).get(agent, {}).get("requests") == 5 for agent in ids.values()), 10, "counted")
    wait_for(lambda: resident(client).issuperset(ids.values()), 10, "blocks of each agent in a replica's cache")
    for _ in range(2 * CACHE_BLOCKS * 32 // 1500):
        assert ask(client, CHAT, filler(1500)).status_code == 200
    hits = {route: usage(route, ask(client, route, text, "after the flood"))[1] for route, text in texts.items()}
    assert all(hit >= 256 for hit in hits.values()), hits


def resident(client: httpx.Client) -> set[str]:
    """Agents that a replica says it holds blocks of."""
    return {agent for replica in state(client)["replicas"] for agent, blocks in replica["resident"].items() if blocks}


# --- agents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", CONVERSATIONS)
def test_billing_and_clock_cost_no_agent(client: httpx.Client, filler: Filler, route: str) -> None:
    text, head, tail = filler(400), filler(250), filler(200)
    first, second = (ask(client, route, BILLING.format(n) + text) for n in ("aaa", "bbb"))
    assert ours(first, "agent") == ours(second, "agent") and usage(route, second)[1] >= 352
    first, second = (ask(client, route, head + CLOCK.format(n) + tail) for n in ("31", "33"))
    assert ours(first, "agent") == ours(second, "agent") and usage(route, second)[1] >= 192
    assert usage(route, first)[0] > filler.count(head) + filler.count(CLOCK) + filler.count(tail)


def test_a_billing_block_of_its_own(client: httpx.Client, filler: Filler) -> None:
    text = filler(400)
    system = [[{"type": "text", "text": BILLING.format(n)}, {"type": "text", "text": text}] for n in ("aaa", "bbb")]
    first, second = (ask(client, MESSAGES, blocks) for blocks in system)  # type: ignore[arg-type]
    assert ours(first, "agent") == ours(second, "agent") and usage(MESSAGES, second)[1] >= 352


@pytest.mark.parametrize("route", CONVERSATIONS)
def test_a_users_text_is_never_touched(client: httpx.Client, route: str) -> None:
    text = BILLING.format("aaa") + "hi"
    counted = client.post("/tokenize", json={"model": MODEL, "messages": [{"role": "user", "content": text}]})
    assert usage(route, ask(client, route, user=text))[0] == counted.json()["count"]


def test_a_completions_prompt_is_never_touched(client: httpx.Client, filler: Filler) -> None:
    """It has no system text, so nothing in it is a harness's."""
    text = BILLING.format("aaa") + CLOCK.format("31") + filler(50)
    counted = client.post("/tokenize", json={"model": MODEL, "prompt": text, "add_special_tokens": True})
    answer = client.post(COMPLETIONS, json={"model": MODEL, "prompt": text, "max_tokens": 1})
    assert usage(COMPLETIONS, answer)[0] == counted.json()["count"]


@pytest.mark.parametrize("route", CONVERSATIONS)
def test_an_ordinary_sentence_makes_another_agent(client: httpx.Client, filler: Filler, route: str) -> None:
    text = filler(50)
    answers = [ask(client, route, f"{text} You know the rules of {year}.") for year in (2024, 2025)]
    assert ours(answers[0], "agent") != ours(answers[1], "agent")


@pytest.mark.parametrize("route", CONVERSATIONS)
def test_system_messages_inside_a_conversation(client: httpx.Client, filler: Filler, route: str) -> None:
    system = filler(300)
    turns: list[dict[str, Any]] = []
    found: list[httpx.Response] = []
    for number in range(5):
        turns.append({"role": "user", "content": f"turn {number}"})
        left = f"<total_tokens>{4999 - number}000 tokens left</total_tokens>"
        turns.append({"role": "system", "content": left})
        found.append(client.post(route, json=turn(route, system, turns, 12)))
        turns.append({"role": "assistant", "content": said(route, found[-1])})
    counted = [usage(route, answer) for answer in found]
    assert len({ours(answer, "session") for answer in found}) == len({ours(answer, "agent") for answer in found}) == 1
    assert all(after[1] >= before[0] - 64 for before, after in itertools.pairwise(counted)), counted
    agent = ours(found[0], "agent")
    assert not [t for t in state(client)["transitions"] if t["from"] == t["to"] == agent]


# --- sessions and request ids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_session_ids(client: httpx.Client, filler: Filler, route: str) -> None:
    names = ("x-session-id", "X-Session_ID", "session-id", "x-dynamo-session-id", "x-claude-code-session-id")
    declared = [ask(client, route, headers={name: f"of {route}"}) for name in names]
    declared.append(ask(client, route, session_id=f"of {route}"))
    declared += [ask(client, route, headers={"x-session-id": f"of {route}", "x-request-id": f"r{n}"}) for n in "12"]
    assert len({ours(answer, "session") for answer in declared}) == 1
    blank = [ask(client, route, user=filler(12), headers={"x-session-id": "null"}) for _ in range(3)]
    assert len({ours(answer, "session") for answer in blank}) == 3
    both = {"x-session-id": f"of {route}", "session-id": "another"}
    assert ours(ask(client, route, headers=both), "session") == ours(declared[0], "session")
    long = ask(client, route, headers={"x-session-id": "a" * 5000})
    assert long.status_code == 200 and all("a" * 257 not in value for value in long.headers.values())


@pytest.mark.parametrize("route", ROUTES)
def test_two_streams_with_one_request_id(client: httpx.Client, filler: Filler, route: str) -> None:
    system = filler(300)
    answers: dict[str, httpx.Response] = {}

    def run(prompt: str) -> None:
        fields = {"request_id": "dup", "stream": True, "temperature": 0, "tokens": 24}
        answers[prompt] = ask(client, route, system, prompt, {"x-request-id": "dup"}, **fields)

    threads = [threading.Thread(target=run, args=(prompt,)) for prompt in ("Count: 1 2 3", "Letters: a b c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    both = list(answers.values())
    run("Count: 1 2 3")
    assert all(finished(route, answer) for answer in (*both, answers["Count: 1 2 3"]))
    assert all('"dup"' not in answer.text for answer in both)
    alone = said(route, answers["Count: 1 2 3"])
    assert alone and {said(route, answer) for answer in both} != {alone}, "each has its own text"
    (agent,) = {ours(answer, "agent") for answer in answers.values()}
    wait_for(lambda: agents(client).get(agent, {}).get("requests") == 3, 5, "three requests")
    long = ask(client, route, request_id="x" * 100_000)
    assert long.status_code in (200, 400) and len(long.content) < 20_000


# --- histories, fields ----------------------------------------------------------------------------------------------


def tool_history(route: str, arguments: str = '{"a":1,"b":1}', result: Any = "2") -> list[dict[str, Any]]:
    user = {"role": "user", "content": "1+1?"}
    if route == RESPONSES:
        call = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": arguments}
        return [user, call, {"type": "function_call_output", "call_id": "call_1", "output": result}]
    if route == MESSAGES:
        use = {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1, "b": 1}}
        back = {"type": "tool_result", "tool_use_id": "call_1", "content": result}
        return [user, {"role": "assistant", "content": [use]}, {"role": "user", "content": [back]}]
    function = {"name": "add", "arguments": arguments}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    called = {"role": "assistant", "content": None, "tool_calls": calls}
    return [user, called, {"role": "tool", "tool_call_id": "call_1", "content": result}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", CONVERSATIONS)
def test_a_history_with_tools(client: httpx.Client, filler: Filler, route: str, stream: bool) -> None:
    system = filler(200)
    kind = {RESPONSES: "input_text"}.get(route, "text")
    bodies = [
        turn(route, system, tool_history(route), 8, stream=stream),
        turn(route, system, tool_history(route, result=[{"type": kind, "text": "2"}]), 8, stream=stream),
    ]
    answers = [client.post(route, json=body) for body in bodies]
    assert all(answer.status_code == 200 for answer in answers), [answer.text for answer in answers]
    assert len({ours(answer, "agent") for answer in answers}) == 1
    assert int(ours(answers[1], "cached-tokens")) >= 160
    empty = turn(route, system, [{"role": "user", "content": "hi"}, {"role": "assistant", "content": []}], 4)
    assert client.post(route, json=empty).status_code in (200, 400)


def test_a_history_with_tools_is_counted(client: httpx.Client, filler: Filler) -> None:
    """Each role's content crosses to the replica, also the null of a message that only calls."""
    system = filler(100)
    for route, path in ((CHAT, "/tokenize"), (MESSAGES, "/v1/messages/count_tokens")):
        counted = client.post(path, json=turn(route, system, tool_history(route)))
        assert counted.status_code == 200, counted.text
        found = counted.json().get("count") or counted.json()["input_tokens"]
        assert found == usage(route, client.post(route, json=turn(route, system, tool_history(route), 1)))[0]


@pytest.mark.parametrize("route", CONVERSATIONS)
def test_text_and_one_part_are_the_same_prompt(client: httpx.Client, filler: Filler, route: str) -> None:
    system, text = filler(200), filler(60)
    kind = {RESPONSES: "input_text"}.get(route, "text")
    contents: tuple[Any, ...] = (text, [{"type": kind, "text": text}])
    bodies = [turn(route, system, [{"role": "user", "content": content}]) for content in contents]
    plain, parts = (client.post(route, json=body) for body in bodies)
    assert ours(plain, "agent") == ours(parts, "agent")
    prompt, hit, _ = usage(route, parts)
    assert prompt == usage(route, plain)[0] and hit >= prompt - 64


NULLS = (
    "tools",
    "tool_choice",
    "temperature",
    "top_p",
    "metadata",
    "stream",
    "user",
    "session_id",
    "priority",
    "nvext",
)


@pytest.mark.parametrize("route", ROUTES)
def test_nulls_and_limits(client: httpx.Client, route: str) -> None:
    nulls = turn(route, None, [{"role": "user", "content": "hi"}], **dict.fromkeys(NULLS))
    assert client.post(route, json=nulls).status_code == 200
    body = turn(route, None, [{"role": "user", "content": "Count to a hundred: 1, 2, 3,"}], 5)
    limit = next(name for name in ("max_output_tokens", "max_tokens") if name in body)
    assert usage(route, client.post(route, json=body))[2] <= 5
    assert usage(route, client.post(route, json={**body, limit: 1}))[2] == 1
    for tokens in (0, -1):
        assert assert_error(client.post(route, json={**body, limit: tokens}), 400)["param"] == limit


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_choices_are_one_request(client: httpx.Client, filler: Filler, route: str) -> None:
    """Responses and Messages have no `n`."""
    system = filler(300)
    fields: dict[str, Any] = {"n": 3, "temperature": 1, "ignore_eos": True, "tokens": 16}
    answer = ask(client, route, system, **fields)
    assert sorted(choice["index"] for choice in answer.json()["choices"]) == [0, 1, 2]
    prompt, _, made = usage(route, answer)
    assert made == 48 and prompt < 400
    streamed = events(ask(client, route, system, stream=True, **fields))
    assert {choice["index"] for event in streamed for choice in event["choices"]} == {0, 1, 2}
    agent = ours(answer, "agent")
    wait_for(lambda: agents(client)[agent]["requests"] == 2, 5, "two requests")
    assert not [t for t in state(client)["transitions"] if t["from"] == t["to"] == agent]
    for n in (0, 1000):
        assert assert_error(ask(client, route, system, **{**fields, "n": n}), 400)["param"] == "n"


# --- errors and usage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_errors(client: httpx.Client, filler: Filler, route: str, stream: bool) -> None:
    before = state(client)["agents"]
    secret = "SECRET-CONTENT"
    wrong = {MESSAGES: "messages", CHAT: "messages", RESPONSES: "input", COMPLETIONS: "prompt"}[route]
    errors = [
        assert_error(ask(client, route, stream=stream, model="nope"), 404, "model_not_found"),
        assert_error(ask(client, route, stream=stream, **{wrong: {"a": secret}}), 400),
        assert_error(ask(client, route, stream=stream, **{wrong: []}), 400),
        assert_error(ask(client, route, stream=stream, temperature=secret), 400),
        assert_error(client.post(route, content=b'{"model":'), 400, "invalid_json"),
        assert_error(client.post(route, content=b""), 400, "invalid_json"),
        assert_error(client.post(route, content=b"[]"), 400, "invalid_json"),
        assert_error(client.get(route), 405),
        assert_error(ask(client, route, stream=stream, user=filler(9000)), 400, "context_length_exceeded"),
        assert_error(ask(client, route, stream=stream, headers={"authorization": "Bearer wrong"}), 401),
    ]
    assert not any(secret in str(error) for error in errors)
    assert len(state(client)["agents"]) == len(before)


def test_a_constraint_that_does_not_compile(client: httpx.Client) -> None:
    for fields in ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 12}}}},):
        for stream in (False, True):
            assert_error(ask(client, RESPONSES, stream=stream, tokens=4, **fields), 400)
    assert ask(client, RESPONSES).status_code == 200


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}], ids=str)
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_usage_in_streams_where_asked(client: httpx.Client, filler: Filler, route: str, options: Any) -> None:
    text = filler(400)
    ask(client, route, text)
    streamed = events(ask(client, route, text, stream=True, tokens=4, stream_options=options))
    without_choices = [event for event in streamed if not event["choices"]]
    if options and options.get("include_usage"):
        assert without_choices == streamed[-1:]
        assert without_choices[0]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 352
    else:
        assert not without_choices and not [event for event in streamed if event.get("usage")]


def test_usage_in_streams(client: httpx.Client, filler: Filler) -> None:
    """Each in its own form: Messages at its start as well, Responses at its end."""
    text = filler(400)
    for route in (RESPONSES, MESSAGES):
        ask(client, route, text)
        streamed = events(ask(client, route, text, stream=True, tokens=4))
        if route == MESSAGES:
            start = streamed[0]["message"]["usage"]
            assert start["cache_read_input_tokens"] >= 352
            prompt = usage(route, ask(client, route, text))[0]
            assert start["input_tokens"] + start["cache_read_input_tokens"] == prompt
            assert start["output_tokens"] == 0
            assert streamed[-2]["usage"]["output_tokens"] > 0
        else:
            last = streamed[-1]["response"]["usage"]
            assert last["input_tokens_details"]["cached_tokens"] >= 352 and last["output_tokens"] > 0
            assert (
                sum("usage" in event.get("response", {}) and bool(event["response"]["usage"]) for event in streamed)
                == 1
            )
