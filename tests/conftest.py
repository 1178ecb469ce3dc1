"""The running server that tests of several tiers share, started by the first that asks for it."""

from tests.server_kit import client, filler, server

__all__ = ["client", "filler", "server"]
