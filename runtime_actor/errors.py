"""Errors of the runtime layer, one line each: raised when."""


class AgentRuntimeError(Exception):
    """Base class; never raised itself."""


class MessageError(AgentRuntimeError, ValueError):
    """Raised when a message from another process has a wrong version, field or type."""


class ConfigurationError(AgentRuntimeError, ValueError):
    """Raised when a configuration key is unknown, of a wrong type or out of range."""


class RuntimeUnavailable(AgentRuntimeError):
    """Raised when the runtime actor did not answer in time and the caller must use its fallback."""


class CheckpointError(AgentRuntimeError):
    """Raised when a checkpoint file is truncated, corrupt or of an unknown version."""


class EngineGone(AgentRuntimeError):
    """Raised when a replica's engine process has died and can't answer any more."""


class EngineBusy(AgentRuntimeError):
    """Raised when an engine did not answer a call in time; it may do so later."""


class WarmupFailed(AgentRuntimeError):
    """Raised when an engine answered a warm-up with an error instead of computing it."""
