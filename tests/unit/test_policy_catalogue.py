"""Policies of others, by path: whatever their code does while it is loaded or made, it costs only that policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime_actor.errors import ConfigurationError
from runtime_actor.policies import catalogue
from runtime_actor.policies.base import ACTOR
from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings

MODULES = {
    "fails_at_import": "raise RuntimeError('no licence')",
    "is_no_python": "def",
    "fails_when_read": "def __getattr__(name):\n    raise KeyError(name)",
    "fails_when_made": (
        "from runtime_actor.policies.base import Policy\n"
        "class Made(Policy):\n"
        "    def __init__(self, settings, substrate):\n"
        "        raise OSError('no such file')\n"
    ),
}


@pytest.mark.parametrize("module", MODULES)
def test_a_policy_that_cannot_be_had_is_left_out_and_named(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"{module}.py").write_text(MODULES[module])
    monkeypatch.syspath_prepend(tmp_path)
    settings = RuntimeSettings.from_dict(
        {"policies": [{"name": "kv_cache"}, {"name": "theirs", "path": f"{module}:Made"}]}
    )
    with pytest.raises(ConfigurationError, match=r"policies\.theirs"):
        catalogue.check(settings.policies)
    made = catalogue.make_seated(settings.policies, ACTOR, AgentRuntime(RuntimeSettings(), lambda: 0.0).shared)
    assert [policy.name for policy in made] == ["kv_cache"]
    assert "theirs" in caplog.text
    runtime = AgentRuntime(settings, lambda: 0.0)
    assert [row["name"] for row in runtime.state()["policies"]] == ["kv_cache"]
