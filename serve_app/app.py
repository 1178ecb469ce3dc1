"""`build_app`: what `serve run serve_config.yaml` calls with the `args` of the file.

No `from __future__ import annotations` here: with it Ray can't see the builder's argument type and
hands over whatever it has, so the raw dict is taken and checked in any case.
"""

import json
import math
import time
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application
from ray.serve.llm import LLMConfig, build_llm_deployment
from ray.serve.llm.ingress import make_fastapi_ingress

from replicas.engine.messages import ADDITIONAL_CONFIG_KEY
from runtime_actor.errors import ConfigurationError
from runtime_actor.policies import catalogue
from runtime_actor.policies.base import ENGINE
from runtime_actor.settings import to_dict
from serve_app import secret_file
from serve_app.config import EMBEDDED, AppConfig, load
from serve_app.gateway import Gateway
from serve_app.http.app import make_app
from serve_app.leader import OldestFirst
from serve_app.router import AgentRequestRouter
from serve_app.settings import GatewaySettings
from serve_app.tenants import Tenants

SERVER_CLASS = "replicas.server:AgentLLMServer"
SIMULATED_CLASS = "replicas.simulated:SimulatedLLMServer"
SCHEDULER = "replicas.scheduler.agent_scheduler"
MAX_GATEWAY_ONGOING = 100_000
"""Above `gateway.max_in_flight`: the gateway itself says 429, in its own shape."""

ENDPOINTS = {
    "models": lambda app: app.get("/v1/models"),
    "model_data": lambda app: app.get("/v1/models/{model:path}"),
    "chat": lambda app: app.post("/v1/chat/completions", response_model=None),
    "completions": lambda app: app.post("/v1/completions", response_model=None),
    "responses": lambda app: app.post("/v1/responses", response_model=None),
    "messages": lambda app: app.post("/v1/messages", response_model=None),
    "count_tokens": lambda app: app.post("/v1/messages/count_tokens"),
    "tokenize": lambda app: app.post("/tokenize"),
    "detokenize": lambda app: app.post("/detokenize"),
    "runtime_state": lambda app: app.get("/runtime/state"),
    "runtime_predict": lambda app: app.get("/runtime/predict"),
    "runtime_events": lambda app: app.post("/runtime/events"),
    "runtime_policy": lambda app: app.post("/runtime/policy"),
    "memo_lookup": lambda app: app.post("/runtime/memo/lookup"),
    "memo_store": lambda app: app.post("/runtime/memo/store"),
    "memo_release": lambda app: app.post("/runtime/memo/release"),
    "memo_invalidate": lambda app: app.post("/runtime/memo/invalidate"),
    "runtime_page": lambda app: app.get("/runtime/"),
    "healthz": lambda app: app.get("/healthz"),
    "readyz": lambda app: app.get("/readyz"),
}


def build_app(args: dict) -> Application:
    """Raises ConfigurationError in one line that names key, value and what is allowed."""
    config = load(args)
    # A keys file that can't be used is said now, rather than by a gateway that doesn't start.
    Tenants(config.gateway)
    version = int(time.time())
    model = _model_source(config)
    model_tokens = _model_tokens(config, model)
    usable_tokens = min(model_tokens, config.cache_tokens or model_tokens)
    runtime = config.runtime_settings().to_dict()
    server = build_llm_deployment(
        _llm_config(config, model, usable_tokens),
        bind_kwargs=_server_arguments(config, runtime, version),
    )
    settings = GatewaySettings(
        config=config,
        secret=secret_file.load_or_create(config.secret_path),
        runtime=runtime,
        version=version,
        usable_tokens=usable_tokens,
        model_tokens=model_tokens,
        has_priorities=config.engine_kwargs.get("scheduling_policy", "priority") == "priority",
    )
    ingress = make_fastapi_ingress(Gateway, endpoint_map=ENDPOINTS, app=make_app(config.gateway))
    return serve.deployment(
        ingress,
        name="Gateway",
        num_replicas=1 + config.gateway.standbys,
        max_ongoing_requests=MAX_GATEWAY_ONGOING,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=config.deployment.graceful_shutdown_timeout_s,
        request_router_config=RequestRouterConfig(request_router_class=OldestFirst),
    ).bind(llm_deployments={config.model.id: server}, model_cards={config.model.id: None}, settings=settings)


def _server_arguments(config: AppConfig, runtime: dict[str, Any], version: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"replica": config.replica, "runtime": runtime, "config_version": version}
    if config.model.adapters:
        arguments["adapters"] = dict(config.model.adapters)
    if config.engine == "simulated":
        arguments |= {"simulated": config.simulated, "values": config.engine_policy()}
    return arguments


