"""SECURITY.md against the tree: the files it names exist, and what it says is closed is closed."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from serve_app.app import ENDPOINTS
from serve_app.hints import FORWARDED_HEADERS, REPLACED_FIELDS


def test_files_that_it_names_exist(root: Path) -> None:
    text = (root / "SECURITY.md").read_text()
    named = re.findall(r"`((?:serve_app|replicas|runtime_actor|cluster|scripts)/[\w./]+)`", text)
    assert len(named) >= 6
    assert [path for path in named if not (root / path).exists()] == []


def test_what_it_says_is_replaced_is_replaced() -> None:
    assert {"cache_salt", "request_id", "vllm_xargs", "kv_transfer_params", "ec_transfer_params"} <= REPLACED_FIELDS
    assert {"content-type", "user-agent", "accept", "traceparent", "tracestate"} == FORWARDED_HEADERS


def test_the_openapi_description_has_each_path(root: Path) -> None:
    described = yaml.safe_load((root / "docs" / "openapi.yaml").read_text())["paths"]
    calls = {(path, method) for path, methods in described.items() for method in methods}
    routed: set[tuple[str, str]] = set()

    class Routes:
        def get(self, path: str, **_: object) -> None:
            routed.add((path.replace(":path", ""), "get"))

        def post(self, path: str, **_: object) -> None:
            routed.add((path.replace(":path", ""), "post"))

    for route in ENDPOINTS.values():
        route(Routes())
    assert calls == routed


def test_no_administration_endpoint_of_the_engine_is_routed() -> None:
    class Paths:
        def __init__(self) -> None:
            self.seen: set[str] = set()

        def get(self, path: str, **_: object) -> None:
            self.seen.add(path)

        post = get

    paths = Paths()
    for route in ENDPOINTS.values():
        route(paths)
    own = {path for path in paths.seen if path.startswith("/runtime/")} | {"/healthz", "/readyz"}
    openai = {path for path in paths.seen if path.startswith("/v1/")} | {"/tokenize", "/detokenize"}
    assert paths.seen == own | openai
    assert {path for path in openai if path.startswith("/v1/")} == {
        "/v1/models", "/v1/models/{model:path}", "/v1/chat/completions", "/v1/completions", "/v1/responses",
        "/v1/messages", "/v1/messages/count_tokens",
    }  # fmt: skip
