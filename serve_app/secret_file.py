"""The application's secret: made once, kept in a file that only its owner can read."""

import contextlib
import os
import secrets
from pathlib import Path

from runtime_actor.errors import ConfigurationError

SECRET_BYTES = 32


def load_or_create(path: Path) -> bytes:
    """Atomic: of two processes that begin at once both end with the same secret.

    Raises:
        ConfigurationError: the file can't be written or read, or is too short.
    """
    try:
        if not path.exists():
            _create(path)
        secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not hexadecimal"
        raise ConfigurationError(f"gateway.secret_file: {str(path)!r} can't be used ({reason})") from None
    if len(secret) < SECRET_BYTES:
        raise ConfigurationError(
            f"gateway.secret_file: {str(path)!r} is not allowed; allowed: at least {SECRET_BYTES} bytes in hex"
        )
    return secret


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
