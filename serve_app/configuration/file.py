"""Check a whole serve_config.yaml: Ray Serve's own keys (it takes unknown ones in silence) and our `args`."""

import math
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from ray.runtime_env import RuntimeEnv
from ray.serve.schema import (
    DeploymentSchema,
    HTTPOptionsSchema,
    LoggingConfig,
    ServeApplicationSchema,
    ServeDeploySchema,
    gRPCOptionsSchema,
)

from runtime_actor.errors import ConfigurationError
from serve_app.config import AppConfig, is_loopback, load
from serve_app.configuration.errors import explain, shown, unknown_key

IMPORT_PATH = "serve_app.app:build_app"


def check_file(path: str) -> list[AppConfig]:
    """The checked configurations of our applications in the file, at least one.

    Raises:
        ConfigurationError: in one line, with the file's name in front.
    """
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=UniqueKeyLoader)
        return check_content(content)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}); allowed: a YAML file") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not UTF-8 text; allowed: a YAML file") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not YAML: {_yaml_reason(error)}") from None


def check_content(content: Any) -> list[AppConfig]:
    """Raises ConfigurationError without a file's name."""
    if content is None:
        raise ConfigurationError("the file is empty; allowed: a mapping with at least 'applications'")
    _check_level(content, ServeDeploySchema, "")
    _check_level(content.get("http_options"), HTTPOptionsSchema, "http_options")
    _check_level(content.get("grpc_options"), gRPCOptionsSchema, "grpc_options")
    _check_level(content.get("logging_config"), LoggingConfig, "logging_config")
    applications = content.get("applications")
    if not isinstance(applications, list) or not applications:
        raise ConfigurationError(f"applications: {shown(applications)} is not allowed; allowed: a list of applications")
    for index, application in enumerate(applications):
        _check_application(application, f"applications[{index}]")
    try:
        ServeDeploySchema.model_validate(content)
    except ValidationError as error:
        raise ConfigurationError(explain(error, ServeDeploySchema)) from None
    _check_http(content.get("http_options") or {})
    ours = [
        (index, application)
        for index, application in enumerate(applications)
        if application.get("import_path") == IMPORT_PATH
    ]
    if not ours:
        raise ConfigurationError(
            f"applications: none has import_path {IMPORT_PATH!r}; allowed: at least one such application"
        )
    configs = [_load_args(application, index) for index, application in ours]
    _check_exposure(content.get("http_options") or {}, configs)
    return configs


def _load_args(application: dict[str, Any], index: int) -> AppConfig:
    try:
        return load(application.get("args"))
    except ConfigurationError as error:
        text = str(error)
        joined = text if text.startswith("args:") else f"args.{text}"
        raise ConfigurationError(f"applications[{index}].{joined}") from None


def _check_application(application: Any, path: str) -> None:
    _check_level(application, ServeApplicationSchema, path)
    _check_runtime_env(application.get("runtime_env"), f"{path}.runtime_env")
    deployments = application.get("deployments")
    if isinstance(deployments, list):
        for index, deployment in enumerate(deployments):
            _check_level(deployment, DeploymentSchema, f"{path}.deployments[{index}]")


def _check_runtime_env(value: Any, path: str) -> None:
    """Ray takes unknown keys here, and what they were to set stays unset."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}: {shown(value)} is not allowed; allowed: a mapping")
    # Ray's plugins hand theirs on under names with an underscore in front.
    allowed = sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_"))
    for key, item in value.items():
        if key not in RuntimeEnv.known_fields:
            raise ConfigurationError(unknown_key(f"{path}.{key}", item, str(key), allowed))


def _check_level(value: Any, schema: type[BaseModel], path: str) -> None:
    """A missing optional section is fine; a present one must be a mapping of known keys."""
    if value is None and path and "[" not in path:
        return
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path or 'file'}: {shown(value)} is not allowed; allowed: a mapping")
    allowed = sorted(schema.model_fields)
    for key, item in value.items():
        if key not in schema.model_fields:
            raise ConfigurationError(unknown_key(f"{path}.{key}" if path else str(key), item, str(key), allowed))


def _check_http(options: dict[str, Any]) -> None:
    """Ray checks types here but no ranges."""
    port = options.get("port", 8000)
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ConfigurationError(
            f"http_options.port: {shown(port)} is not allowed; allowed: an integer from 1 to 65535"
        )
    for name in ("request_timeout_s", "keep_alive_timeout_s"):
        value = options.get(name)
        if value is not None and (isinstance(value, (bool, str)) or not 0 < value < math.inf):
            raise ConfigurationError(f"http_options.{name}: {shown(value)} is not allowed; allowed: a number > 0")


def _check_exposure(options: dict[str, Any], configs: list[AppConfig]) -> None:
    """Whoever reaches the port without keys is the one tenant and its operator."""
    host = options.get("host", "0.0.0.0")
    if not is_loopback(str(host)) and any(not config.gateway.has_keys for config in configs):
        raise ConfigurationError(
            f"http_options.host: {shown(host)} is not allowed without gateway.api_keys; "
            "allowed: a loopback address such as 127.0.0.1, or configure api_keys or keys_file"
        )


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML's later of two equal keys wins in silence; here it is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int, float, bool)) and key in seen:
                raise ConfigurationError(
                    f"{key}: given twice (line {key_node.start_mark.line + 1}); allowed: once in a mapping"
                )
            if isinstance(key, (str, int, float, bool)):
                seen.add(key)
        return super().construct_mapping(node, deep)


def _yaml_reason(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error).replace("\n", " ")
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else problem


def main(arguments: list[str]) -> int:
    """0, or 2 with one line on standard error."""
    if len(arguments) != 1:
        print("usage: python -m serve_app.config serve_config.yaml", file=sys.stderr)
        return 2
    try:
        check_file(arguments[0])
    except ConfigurationError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0
