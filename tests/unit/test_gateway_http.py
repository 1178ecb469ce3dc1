"""The gateway's HTTP behaviour with replicas and an actor that are plain objects."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray.exceptions import ActorDiedError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from runtime_actor.messages import AVOID_XARG, OWNER_XARG, OwnerTag, RequestAccepted
from serve_app import generation
from tests.unit.gateway_bench import CHUNK, DONE, KEYS, Answer, Bench, chat_answer


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), Answer()]
    yield made
    assert made.gateway._admission.in_flight == 0


def test_an_answer_with_its_headers(bench: Bench) -> None:
    answer = bench.chat(priority=-5, session_id="s1")
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}
    headers = {name: answer.headers[f"x-agent-runtime-{name}"] for name in ("replica", "cached-tokens", "hints")}
    assert headers == {"replica": "r1", "cached-tokens": "32", "hints": "session_id=accepted, priority=clipped"}
    request, raw = bench.handle.requests[0]
    tag = OwnerTag.decode(request.vllm_xargs[OWNER_XARG])
    assert tag.session == answer.headers["x-agent-runtime-session"] == request.session_id
    assert request.priority == 0 and request.cache_salt and "authorization" not in raw.headers
    place = bench.routing.session("one", tag.session)
    assert place is not None and place.places[tag.agent] == ("r1", 40)


def test_a_stream(bench: Bench) -> None:
    bench.handle.items = [RequestAccepted("r1", 40, 0).to_wire(), CHUNK, DONE]
    answer = bench.chat(stream=True)
    assert answer.text == CHUNK + DONE
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-agent-runtime-replica"] == "r1"


def test_a_refusal_leaves_nothing(bench: Bench) -> None:
    error = SimpleNamespace(message="bad", type="BadRequestError", param="top_p", code=400)
    bench.handle.items = [SimpleNamespace(error=error)]
    for stream in (False, True):
        answer = bench.chat(stream=stream)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "top_p"
    assert bench.buffered == 0 and len(bench.gateway._identities.conversations) == 0
    bench.handle.items = [RequestAccepted("r1", 4, 0).to_wire(), SimpleNamespace(error=error)]
    assert bench.chat().status_code == 400
    assert bench.buffered == 0


def test_the_state_shows_ones_own_requests(bench: Bench) -> None:
    bench.chat()
    state = bench.ask("GET", "/runtime/state").json()
    assert state["events"] == ["request_arrived"] and state["tenant"] == "one"
    assert state["gateway"]["in_flight"] == 0
    assert bench.ask("GET", "/runtime/state", "ops").json()["tenant"] is None


def test_a_final_request_ends_its_session(bench: Bench) -> None:
    bench.ask(
        "POST",
        "/v1/chat/completions",
        headers={"x-dynamo-session-final": "true"},
        json={"messages": [{"role": "user", "content": "bye"}]},
    )
    assert bench.ask("GET", "/runtime/state").json()["events"] == ["request_arrived", "session_ended"]


def test_admission_is_bounded(bench: Bench) -> None:
    slots = [bench.gateway._admission.admit(tenant) for tenant in ("one", "ops")]
    answer = bench.chat()
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["type"] == "rate_limit_error"
    for slot in slots:
        slot.free()
    assert bench.chat().status_code == 200


def test_leaving_before_the_answer_cancels_and_counts_once(bench: Bench) -> None:
    bench.handle.items = ["stall"]

    async def main() -> None:
        transport = httpx.ASGITransport(bench.asgi)
        headers = {"authorization": "Bearer k1"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            body = {"messages": [{"role": "user", "content": "hi"}]}
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            while not bench.handle.requests:
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})

    asyncio.run(main())
    assert bench.handle.cancelled == 1
    assert bench.buffered == 1


def test_a_stream_that_is_never_read_gives_its_place_back(bench: Bench) -> None:
    bench.handle.items = [RequestAccepted("r1", 40, 0).to_wire(), CHUNK, "stall"]

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        raise OSError("gone")

    async def main() -> None:
        body = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"authorization", b"Bearer k1")]}
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def first() -> dict[str, Any]:
            return pending.pop() if pending else await receive()

        answer: Response = await bench.gateway.chat(Request(scope, first))
        with pytest.raises((OSError, BaseExceptionGroup, ClientDisconnect)):
            await answer(scope, receive, send)

    asyncio.run(main())
    assert bench.handle.cancelled == 1


def ends(bench: Bench) -> list[tuple[bool, bool]]:
    """Of each prompt that was served: whether its answer is known, and whether it was cut."""
    found = bench.gateway._identities.conversations._ends.part("one").values()
    return [(end.answer is not None, end.is_cut) for at_one_history in found for end in at_one_history]


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_answered_is_known_once_it_is_whole(bench: Bench, stream: bool) -> None:
    accepted = RequestAccepted("r1", 40, 0).to_wire()
    bench.handle.items = [accepted, CHUNK, DONE] if stream else [accepted, chat_answer("by train")]
    assert bench.chat(stream=stream).status_code == 200
    assert ends(bench) == [(True, False)]


def test_an_answer_that_was_cut_is_not(bench: Bench) -> None:
    """By an error, or as the client left: what it sends once more is the same request then."""
    bench.handle.items = [RequestAccepted("r1", 40, 0).to_wire(), CHUNK, ActorDiedError()]
    assert "unavailable" in bench.chat(stream=True).text
    assert ends(bench) == [(False, True)]
    bench.handle.cancelled = 0
    test_a_stream_that_is_never_read_gives_its_place_back(bench)
    assert ends(bench) == [(False, True)] * 2


@pytest.mark.parametrize(("policies", "lead"), [([{"name": "fairness"}], -1), ([{"name": "deadline"}], 0), ([], 0)])
def test_a_tenants_only_request_leads_where_fairness_says_so(policies: list[dict[str, Any]], lead: int) -> None:
    """In the engine, while it has others'; a client's own word gets it there never."""
    bench = Bench(policies=policies, max_in_flight=8)
    bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), Answer()]
    bench.handle.scripts = [["stall"], ["stall"]]

    async def main() -> list[int]:
        transport = httpx.ASGITransport(bench.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

            async def ask(tenant: str, **fields: Any) -> None:
                headers = {"authorization": f"Bearer {KEYS[tenant]}"}
                body = {"messages": [{"role": "user", "content": "hi"}], **fields}
                await client.post("/v1/chat/completions", headers=headers, json=body)

            busy = [asyncio.create_task(ask("one", priority=-7)) for _ in range(2)]
            async with asyncio.timeout(20.0):
                while len(bench.handle.requests) < 2:
                    await asyncio.sleep(0)
                await ask("ops", priority=-7)
                await ask("ops", priority=4)
            for task in busy:
                task.cancel()
            await asyncio.wait(busy)
        return [request.priority for request, _ in bench.handle.requests]

    assert asyncio.run(main()) == [0, 0, lead, 4 + lead]
    assert bench.gateway._admission.in_flight == 0


def test_a_stream_that_is_never_begun_gives_everything_back() -> None:
    """Its client left between the first token and the answer's head."""
    bench = Bench(policies=[{"name": "fairness"}])
    bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), CHUNK, "stall"]

    async def main() -> None:
        body = b'{"stream": true, "messages": [{"role": "user", "content": "hi"}]}'
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"authorization", b"Bearer k1")]}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        answer: Response | None = await bench.gateway.chat(Request(scope, receive))
        queue = bench.gateway._policies.queue_state
        assert answer is not None and queue()["inside"] == 1 and bench.gateway._admission.in_flight == 1
        del answer
        gc.collect()
        assert queue()["inside"] == 0 and bench.gateway._admission.in_flight == 0 and bench.handle.cancelled == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/m", 200),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/nothing", 404),
        ("POST", "/healthz", 405),
        ("GET", "/healthz", 200),
        ("GET", "/runtime/predict?session_id=x&horizon=3", 200),
        ("GET", "/runtime/predict?session_id=x&horizon=100", 400),
        ("GET", "/runtime/predict?session_id=x&horizon=-", 400),
        ("GET", "/runtime/predict?session_id=x&horizon=--5", 400),
        ("GET", "/runtime/predict?session_id=x&horizon=1²", 400),
        ("GET", "/runtime/predict", 400),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
    ],
)
def test_paths(bench: Bench, method: str, path: str, status: int) -> None:
    answer = bench.ask(method, path)
    assert answer.status_code == status, answer.text
    if status >= 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_every_refused_request_is_counted(bench: Bench) -> None:
    counted: list[int] = []
    bench.gateway._metrics.count_refusal = counted.append
    assert bench.ask("POST", "/v1/chat/completions", None, json={}).status_code == 401
    assert bench.ask("POST", "/v1/completions", content=b"{").status_code == 400
    slots = [bench.gateway._admission.admit(tenant) for tenant in ("one", "ops")]
    assert bench.chat().status_code == 429
    for slot in slots:
        slot.free()
    assert bench.chat().status_code == 200 and counted == [401, 400, 429]


