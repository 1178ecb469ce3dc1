from __future__ import annotations

from typing import Any

import pytest

from runtime_actor.errors import ConfigurationError
from runtime_actor.settings import PolicySettings, RuntimeSettings, replace_checked


def test_defaults_and_round_trip() -> None:
    settings = RuntimeSettings.from_dict({"policies": [{"name": "kv_cache", "prefetch": {"max_per_s": 3}}]})
    assert settings.policies[0].prefetch.max_per_s == 3.0
    assert RuntimeSettings.from_dict(settings.to_dict()) == settings
    assert RuntimeSettings.from_dict({}) == RuntimeSettings()


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"windwo": 1}, ["runtime.windwo", "unknown key", "window"]),
        ({"window": -1}, ["runtime.window", "-1", "16"]),
        ({"window": 4.5}, ["runtime.window", "4.5", "whole number"]),
        ({"window": True}, ["runtime.window", "True"]),
        ({"window": None}, ["runtime.window", "None"]),
        ({"session_idle_s": float("nan")}, ["runtime.session_idle_s", "nan"]),
        ({"session_idle_s": "9"}, ["runtime.session_idle_s", "'9'", "a number"]),
        ({"checkpoint_dir": 3}, ["runtime.checkpoint_dir", "3", "null"]),
        ({"policies": {}}, ["runtime.policies", "a list"]),
        ({"policies": [{"mode": "fifo"}]}, ["runtime.policies[0].mode", "'fifo'", "reach"]),
        ({"policies": [{"prefetch": {"enabled": 1}}]}, ["policies[0].prefetch.enabled", "1", "bool"]),
        ({"policies": [{"prefetch": 7}]}, ["policies[0].prefetch", "7", "a mapping"]),
        ({"policies": [{}, {}]}, ["kv_cache", "twice"]),
        ([], ["runtime", "a mapping"]),
    ],
)
def test_bad_values_are_named(values: Any, parts: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        RuntimeSettings.from_dict(values)
    for part in parts:
        assert part in str(error.value)


def test_changes_are_merged_and_checked() -> None:
    settings = replace_checked(PolicySettings(), {"mode": "lru", "prefetch": {"enabled": False}}, "p")
    assert settings.mode == "lru" and not settings.prefetch.enabled
    assert settings.prefetch.max_per_s == PolicySettings().prefetch.max_per_s
    with pytest.raises(ConfigurationError, match=r"p\.weight: 'x'"):
        replace_checked(settings, {"weight": "x"}, "p")
