"""The deployment files against the code, without a cluster."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.configuration.file import check_file

CONFIGS = ("serve_config.yaml", "cluster/h100.yaml")


def rayservice(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "cluster" / "rayservice.yaml").read_text())


@pytest.mark.parametrize("name", CONFIGS)
def test_config_is_valid(root: Path, name: str) -> None:
    (config,) = check_file(str(root / name))
    assert config.runtime_settings().policies[0].name == "kv_cache"


@pytest.mark.parametrize("name", CONFIGS)
def test_import_path_resolves(root: Path, name: str) -> None:
    for application in yaml.safe_load((root / name).read_text())["applications"]:
        module, _, attribute = application["import_path"].partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


def test_serve_config_is_local_and_small(root: Path) -> None:
    content = yaml.safe_load((root / "serve_config.yaml").read_text())
    assert content["http_options"]["host"] == "127.0.0.1"
    (config,) = check_file(str(root / "serve_config.yaml"))
    deployment, engine = config.deployment, config.engine_kwargs
    assert deployment.num_replicas == 2
    assert deployment.num_replicas * deployment.num_cpus_per_replica < 1, "two cores hold all of it"
    assert engine["block_size"] % 32 == 0, "vLLM's CPU attention needs it"
    assert (engine["num_gpu_blocks_override"] - 1) * engine["block_size"] > engine["max_model_len"]


def test_rayservice_carries_the_h100_config(root: Path) -> None:
    assert rayservice(root)["spec"]["serveConfigV2"] == (root / "cluster" / "h100.yaml").read_text()


def test_rayservice_states_what_a_cluster_needs(root: Path) -> None:
    service = rayservice(root)
    cluster = service["spec"]["rayClusterConfig"]
    assert service["kind"] == "RayService"
    assert "headService" not in cluster["headGroupSpec"], "a fixed head service name blocks upgrades"
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["gcsFaultToleranceOptions"]["redisAddress"]
    (config,) = check_file(str(root / "cluster" / "h100.yaml"))
    mounts = [
        mount["mountPath"]
        for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
        for container in group["template"]["spec"]["containers"]
        for mount in container["volumeMounts"]
        if mount["name"] == "state"
    ]
    assert len(mounts) == 2
    for path in (config.runtime["checkpoint_dir"], config.gateway.secret_file):
        assert all(str(path).startswith(mount) for mount in mounts)
    locked = re.search(r"^ray==(\S+)", (root / "requirements" / "gpu.txt").read_text(), re.MULTILINE)
    assert locked and cluster["rayVersion"] == locked.group(1)


def test_one_gpu_a_replica(root: Path) -> None:
    (config,) = check_file(str(root / "cluster" / "h100.yaml"))
    assert config.deployment.num_gpus_per_replica == 1
    assert config.engine_kwargs.get("tensor_parallel_size", 1) == 1
    worker = rayservice(root)["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    gpus = int(worker["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert config.deployment.autoscaling is not None
    assert config.deployment.autoscaling.max_replicas <= gpus * worker["maxReplicas"]


def test_class_paths_resolve() -> None:
    """What the builder names as text: the scheduler (vLLM's form) and the servers (Ray's form)."""
    app = importlib.import_module("serve_app.app")
    for path in (":".join(app.SCHEDULER.rsplit(".", 1)), app.SERVER_CLASS, app.SIMULATED_CLASS):
        module, _, attribute = path.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


def test_dashboard_shows_metrics_that_exist(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = declared_metrics(monkeypatch)
    dashboard = json.loads((root / "cluster" / "grafana" / "agent_runtime.json").read_text())
    shown = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            shown |= set(
                re.findall(r"\bray_(agent_runtime_\w+?)(?:_bucket|_sum|_count)?\b(?=[{\[) ]|$)", target["expr"])
            )
    assert shown, "no panel shows one of our metrics"
    assert shown <= known, f"unknown: {sorted(shown - known)}"


def declared_metrics(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of all metrics that the publishers make, as Prometheus has them: no two make the same one.

    Ray exports a counter with `_total` at its end.
    """
    names: list[str] = []

    def recorder(suffix: str) -> Callable[..., object]:
        return lambda name, *_, **__: names.append(name + suffix)

    replica, actor, gateway = (
        importlib.import_module(name) for name in ("replicas.metrics", "runtime_actor.actor", "serve_app.metrics")
    )
    for module in (replica, actor.metrics, gateway.metrics):
        monkeypatch.setattr(module, "Counter", recorder("_total"))
        monkeypatch.setattr(module, "Gauge", recorder(""))
    replica.MetricsPublisher("r")
    actor.RuntimeMetrics()
    gateway.GatewayMetrics()
    assert len(names) == len(set(names)), sorted(names)
    return set(names)
