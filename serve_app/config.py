"""AppConfig: the `args` of the application in serve_config.yaml, checked to the last key.

`load` raises ConfigurationError in one line: key path, value, what is allowed. The check of a whole
file, with Ray Serve's own keys around it, is in `config_file.py`; `python -m serve_app.config FILE`
runs it.
"""

import ipaddress
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from replicas.engine.messages import EngineSettings
from replicas.settings import ReplicaSettings
from replicas.simulation.engine import CostModel
from runtime_actor.errors import ConfigurationError
from runtime_actor.policies import catalogue
from runtime_actor.policies.deadline import DeadlineOptions, DeadlinePolicy
from runtime_actor.policies.routing import RoutingPolicy
from runtime_actor.settings import AnyPolicySettings, PluggedSettings, PolicySettings, RuntimeSettings, from_dict
from serve_app.configuration.engine import check_engine
from serve_app.configuration.errors import explain

EMBEDDED = "embedded"
USUAL_STEP_TOKENS = 2048
USUAL_NUM_SEQS = 16
"""Requests that an engine runs at once where `max_num_seqs` isn't configured: few enough for a queue to form
here, where it can be ordered, before one forms in the engine."""


ROUTING_OPTIONS = {"enabled", "cached_weight", "reach_weight", "load_weight", "hot_requests"}


class Section(BaseModel):
    """A level of the file: no unknown keys, no text for a number, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


ModelName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/\-]*$")]


class ModelConfig(Section):
    """`source`: `embedded`, a directory, or a hub id. `modalities` beyond text need a model that has them.
    `adapters`: name -> folder of a LoRA adapter in PEFT's format; requests name one as their model."""

    id: ModelName
    source: str = Field(min_length=1, max_length=1024)
    modalities: list[Literal["text", "image", "audio", "video"]] = ["text"]
    adapters: dict[ModelName, str] = Field(default={}, max_length=1024)

    @model_validator(mode="after")
    def _names_differ(self) -> "ModelConfig":
        if self.id in self.adapters:
            raise ValueError(f"adapters: {self.id} is the model's own name; allowed: another one")
        return self


class AutoscalingConfig(Section):
    """Handed to Ray Serve; only what is stable there."""

    min_replicas: int = Field(default=1, ge=0, le=4096)
    max_replicas: int = Field(default=1, ge=1, le=4096)
    target_ongoing_requests: float = Field(default=8.0, gt=0)
    upscale_delay_s: float = Field(default=30.0, ge=0)
    downscale_delay_s: float = Field(default=600.0, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> "AutoscalingConfig":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} must be at most max_replicas {self.max_replicas}")
        return self


class DeploymentConfig(Section):
    """Resources are per replica. `accelerator_type` is Ray's name of a GPU (H100, L4, ...)."""

    num_replicas: int = Field(default=1, ge=1, le=4096)
    autoscaling: AutoscalingConfig | None = None
    max_ongoing_requests: int = Field(default=64, ge=1, le=100_000)
    num_cpus_per_replica: float = Field(default=1.0, ge=0, le=1024)
    num_gpus_per_replica: float = Field(default=0.0, ge=0, le=64)
    memory_bytes_per_replica: int = Field(default=0, ge=0)
    accelerator_type: str | None = Field(default=None, min_length=1, max_length=64)
    graceful_shutdown_timeout_s: float = Field(default=30.0, ge=0, le=86_400)
    health_check_period_s: float = Field(default=10.0, gt=0, le=3600)
    health_check_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    env_vars: dict[str, str] = {}

    @model_validator(mode="after")
    def _all_used(self) -> "DeploymentConfig":
        if self.autoscaling is not None and "num_replicas" in self.model_fields_set:
            raise ValueError("num_replicas: has no effect with autoscaling; allowed: one of the two")
        if self.accelerator_type is not None and self.num_gpus_per_replica == 0:
            raise ValueError("accelerator_type: has no effect without GPUs; allowed: with num_gpus_per_replica above 0")
        return self


class RoutingConfig(Section):
    """`max_snapshot_age_s` is how long a view of the cluster may be used. The others are those of the policy `routing`
    where the list of policies doesn't name it."""

    enabled: bool = True
    cached_weight: float = Field(default=1.0, ge=0, le=100)
    reach_weight: float = Field(default=0.5, ge=0, le=100)
    load_weight: float = Field(default=1.0, ge=0, le=100)
    hot_requests: int = Field(default=4, ge=1, le=10_000)
    max_snapshot_age_s: float = Field(default=5.0, gt=0, le=600)
    max_sessions: int = Field(default=16_384, ge=16, le=1_000_000)


class ApiKey(Section):
    """One key of a tenant, as its SHA-256 in hex; the key itself is never written down."""

    tenant: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]{0,63}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    operator: bool = False