def _llm_config(config: AppConfig, model: str, usable_tokens: int) -> LLMConfig:
    deployment = config.deployment
    on_gpu = deployment.num_gpus_per_replica > 0 and config.engine == "vllm"
    return LLMConfig(
        model_loading_config={"model_id": config.model.id, "model_source": model},
        engine_kwargs=_engine_arguments(config, usable_tokens),
        deployment_config=_deployment_options(config),
        accelerator_type=deployment.accelerator_type if on_gpu else None,
        accelerator_config=None if on_gpu else {"kind": "cpu"},
        placement_group_config={"bundles": _bundles(config, on_gpu)},
        server_cls=SIMULATED_CLASS if config.engine == "simulated" else SERVER_CLASS,
        experimental_configs={"stream_batching_interval_ms": 0},
        runtime_env={"env_vars": dict(deployment.env_vars)} if deployment.env_vars else None,
    )


def _bundles(config: AppConfig, on_gpu: bool) -> list[dict[str, float]]:
    """One bundle a GPU, as vLLM's executor wants them; the first one holds the replica's CPUs as well."""
    deployment = config.deployment
    first: dict[str, float] = {"CPU": deployment.num_cpus_per_replica}
    gpus = deployment.num_gpus_per_replica
    if gpus <= 0:
        return [first]
    first["GPU"] = min(gpus, 1.0)
    if deployment.accelerator_type and not on_gpu:
        # Ray adds this for real engines; a simulated one is placed where the real one would be.
        first[f"accelerator_type:{deployment.accelerator_type}"] = 0.001
    return [first, *({"GPU": 1.0} for _ in range(math.ceil(gpus) - 1))]


def _engine_arguments(config: AppConfig, usable_tokens: int) -> dict[str, Any]:
    """The configured ones win, but for what the runtime needs.

    `max_model_len` is no more than the KV cache holds: the engine would else accept a prompt that it can
    never schedule, and everything behind that waits for ever.
    """
    arguments = {
        "scheduling_policy": "priority",
        "enable_prompt_tokens_details": True,
        **config.engine_kwargs,
        "scheduler_cls": SCHEDULER,
        "additional_config": {ADDITIONAL_CONFIG_KEY: {**config.engine_policy(), **_engine_policies(config)}},
    }
    if config.model.adapters:
        arguments["enable_lora"] = True
    if config.cache_tokens is not None:
        arguments["max_model_len"] = usable_tokens
    return arguments


def _engine_policies(config: AppConfig) -> dict[str, Any]:
    """Absent where none runs in the engine: its queue is then vLLM's own."""
    entries = config.runtime_settings().policies
    found = [to_dict(entry) for entry in entries if entry.enabled and catalogue.class_of(entry).seat == ENGINE]
    return {"policies": found} if found else {}


def _deployment_options(config: AppConfig) -> dict[str, Any]:
    deployment, routing = config.deployment, config.routing
    options: dict[str, Any] = {
        "max_ongoing_requests": deployment.max_ongoing_requests,
        "graceful_shutdown_timeout_s": deployment.graceful_shutdown_timeout_s,
        "health_check_period_s": deployment.health_check_period_s,
        "health_check_timeout_s": deployment.health_check_timeout_s,
        "ray_actor_options": {"num_cpus": 0, "num_gpus": 0},
        "request_router_config": RequestRouterConfig(
            request_router_class=AgentRequestRouter,
            request_router_kwargs={"max_snapshot_age_s": routing.max_snapshot_age_s},
        ),
    }
    if deployment.memory_bytes_per_replica:
        options["ray_actor_options"]["memory"] = deployment.memory_bytes_per_replica
    if deployment.autoscaling is None:
        return {**options, "num_replicas": deployment.num_replicas}
    return {**options, "autoscaling_config": deployment.autoscaling.model_dump()}


def _model_source(config: AppConfig) -> str:
    """Raises ConfigurationError when the embedded model can't be made."""
    if config.engine == "simulated":
        return config.model.id
    if config.model.source != EMBEDDED:
        return config.model.source
    # Only this source needs the package that knows how to make the model.
    from cluster.embedded_model import ensure_embedded_model  # noqa: PLC0415
    from cluster.errors import EmbeddedModelError  # noqa: PLC0415

    try:
        return str(ensure_embedded_model())
    except EmbeddedModelError as error:
        raise ConfigurationError(f"model.source: 'embedded' can't be used: {error}") from None


def _model_tokens(config: AppConfig, model: str) -> int:
    """The context that the configuration or the model's own files allow.

    Raises:
        ConfigurationError: neither says so although the size of the KV cache is configured.
    """
    if config.engine == "simulated":
        return int(config.simulated.get("max_model_len", 8192))
    configured = config.engine_kwargs.get("max_model_len")
    if isinstance(configured, int) and configured > 0:
        return configured
    path = Path(model) / "config.json"
    if path.is_file():
        own = json.loads(path.read_text(encoding="utf-8")).get("max_position_embeddings")
        if isinstance(own, int):
            return own
    if config.cache_tokens is not None:
        raise ConfigurationError(
            "engine_kwargs.max_model_len: missing; allowed: an integer >= 1 (num_gpu_blocks_override is set "
            "and the model's own limit is not known here)"
        )
    return UNKNOWN_TOKENS


UNKNOWN_TOKENS = 2**31 - 1
"""The engine knows its model's limit; nothing is clipped here."""
