"""Keep the port that Ray Serve opens in every replica process to the node's own address."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.serve._private import replica as serve_replica

logger = logging.getLogger(__name__)

_ANY_ADDRESS = "[::]:0"
_bind = getattr(serve_replica, "add_port_to_grpc_server", None)


def bind_to_node_address() -> None:
    """Call in a deployment's constructor, which runs before the port is opened.

    Ray 2.60 opens an unauthenticated gRPC port for calls between deployments on every interface of the
    machine, with no setting for it. Callers reach it under the node's address, so that one is enough: with
    `scripts/serve` it is loopback.
    """
    if _bind is None:
        logger.warning("Ray Serve opens its replicas' ports elsewhere in this version; their address is not limited")
        return
    serve_replica.add_port_to_grpc_server = _add_port


def _add_port(server: Any, address: str) -> int:
    """As Ray's function of that name, but for the address that stands for all."""
    if address == _ANY_ADDRESS:
        node = ray.util.get_node_ip_address()
        address = f"[{node}]:0" if ":" in node else f"{node}:0"
    return int(_bind(server, address))  # type: ignore[misc]
