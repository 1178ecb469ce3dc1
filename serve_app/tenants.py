"""API key -> tenant (pure). Keys are known by their SHA-256 only and compared in constant time."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serve_app.config import ApiKey, is_loopback
from serve_app.http.errors import ApiError

DEFAULT_TENANT = "default"
MAX_KEY_CHARS = 512


@dataclass(frozen=True, slots=True)
class Caller:
    """`is_operator` may see all tenants and change policies."""

    tenant: str
    is_operator: bool


class Tenants:
    """Without keys everybody is the one tenant, and whoever calls from this machine its operator."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = [(bytes.fromhex(key.sha256), key) for key in keys]

    def caller(self, headers: Mapping[str, str], client_host: str | None) -> Caller:
        """`headers` as of `fold_headers`. Raises ApiError 401 where keys are configured and none fits."""
        if not self._keys:
            return Caller(DEFAULT_TENANT, _is_local(client_host, headers.get("host", "")))
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


def _is_local(client_host: str | None, host_header: str) -> bool:
    """Also by the name that was asked for: a page whose name was made to point here calls from this machine."""
    name = host_header.rsplit(":", 1)[0] if not host_header.endswith("]") else host_header
    return client_host is not None and is_loopback(client_host) and is_loopback(name)


def _given_key(headers: Mapping[str, str]) -> str | None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()[:MAX_KEY_CHARS]
    return headers.get("x-api-key", "").strip()[:MAX_KEY_CHARS] or None