class Quota(Section):
    """What one tenant may use of one gateway process; null is no limit of its own."""

    max_in_flight: int | None = Field(default=None, ge=1, le=100_000)
    requests_per_minute: int | None = Field(default=None, ge=1, le=10_000_000)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=10_000_000_000)


class KeyRing(Section):
    """Who may come in, and what each tenant may use; `quotas` by tenant, whole, instead of the common one."""

    api_keys: list[ApiKey] = Field(default=[], max_length=4096)
    quotas: dict[str, Quota] = Field(default={}, max_length=4096)


class GatewayConfig(KeyRing):
    """Limits of what a client may send and how long it may take.

    `keys_file` is read on top of `api_keys` and `quotas`, and again when it changes. `quota` is for tenants without
    one of their own. `cache_groups` name tenants that share one prefix cache; without, nobody shares. `cache_floor`
    is the part of an equal share of each engine's cache that a tenant keeps whatever others do. `standbys` are
    further gateway processes that wait for the end of the one that serves.
    """

    keys_file: str | None = Field(default=None, min_length=1, max_length=4096)
    quota: Quota = Quota()
    cache_groups: dict[str, list[str]] = Field(default={}, max_length=4096)
    cache_floor: float = Field(default=0.0, ge=0.0, le=0.8)
    standbys: int = Field(default=1, ge=0, le=8)
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, le=1 << 30)
    max_header_bytes: int = Field(default=32 * 1024, ge=1024, le=1 << 20)
    max_json_depth: int = Field(default=64, ge=4, le=256)
    max_in_flight: int = Field(default=256, ge=1, le=100_000)
    max_running: int | None = Field(default=None, ge=1, le=100_000)
    max_choices: int = Field(default=16, ge=1, le=128)
    retry_after_s: int = Field(default=1, ge=1, le=3600)
    request_timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    body_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    cors_origins: list[str] = []
    secret_file: str | None = Field(default=None, min_length=1, max_length=4096)

    @property
    def has_keys(self) -> bool:
        """Whether clients need a key; a keys file without keys lets nobody in."""
        return bool(self.api_keys) or self.keys_file is not None

    @model_validator(mode="after")
    def _one_group_each(self) -> "GatewayConfig":
        grouped = [tenant for tenants in self.cache_groups.values() for tenant in tenants]
        for tenant in grouped:
            if grouped.count(tenant) > 1:
                raise ValueError(f"cache_groups: tenant {tenant} is named twice; allowed: once in all groups")
        return self

    def cache_owner(self, tenant: str) -> str:
        """Whose prefix cache the tenant uses: its own, or its group's. A tenant's name can't hold a colon."""
        for group, tenants in self.cache_groups.items():
            if tenant in tenants:
                return f"group:{group}"
        return tenant


class AppConfig(Section):
    """All of it. `policies` and `runtime` are checked by the runtime's own settings."""

    model: ModelConfig
    deployment: DeploymentConfig = DeploymentConfig()
    engine: Literal["vllm", "simulated"] = "vllm"
    engine_kwargs: dict[str, Any] = {}
    policies: list[dict[str, Any]] = [{"name": "kv_cache"}]
    runtime: dict[str, Any] = {}
    replica: dict[str, Any] = {}
    simulated: dict[str, Any] = {}
    routing: RoutingConfig = RoutingConfig()
    gateway: GatewayConfig = GatewayConfig()

    @field_validator("model", "deployment", "routing", "gateway", mode="before")
    @classmethod
    def _absent(cls, value: Any, info: Any) -> Any:
        """A section written without content reads as its defaults."""
        return {} if value is None and info.field_name != "model" else value

    def runtime_settings(self) -> RuntimeSettings:
        """Raises ConfigurationError."""
        values = {"checkpoint_dir": str(self.state_dir / "checkpoints"), **self.runtime}
        return RuntimeSettings.from_dict({**values, "policies": [*self.policies, *self._implied_policies()]})

    def _implied_policies(self) -> list[dict[str, Any]]:
        """Routing is on unless something is said of it. Raises ConfigurationError where it is said in two places."""
        told = self.routing.model_fields_set & ROUTING_OPTIONS
        if not any(policy.get("name") == RoutingPolicy.name for policy in self.policies):
            options = self.routing.model_dump(include=ROUTING_OPTIONS - {"enabled"})
            return [{"name": RoutingPolicy.name, "enabled": self.routing.enabled, "options": options}]
        if told:
            name = min(told)
            raise ConfigurationError(
                f"routing.{name}: {getattr(self.routing, name)!r} is not allowed; allowed: in the policy `routing`, "
                "since the list of policies names it"
            )
        return []

    def engine_policy(self) -> dict[str, Any]:
        """What a replica's scheduler is started with; an absent or disabled policy leaves stock LRU."""
        policies = self.runtime_settings().policies
        for policy in policies:
            if isinstance(policy, PolicySettings) and policy.enabled:
                values = {"policy": policy.mode, "weight": policy.weight, "tenant_floor": self.gateway.cache_floor}
                return {**values, **_priority_share(policies)}
        return {"policy": "lru"}

    @property
    def running_requests(self) -> int:
        """How many requests pass a gateway's queue at once: as many as the engines run, unless configured."""
        if self.gateway.max_running is not None:
            return self.gateway.max_running
        each = self.simulated if self.engine == "simulated" else self.engine_kwargs
        return self._most_replicas * int(each.get("max_num_seqs") or USUAL_NUM_SEQS)

    @property
    def prefill_tokens(self) -> int:
        """How many prompt tokens a gateway lets wait for their first output: two steps of each engine."""
        if self.engine == "simulated":
            return 2 * self._most_replicas * int(self.simulated.get("step_tokens") or USUAL_STEP_TOKENS)
        return 2 * self._most_replicas * int(self.engine_kwargs.get("max_num_batched_tokens") or USUAL_STEP_TOKENS)

    @property
    def _most_replicas(self) -> int:
        autoscaling = self.deployment.autoscaling
        return autoscaling.max_replicas if autoscaling is not None else self.deployment.num_replicas

    @property
    def state_dir(self) -> Path:
        """Where the secret and the checkpoints of one user live unless configured: beside the converted model."""
        base = os.environ.get("XDG_CACHE_HOME", "")
        root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
        return root / "agent-runtime"

    @property
    def secret_path(self) -> Path:
        configured = self.gateway.secret_file
        return Path(configured).expanduser() if configured else self.state_dir / "identity.key"

    @property
    def cache_tokens(self) -> int | None:
        """Tokens that a replica's KV cache can hold, where the configuration says so; one block is vLLM's own."""
        blocks = self.engine_kwargs.get("num_gpu_blocks_override")
        if blocks is None:
            return None
        return (int(blocks) - 1) * int(self.engine_kwargs.get("block_size") or 16)


