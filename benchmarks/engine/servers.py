"""The servers that are compared: two applications on one local Ray, or one that already runs."""

from __future__ import annotations

import copy
import hashlib
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import yaml
from ray import serve

from benchmarks.engine.cells import MODES, STOCK, Mode
from benchmarks.engine.drive import Endpoint
from benchmarks.engine.emptying import NotEmptied, empty
from cluster.embedded_model import ensure_embedded_model
from cluster.local import DEFAULT_CONFIG
from cluster.local_ray import LocalRay
from cluster.readiness import wait_until_ready
from cluster.stop_signals import StopSignals

START_TIMEOUT_S = 600.0
CALL_TIMEOUT_S = 60.0
SWITCH_TIMEOUT_S = 30.0
SWITCH_POLL_S = 0.1
OURS = "agent-runtime"
SHAPING, FAIRNESS = "batch_shaping", "fairness"
STOCK_ROUTE = "/stock"
MAX_TENANTS = 64
"""Each workload is a tenant of its own, so that none is learnt from another."""


class ServerError(Exception):
    """Raised when a server doesn't answer as documented; the message is the one line to show."""


class Servers(Protocol):
    """Where a cell's requests go. `policies`: those that can be measured here."""

    @property
    def policies(self) -> tuple[str, ...]: ...

    def prepare(self, policy: str, about: str) -> Endpoint:
        """Switch to the policy, with an empty prefix cache; what was learnt `about` this workload stays.

        Raises:
            ServerError: a policy that isn't served here, or no answer.
        """

    def state(self) -> dict[str, Any]:
        """GET /runtime/state as the operator."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What both applications get. blocks: of 32 tokens, a replica; with_stock, with_layer: which of them there are;
    threads: of each engine; simulated: a cost model instead of vLLM."""

    replicas: int
    blocks: int
    block_tokens: int = 32
    threads: int = 1
    with_stock: bool = True
    with_layer: bool = True
    simulated: dict[str, Any] | None = None

    @property
    def cache_blocks(self) -> int:
        """Of all replicas; one block of each is vLLM's own."""
        return self.replicas * (self.blocks - 1)


class RuntimeApi:
    """The operator's side of one server of ours."""

    def __init__(self, url: str, key: str) -> None:
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self.url = url

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = httpx.request(
                method, self.url + path, json=body, headers=self._headers, timeout=CALL_TIMEOUT_S, trust_env=False
            )
        except httpx.HTTPError as error:
            raise ServerError(f"no server at {self.url} ({error})") from error
        if response.status_code >= 400:
            raise ServerError(f"{method} {path}: {response.status_code} {response.text[:200]}")
        return dict(response.json())

    def model(self) -> str:
        return str(self.call("GET", "/v1/models")["data"][0]["id"])

    def state(self) -> dict[str, Any]:
        return self.call("GET", "/runtime/state")

    def policy_row(self, name: str) -> dict[str, Any] | None:
        """None where it isn't configured."""
        return next((row for row in self.state()["policies"] if row["name"] == name), None)

    def switch(self, name: str, enabled: bool) -> None:
        """Returns once the gateway has heard of it. Raises ServerError: not configured there, or not heard in time."""
        self.call("POST", "/runtime/policy", {"name": name, "enabled": enabled})
        deadline_s = time.monotonic() + SWITCH_TIMEOUT_S
        while time.monotonic() < deadline_s:
            row = self.policy_row(name)
            if row is not None and row["enabled"] == enabled:
                return
            time.sleep(SWITCH_POLL_S)
        raise ServerError(f"{self.url}: the gateway didn't hear of {name} within {SWITCH_TIMEOUT_S:.0f} s")

    def set_mode(self, mode: Mode) -> None:
        """Raises ServerError for one that isn't configured there."""
        self.call("POST", "/runtime/policy", {"name": "kv_cache", **mode.kv_cache})
        for name, is_on in ((SHAPING, mode.shaped), (FAIRNESS, mode.fair)):
            if is_on or self.policy_row(name) is not None:
                self.switch(name, is_on)

    def mode(self) -> Mode:
        """As it is now."""
        cache, *rows = map(self.policy_row, ("kv_cache", SHAPING, FAIRNESS))
        if cache is None:
            raise ServerError(f"{self.url}: the policy kv_cache isn't configured there")
        return Mode(cache["mode"], cache["prefetch"]["enabled"], *(row is not None and row["enabled"] for row in rows))


