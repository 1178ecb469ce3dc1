"""API key -> tenant. Keys are known by their SHA-256 only and compared in constant time."""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve_app.config import ApiKey, GatewayConfig, Quota, is_loopback
from serve_app.http.errors import ApiError
from serve_app.keys_file import KeysFile

DEFAULT_TENANT = "default"
MAX_KEY_CHARS = 512


@dataclass(frozen=True, slots=True)
class Caller:
    """`is_operator` may see all tenants and change policies."""

    tenant: str
    is_operator: bool


class Tenants:
    """Without keys everybody is the one tenant, and whoever calls from this machine its operator."""

    def __init__(self, config: GatewayConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigurationError when the keys file can't be used."""
        self._config = config
        self._file = None if config.keys_file is None else KeysFile(Path(config.keys_file).expanduser(), clock)
        self._keys: list[tuple[bytes, ApiKey]] = []
        self._quotas: dict[str, Quota] = {}
        self._share: Quota = config.quota
        self._take_over()

    def caller(self, headers: Mapping[str, str], client_host: str | None) -> Caller:
        """`headers` as of `fold_headers`. Raises ApiError 401 where keys are configured and none fits."""
        if not self._config.has_keys:
            return Caller(DEFAULT_TENANT, _is_local(client_host, headers.get("host", "")))
        if self._file is not None and self._file.refresh():
            self._take_over()
        given = _given_key(headers)
        found: ApiKey | None = None
        hashed = hashlib.sha256(given.encode()).digest() if given else b""
        for expected, key in self._keys:
            if hmac.compare_digest(hashed, expected):
                found = key
        if found is None:
            raise ApiError(
                401,
                "The API key is missing or not known." if given is None else "The API key is not known.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return Caller(found.tenant, found.operator)

    def quota(self, tenant: str) -> Quota:
        """The tenant's own, else the common one. Where there are several tenants none gets all places by default."""
        return self._quotas.get(tenant, self._share)

    def view(self) -> dict[str, Any]:
        """For an operator: how many keys are in force, and what became of the last change of the file."""
        reloads, error = (self._file.reloads, self._file.error) if self._file is not None else (0, None)
        return {"keys": len(self._keys), "reloads": reloads, "keys_file_error": error}

    def _take_over(self) -> None:
        ring = self._file.current if self._file is not None else None
        keys = [*self._config.api_keys, *(ring.api_keys if ring is not None else ())]
        self._keys = [(bytes.fromhex(key.sha256), key) for key in keys]
        self._quotas = {**self._config.quotas, **(ring.quotas if ring is not None else {})}
        self._share = self._config.quota
        if self._share.max_in_flight is None and len({key.tenant for key in keys}) > 1:
            half = max(1, self._config.max_in_flight // 2)
            self._share = self._share.model_copy(update={"max_in_flight": half})


def _is_local(client_host: str | None, host_header: str) -> bool:
    """Also by the name that was asked for: a page whose name was made to point here calls from this machine."""
    name = host_header.rsplit(":", 1)[0] if not host_header.endswith("]") else host_header
    return client_host is not None and is_loopback(client_host) and is_loopback(name)


def _given_key(headers: Mapping[str, str]) -> str | None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()[:MAX_KEY_CHARS]
    return headers.get("x-api-key", "").strip()[:MAX_KEY_CHARS] or None