def test_keys_and_headers(bench: Bench) -> None:
    assert bench.ask("GET", "/v1/models", None).status_code == 401
    assert bench.ask("GET", "/runtime/", None).status_code == 200
    assert bench.ask("GET", "/v1/models", headers={"x-session-id": "a" * 40_000}).status_code == 431
    preflight = bench.ask("OPTIONS", "/v1/models", headers={"origin": "http://evil.example"})
    assert "access-control-allow-origin" not in preflight.headers


def test_an_absent_actor_costs_no_request(bench: Bench) -> None:
    bench.actor.away = True
    assert bench.chat().status_code == 200
    assert bench.ask("GET", "/runtime/state").status_code == 503
    bench.actor.away = False
    assert bench.ask("GET", "/runtime/state").json()["events"] == ["request_arrived"]


def test_a_fault_of_our_own_is_a_500_in_shape(bench: Bench) -> None:
    bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), object()]
    answer = bench.chat()
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"


def test_policy_needs_an_operator_and_json(bench: Bench) -> None:
    path = "/runtime/policy"
    assert bench.ask("POST", path, json={"mode": "lru"}).status_code == 403
    assert bench.ask("POST", path, "ops", content=b"{}").status_code == 415
    assert bench.ask("POST", path, "ops", json={"mode": "lru"}, headers={"origin": "http://evil"}).status_code == 403
    changed = bench.ask("POST", path, "ops", json={"mode": "lru", "prefetch": False})
    assert changed.json() == {"name": "kv_cache", "mode": "lru", "prefetch": {"enabled": False}}


