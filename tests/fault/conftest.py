"""The running server that the tests of this tier share."""

from tests.server_kit import client, filler, server

__all__ = ["client", "filler", "server"]