class RunningServer:
    """A server that somebody else started: policies are switched on it, and left as they were found.

    Its cache can't be emptied from outside; a fresh `salt` in every prompt keeps cells apart.
    """

    def __init__(self, url: str, key: str, operator_key: str) -> None:
        self._api = RuntimeApi(url, operator_key)
        self._endpoint = Endpoint(url, self._api.model(), key)

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(policy for policy in MODES if policy != STOCK)

    def prepare(self, policy: str, about: str) -> Endpoint:
        mode = MODES[policy]
        if mode is None:
            raise ServerError("stock can't be measured on a server that already runs; leave --url out")
        self._api.set_mode(mode)
        return self._endpoint

    def state(self) -> dict[str, Any]:
        return self._api.state()

    @contextmanager
    def kept(self) -> Iterator[RunningServer]:
        before = self._api.mode()
        try:
            yield self
        finally:
            self._api.set_mode(before)


@dataclass(slots=True)
class OwnServers:
    """Both applications on a Ray of this program's own; see `started`."""

    machine: Machine
    url: str
    model: str
    keys: list[str]
    operator_key: str
    tenants: dict[str, str] = field(default_factory=dict)
    _api: RuntimeApi = field(init=False)

    def __post_init__(self) -> None:
        self._api = RuntimeApi(self.url, self.operator_key)

    @property
    def policies(self) -> tuple[str, ...]:
        has = self.machine
        return tuple(policy for policy in MODES if (has.with_stock if policy == STOCK else has.with_layer))

    def prepare(self, policy: str, about: str) -> Endpoint:
        if policy not in self.policies:
            raise ServerError(f"{policy!r} isn't served here; there are: {', '.join(self.policies)}")
        mode = MODES[policy]
        if mode is None:
            endpoint = Endpoint(self.url + STOCK_ROUTE, self.model, names_sessions=False)
            self._empty(STOCK, endpoint)
            return endpoint
        self._api.set_mode(mode)
        self._empty(OURS, Endpoint(self.url, self.model, self.operator_key))
        if about not in self.tenants:
            self.tenants[about] = self.keys[len(self.tenants) % len(self.keys)]
        return Endpoint(self.url, self.model, self.tenants[about])

    def state(self) -> dict[str, Any]:
        return self._api.state()

    def _empty(self, application: str, endpoint: Endpoint) -> None:
        if self.machine.simulated is not None:
            return  # a new tenant's salt finds nothing; what is left there is nobody's
        try:
            empty(endpoint, self.machine.replicas, lambda: _reset(application))
        except NotEmptied as error:
            raise ServerError(str(error)) from error


def _reset(application: str) -> None:
    for name in serve.status().applications[application].deployments:
        if "LLMServer" in name:
            handle = serve.get_deployment_handle(name, application)
            handle.broadcast("reset_prefix_cache").results(timeout_s=CALL_TIMEOUT_S)


@contextmanager
def started(machine: Machine) -> Iterator[OwnServers]:
    """Start both applications; everything ends with the block, also when a signal ends it.

    Raises:
        LaunchError: one of them didn't start.
        StopRequested: a signal came.
    """
    with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
        keys = [secrets.token_hex(16) for _ in range(MAX_TENANTS)]
        operator_key = secrets.token_hex(16)
        config = serve_config(machine, Path(folder), keys, operator_key)
        with deployed(config, machine.replicas if machine.with_layer else 0) as url:
            yield OwnServers(machine, url, _model_id(), keys, operator_key)