def test_the_second_call_avoids_the_replica_that_failed_the_first(bench: Bench) -> None:
    """What was cached there would draw the second call to it too, until Serve has noticed its death."""
    bench.handle.scripts = [[ActorDiedError()], [RequestAccepted("r", 4, 0).to_wire(), Answer()]]
    assert bench.chat().status_code == 200
    (first, _), (second, _) = bench.handle.requests
    assert AVOID_XARG not in first.vllm_xargs and second.vllm_xargs[AVOID_XARG] == first.request_id


def test_a_request_that_waits_for_a_stuck_engine_goes_to_another_replica(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "LOOK_EVERY_S", 0.001)
    place = {"resident": {}, "running": 1, "waiting": 0, "block_size": 32, "total_blocks": 9, "age_s": 0.0}
    silent = {"r1": {**place, "silent_s": 60.0}, "r2": {**place, "silent_s": 0.0}}
    bench.routing.update_cluster({"replicas": silent, "anchors": {}})
    # In the router's place.
    monkeypatch.setattr(
        bench.handle, "chat", SimpleNamespace(remote=lambda request, raw: sent(bench, request, raw)), raising=True
    )
    bench.handle.scripts = [["stall"], [RequestAccepted("r2", 40, 32).to_wire(), Answer()]]
    answer = bench.chat()
    assert answer.status_code == 200 and answer.headers["x-agent-runtime-replica"] == "r2"
    (first, _), (second, _) = bench.handle.requests
    assert second.vllm_xargs[AVOID_XARG] == first.request_id and bench.handle.cancelled == 1


def sent(bench: Bench, request: Any, raw: Any) -> Any:
    bench.routing.note_sent(request.request_id, "r2" if bench.handle.requests else "r1")
    return bench.handle._remote(request, raw)


def test_an_engine_without_priorities_is_given_none(bench: Bench) -> None:
    """vLLM refuses any but 0 where its scheduler takes requests as they come."""
    bench.gateway._settings = dataclasses.replace(bench.gateway._settings, has_priorities=False)
    bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), Answer()]
    for priority in (4, -1_000_000):
        assert bench.chat(priority=priority).status_code == 200
    assert [request.priority for request, _ in bench.handle.requests] == [0, 0]


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/models", "/v1/messages", "/runtime/state", "/v1/nothing"]
)
def test_a_slash_at_the_end_changes_nothing(method: str, path: str) -> None:
    """A redirect has no JSON, and clients send their body anew or not at all."""
    bench = Bench()
    plain, slashed = (bench.ask(method, path + end, json={}) for end in ("", "/"))
    assert plain.status_code == slashed.status_code and slashed.status_code not in (301, 307)
    assert plain.json().keys() == slashed.json().keys()
    assert bench.ask("GET", "/runtime/").status_code == 200