def _priority_share(policies: Iterable[AnyPolicySettings]) -> dict[str, float]:
    """What the policy `deadline` leaves of the worth of KV that low priorities hold; absent while it is off."""
    for policy in policies:
        if isinstance(policy, PluggedSettings) and policy.enabled and policy.name == DeadlinePolicy.name:
            options = from_dict(DeadlineOptions, policy.options, "policies.deadline.options")
            return {"priority_share": options.cache_share}
    return {}


def load(args: Any) -> AppConfig:
    """Raises ConfigurationError in one line."""
    if not isinstance(args, dict):
        raise ConfigurationError(f"args: {args!r} is not allowed; allowed: a mapping with at least 'model'")
    try:
        config = AppConfig.model_validate(args)
    except ValidationError as error:
        raise ConfigurationError(explain(error, AppConfig)) from None
    check_engine(config.engine_kwargs, config.engine == "vllm" and config.deployment.num_gpus_per_replica == 0)
    _check_runtime(config)
    _check_capacity(config)
    _check_gpus(config)
    return config


def _check_runtime(config: AppConfig) -> None:
    try:
        catalogue.check(config.runtime_settings().policies)
        ReplicaSettings.from_dict(config.replica)
        from_dict(CostModel, config.simulated, "simulated")
    except ConfigurationError as error:
        raise ConfigurationError(re.sub(r"^runtime\.policies", "policies", str(error))) from None
    try:
        EngineSettings.from_config(config.engine_policy())
    except ConfigurationError as error:
        raise ConfigurationError(f"policies: {error}") from None


def _check_gpus(config: AppConfig) -> None:
    gpus = config.deployment.num_gpus_per_replica
    if gpus > 1 and gpus != int(gpus):
        raise ConfigurationError(
            f"deployment.num_gpus_per_replica: {gpus:g} is not allowed; allowed: at most 1, or a whole number"
        )
    sizes = [int(config.engine_kwargs.get(f"{kind}_parallel_size") or 1) for kind in ("tensor", "pipeline")]
    if config.engine == "vllm" and gpus > 0 and sizes[0] * sizes[1] != max(1, int(gpus)):
        raise ConfigurationError(
            f"deployment.num_gpus_per_replica: {gpus:g} is not allowed with tensor_parallel_size {sizes[0]} and "
            f"pipeline_parallel_size {sizes[1]}; allowed: {sizes[0] * sizes[1]}"
        )


def _check_capacity(config: AppConfig) -> None:
    tokens = config.cache_tokens
    if tokens is not None and tokens < 1:
        blocks = config.engine_kwargs["num_gpu_blocks_override"]
        raise ConfigurationError(
            f"engine_kwargs.num_gpu_blocks_override: {blocks} is not allowed; allowed: an integer >= 2"
        )


def is_loopback(host: str) -> bool:
    """`localhost` or a loopback address; any other name may resolve to anything."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    from serve_app.configuration.file import main  # this module is what `-m` runs; the file check builds on it

    sys.exit(main(sys.argv[1:]))