@contextmanager
def deployed(config: dict[str, Any], replicas: int) -> Iterator[str]:
    """The URL of what a Serve configuration describes, on a Ray of its own, once so many of our replicas answer.

    Raises:
        LaunchError: an application didn't start.
        StopRequested: a signal came.
    """
    stop = StopSignals()
    stop.install()
    cluster = LocalRay()
    url = f"http://127.0.0.1:{config['http_options']['port']}"
    try:
        cluster.start()
        stop.take_over()
        cluster.deploy(config)
        for application in config["applications"]:
            cluster.wait_until_running(application["name"], START_TIMEOUT_S, lambda done, total: None)
        if replicas:
            wait_until_ready(url, replicas, START_TIMEOUT_S, lambda done, total: None)
        yield url
    finally:
        stop.ignore()
        cluster.stop()


def serve_config(machine: Machine, folder: Path, keys: list[str], operator_key: str) -> dict[str, Any]:
    """serve_config.yaml with this machine's sizes, and beside it plain `ray.serve.llm` with equal engine_kwargs."""
    content: dict[str, Any] = yaml.safe_load(DEFAULT_CONFIG.read_text(encoding="utf-8"))
    content["http_options"]["port"] = _free_port()
    ours = content["applications"][0]
    ours["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] = str(machine.threads)
    arguments = ours["args"]
    arguments["engine_kwargs"]["num_gpu_blocks_override"] = machine.blocks
    arguments["deployment"]["num_replicas"] = machine.replicas
    arguments["runtime"]["checkpoint_dir"] = str(folder / "checkpoints")
    arguments["gateway"] |= {
        "secret_file": str(folder / "identity.key"),
        "api_keys": [_api_key(f"workload-{number}", key) for number, key in enumerate(keys)]
        + [{**_api_key("operator", operator_key), "operator": True}],
    }
    if machine.simulated is not None:
        blocks = {"num_blocks": machine.blocks, "block_size": machine.block_tokens}
        arguments |= {"engine": "simulated", "simulated": {**machine.simulated, **blocks}}
    if machine.with_stock:
        content["applications"].append(_stock_application(ours, machine))
    if not machine.with_layer:
        content["applications"].remove(ours)
    return content


def _model_id() -> str:
    return str(yaml.safe_load(DEFAULT_CONFIG.read_text(encoding="utf-8"))["applications"][0]["args"]["model"]["id"])


def _api_key(tenant: str, key: str) -> dict[str, Any]:
    return {"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()}


def _stock_application(ours: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """As Ray's documentation has it, but for what a small CPU machine needs: fractions of a core, no GPU."""
    arguments = ours["args"]
    deployment = arguments["deployment"]
    engine_kwargs = copy.deepcopy(arguments["engine_kwargs"])
    usable = (machine.blocks - 1) * machine.block_tokens
    engine_kwargs["max_model_len"] = min(engine_kwargs["max_model_len"], usable)
    # Only so that the cached tokens are in the answer.
    engine_kwargs["enable_prompt_tokens_details"] = True
    llm = {
        "model_loading_config": {
            "model_id": arguments["model"]["id"],
            "model_source": str(ensure_embedded_model()),
        },
        "engine_kwargs": engine_kwargs,
        "deployment_config": {
            "num_replicas": machine.replicas,
            "max_ongoing_requests": deployment["max_ongoing_requests"],
            "ray_actor_options": {"num_cpus": 0},
        },
        "accelerator_config": {"kind": "cpu"},
        "placement_group_config": {"bundles": [{"CPU": deployment["num_cpus_per_replica"]}]},
    }
    return {
        "name": STOCK,
        "route_prefix": STOCK_ROUTE,
        "import_path": "ray.serve.llm:build_openai_app",
        "runtime_env": copy.deepcopy(ours["runtime_env"]),
        "args": {
            "llm_configs": [llm],
            "ingress_deployment_config": {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0}},
        },
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
