"""Errors of the local set-up, one line each: raised when."""


class LaunchError(Exception):
    """Raised when something outside this program stops a start; the message is the one line to show."""


class EmbeddedModelError(LaunchError):
    """Raised when the embedded model is missing, damaged, or can't be written to the cache folder."""
