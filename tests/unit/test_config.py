"""A wrong serve_config.yaml is one line that names key, value and what is allowed."""

from __future__ import annotations

import copy
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.embedded_model import cache_folder
from runtime_actor.errors import ConfigurationError
from serve_app import secret_file
from serve_app.config import is_loopback, load
from serve_app.configuration.engine import DTYPES
from serve_app.configuration.engine_arguments import engine_argument_types
from serve_app.configuration.file import check_content, check_file

ARGS: dict[str, Any] = {
    "model": {"id": "m", "source": "embedded"},
    "deployment": {"num_replicas": 2, "num_cpus_per_replica": 0.4},
    "engine_kwargs": {"max_model_len": 8192, "block_size": 32, "num_gpu_blocks_override": 400},
    "policies": [{"name": "kv_cache", "mode": "reach", "prefetch": {"enabled": True}}],
    "runtime": {"window": 4096},
    "gateway": {"max_in_flight": 64},
}
FILE: dict[str, Any] = {
    "proxy_location": "HeadOnly",
    "http_options": {"host": "127.0.0.1", "port": 8000},
    "applications": [{"name": "a", "route_prefix": "/", "import_path": "serve_app.app:build_app", "args": ARGS}],
}


def changed(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(content)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target: Any = result
    for part in parents:
        target = target.setdefault(part, {}) if isinstance(target, dict) else target[part]
    target[last] = value
    return result


def test_a_good_one() -> None:
    config = load(ARGS)
    assert config.cache_tokens == 399 * 32
    assert config.runtime_settings().window == 4096
    assert config.engine_policy()["policy"] == "reach"
    (from_file,) = check_content(FILE)
    assert from_file == config


def test_state_lives_beside_the_converted_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(ARGS)
    for base, root in ((str(tmp_path), tmp_path), ("relative", Path.home() / ".cache"), ("", Path.home() / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert config.state_dir == root / "agent-runtime" == cache_folder().parent
        assert config.secret_path.parent == config.state_dir
        assert config.runtime_settings().checkpoint_dir == str(config.state_dir / "checkpoints")


def test_empty_sections_are_defaults() -> None:
    assert load({"model": ARGS["model"], "gateway": None, "routing": None}).gateway.api_keys == []


BAD_ARGS = [
    ("deployment.num_replica", 2, "num_replicas"),
    ("deployment.num_replicas", "two", "integer"),
    ("deployment.num_replicas", -1, ">= 1"),
    ("deployment.num_replicas", True, "integer"),
    ("deployment.autoscaling", {"min_replicas": 5, "max_replicas": 2}, "at most"),
    ("deployment.autoscaling", {"min_replicas": 1, "max_replicas": 2}, "num_replicas: has no effect with autoscaling"),
    ("deployment.accelerator_type", "H100", "num_gpus_per_replica above 0"),
    ("engine_kwargs.max_model_length", 8192, "max_model_len"),
    ("engine_kwargs.max_num_seqs", -8, ">= 1"),
    ("engine_kwargs.enforce_eager", "yes", "true or false"),
    ("engine_kwargs.gpu_memory_utilization", 1.5, "up to 1"),
    ("engine_kwargs.model", "x", "model.source"),
    ("engine_kwargs.num_gpu_blocks_override", 1, ">= 2"),
    ("policies.0.mode", "rech", "reach"),
    ("policies.0.wait", 1, "weight"),
    ("policies.0.mod", "lru", "policies[0].mod: unknown key (value 'lru'); did you mean 'mode'? allowed: "),
    ("policies.0.prefetch.max_per", 1, "prefetch.max_per: unknown key (value 1); did you mean 'max_per_s'? allowed: "),
    ("runtime.max_agent", 9, "runtime.max_agent: unknown key (value 9); did you mean 'max_agents'? allowed: "),
    ("policies.0.prefetch.min_predictability", 2, "1"),
    ("policies.0.weight", 50, "weight"),
    ("runtime.window", 1, "16"),
    ("runtime.windw", 1, "window"),
    ("replica.exchange", {"min_gap": 1}, "min_gap_s"),
    ("simulated.num_blocks", -1, "2"),
    ("routing.load_weight", -1, ">= 0"),
    ("routing.load_weight", float("nan"), "finite"),
    ("gateway.max_body_bytes", -5, ">= 1024"),
    ("gateway.api_keys", [{"tenant": "t", "sha256": "abc"}], "sha256"),
    ("gateway.api_keys", {"t": "x"}, "a list"),
    ("deployment.num_gpus_per_replica", 1.5, "whole number"),
    ("deployment.num_gpus_per_replica", 4, "tensor_parallel_size 1"),
    ("model.modalities", ["smell"], "text"),
    ("engine", "sglang", "vllm"),
    ("polices", [], "policies"),
]


@pytest.mark.parametrize(("path", "value", "allowed"), BAD_ARGS, ids=[f"{p}={v}"[:48] for p, v, _ in BAD_ARGS])
def test_bad_args_name_key_and_allowed(path: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(changed(ARGS, path, value))
    text = str(caught.value)
    last = path.rsplit(".", 1)[-1]
    assert "\n" not in text
    assert (last in text or "autoscaling" in text) and allowed in text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("max_model_length", 1, "unknown key (value 1); did you mean 'max_model_len'?"),
        ("zzz", 1, "unknown key (value 1); allowed: an argument name of vLLM's engine"),
        ("block_size", 33, "33 is not allowed on CPU (num_gpus_per_replica is 0); allowed: a multiple of 32"),
        ("dtype", "bf16", "'bf16' is not allowed; allowed: auto, half, float16, bfloat16, float, float32"),
        ("dtype", ["half"], "['half'] is not allowed; allowed: auto, half"),
    ],
)
def test_engine_arguments(key: str, value: Any, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(changed(ARGS, f"engine_kwargs.{key}", value))
    assert str(caught.value).startswith(f"engine_kwargs.{key}: {text}")


def test_block_sizes_elsewhere_are_the_engines_own() -> None:
    sixteen = changed(ARGS, "engine_kwargs.block_size", 16)
    assert load(changed(sixteen, "deployment.num_gpus_per_replica", 1))
    assert load(changed(sixteen, "engine", "simulated"))


def test_dtypes_are_those_of_the_engine() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0], "config", "model.py").read_text(encoding="utf-8")
    found = re.search(r"^ModelDType = Literal\[([^]]*)\]", source, re.MULTILINE)
    assert found is not None and tuple(re.findall(r'"(\w+)"', found[1])) == DTYPES


BAD_FILES = [
    ("http_options.prot", 1, "port"),
    ("http_options.port", 0, "65535"),
    ("http_options.port", "8000", "65535"),
    ("http_options.host", "0.0.0.0", "api_keys"),
    ("http_options.keep_alive_timeout_s", -1, "> 0"),
    ("http_options.request_timeout_s", float("nan"), "> 0"),
    ("http_options.request_timeout_s", float("inf"), "> 0"),
    ("http_options", [], "a mapping"),
    ("proxy_locatoin", "HeadOnly", "proxy_location"),
    ("proxy_location", "Everywhere", "EveryNode"),
    ("applications", [], "list"),
    ("applications.0.arg", {}, "args"),
    ("applications.0.runtime_env", {"env_varz": {"A": "1"}}, "did you mean 'env_vars'? allowed: "),
    ("applications.0.runtime_env", {"env_varz": {"A": "1"}}, "runtime_env.env_varz: unknown key (value {'A': '1'})"),
    ("applications.0.runtime_env", {"zzz": 1}, "allowed: conda, config, container, env_vars,"),
    ("applications.0.runtime_env", ["x"], "a mapping"),
    ("applications.0.import_path", "other:app", "serve_app.app:build_app"),
    ("applications.0.deployments", [{"name": "x", "num_replica": 1}], "num_replicas"),
    ("applications.0.args", None, "a mapping"),
    ("applications.0.args.model", None, "a mapping"),
    ("logging_config", {"level": "x"}, "log_level"),
]


@pytest.mark.parametrize(("path", "value", "allowed"), BAD_FILES, ids=[f"{p}-{a}"[:48] for p, _, a in BAD_FILES])
def test_bad_files(path: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_content(changed(FILE, path, value))
    assert allowed in str(caught.value) and "\n" not in str(caught.value)


def test_keys_allow_other_hosts() -> None:
    keys = [{"tenant": "t", "sha256": "0" * 64}]
    content = changed(changed(FILE, "http_options.host", "0.0.0.0"), "applications.0.args.gateway.api_keys", keys)
    assert check_content(content)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "not YAML"),
        ("a: 1\na: 2", "twice"),
        ("", "the file is empty"),
        ("# x\n", "the file is empty"),
        ("- x", "a mapping"),
        ("\t", "not YAML"),
    ],
)
def test_broken_text(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=expected) as caught:
        check_file(str(path))
    assert str(path) in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        check_file(str(tmp_path / "none.yaml"))


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(changed(FILE, "applications.0.args.polices", [])))
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-m", "serve_app.config", str(path)],
        capture_output=True,
        text=True,
        cwd=root,
        timeout=120,
        check=False,
    )
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1 and "polices" in result.stderr


def test_engine_argument_names_come_from_the_engine() -> None:
    known = engine_argument_types()
    assert {"max_model_len", "enable_prompt_tokens_details", "scheduling_policy"} <= set(known)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_secret_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    first = secret_file.load_or_create(path)
    assert secret_file.load_or_create(path) == first and len(first) == 32
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("zz")
    with pytest.raises(ConfigurationError, match="secret_file"):
        secret_file.load_or_create(path)
