"""Keys in a file of their own: read again when it changes, and never worse for a slip."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime_actor.errors import ConfigurationError
from serve_app import keys_file
from serve_app.app import build_app
from serve_app.config import GatewayConfig
from serve_app.configuration.file import check_content
from serve_app.http.errors import ApiError
from serve_app.tenants import Tenants


def entry(tenant: str, **more: Any) -> dict[str, Any]:
    return {"tenant": tenant, "sha256": hashlib.sha256(f"key-{tenant}".encode()).hexdigest(), **more}


def write(path: Path, *tenants: str, **more: Any) -> None:
    """As a careful editor does it: a new file in the place of the old one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump({"api_keys": [entry(tenant) for tenant in tenants], **more}))
    fresh.replace(path)


class Kit:
    def __init__(self, path: Path) -> None:
        self.now_s = 0.0
        self.path = path
        self.tenants = Tenants(GatewayConfig(keys_file=str(path)), lambda: self.now_s)

    def later(self) -> Kit:
        self.now_s += 1.0
        return self

    def enters(self, tenant: str) -> bool:
        try:
            return self.tenants.caller({"authorization": f"Bearer key-{tenant}"}, None).tenant == tenant
        except ApiError as error:
            assert error.status == 401
            return False


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    write(tmp_path / "keys.yaml", "a", "b")
    return Kit(tmp_path / "keys.yaml")


def test_a_key_comes_and_goes_without_a_restart(kit: Kit) -> None:
    assert kit.enters("a") and kit.enters("b") and not kit.enters("c")
    write(kit.path, "a", "c", quotas={"c": {"max_in_flight": 3}})
    assert kit.enters("b"), "it is looked at once a second"
    kit.later()
    assert kit.enters("a") and not kit.enters("b") and kit.enters("c")
    assert kit.tenants.quota("c").max_in_flight == 3
    assert kit.tenants.view() == {"keys": 2, "reloads": 1, "keys_file_error": None}


@pytest.mark.parametrize(
    "content",
    [
        "api_keys: [",
        "",
        "[]",
        "api_keys: {}",
        "keys: []",
        "api_keys: []\napi_keys: []",
        "api_keys:\n- tenant: x\n  sha256: my-secret-key",
        "api_keys: []\nquotas: {a: {max_in_flight: 0}}",
        "\xff",
    ],
)
def test_a_slip_changes_nothing_and_is_said_once(kit: Kit, content: str, caplog: pytest.LogCaptureFixture) -> None:
    kit.path.write_text(content, encoding="latin-1")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert kit.later().enters("a") and not kit.enters("x")
    assert len(caplog.records) == 1 and "my-secret-key" not in caplog.text
    error = kit.tenants.view()["keys_file_error"]
    assert str(kit.path) in error and "my-secret-key" not in error
    write(kit.path, "x")
    assert kit.later().enters("x") and not kit.enters("a")
    assert kit.tenants.view()["keys_file_error"] is None


def test_a_file_that_is_gone_changes_nothing_and_its_return_counts(kit: Kit) -> None:
    kit.path.unlink()
    assert kit.later().enters("a")
    write(kit.path, "c")
    assert kit.later().enters("c") and not kit.enters("a")


def test_an_empty_list_locks_everybody_out_also_on_this_machine(kit: Kit) -> None:
    write(kit.path)
    kit.later()
    assert not kit.enters("a")
    with pytest.raises(ApiError):
        kit.tenants.caller({"host": "127.0.0.1"}, "127.0.0.1")


def test_it_must_be_right_to_begin_with(tmp_path: Path) -> None:
    for content in (None, "api_keys: 5"):
        if content:
            (tmp_path / "keys.yaml").write_text(content)
        with pytest.raises(ConfigurationError, match=r"gateway\.keys_file"):
            Tenants(GatewayConfig(keys_file=str(tmp_path / "keys.yaml")))


def test_an_application_with_a_wrong_keys_file_is_not_built(tmp_path: Path) -> None:
    args = {"model": {"id": "m", "source": "x"}, "engine": "simulated"}
    with pytest.raises(ConfigurationError, match=r"gateway\.keys_file.*can't be read"):
        build_app({**args, "gateway": {"keys_file": str(tmp_path / "none.yaml")}})


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "keys.yaml").open("wb") as file:
        file.truncate(keys_file.MAX_FILE_BYTES + 1)
    with pytest.raises(ConfigurationError, match="larger than"):
        keys_file.read(tmp_path / "keys.yaml")


def test_a_keys_file_lets_the_server_listen_beyond_loopback(tmp_path: Path) -> None:
    def content(gateway: dict[str, Any]) -> dict[str, Any]:
        args = {"model": {"id": "m", "source": "x"}, "gateway": gateway}
        application = {"import_path": "serve_app.app:build_app", "name": "a", "args": args}
        return {"http_options": {"host": "0.0.0.0"}, "applications": [application]}

    with pytest.raises(ConfigurationError, match="keys_file"):
        check_content(content({}))
    assert check_content(content({"keys_file": str(tmp_path / "later.yaml")}))


def test_the_command_makes_a_key_that_fits_its_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys_file.main(["team-7", "--operator"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    key = first.split(": ")[1]
    (tmp_path / "keys.yaml").write_text("\n".join(["api_keys:", *rest]) + "\n")
    caller = Tenants(GatewayConfig(keys_file=str(tmp_path / "keys.yaml"))).caller({"x-api-key": key}, None)
    assert caller.tenant == "team-7" and caller.is_operator
    assert keys_file.main(["no/such"]) == 2


def test_cache_groups_share_and_others_do_not() -> None:
    config = GatewayConfig(cache_groups={"g": ["a", "b"]})
    assert config.cache_owner("a") == config.cache_owner("b") != config.cache_owner("c") == "c"
    with pytest.raises(ValueError, match="named twice"):
        GatewayConfig(cache_groups={"g": ["a", "b"], "h": ["b"]})
