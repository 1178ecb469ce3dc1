"""Keys and quotas in a file of their own, read again when it changes: no restart, and every gateway sees it.

The file holds `api_keys` and `quotas` as under `gateway` in serve_config.yaml. `python -m serve_app.keys_file
TENANT [--operator]` prints a new key and the entry for it.
"""

import argparse
import hashlib
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from pydantic import ValidationError

from runtime_actor.errors import ConfigurationError
from serve_app.config import ApiKey, KeyRing
from serve_app.configuration.errors import explain
from serve_app.configuration.file import UniqueKeyLoader

logger = logging.getLogger("ray.serve")

LOOK_EVERY_S = 1.0
MAX_FILE_BYTES = 4 << 20

Signature = tuple[int, int, int]


class KeysFile:
    """`current` is the newest content that was right; a file that is wrong or gone changes nothing.

    So a slip while editing locks nobody out; to lock everybody out, write `api_keys: []`.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigurationError: there must be something right to begin with."""
        self._path = path
        self._clock = clock
        self._looked_s = clock()
        self._signature = _signature(path)
        self.current = read(path)
        self.reloads = 0
        self.error: str | None = None

    def refresh(self) -> bool:
        """Look once a second at most; True if there is new content."""
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        signature = _signature(self._path)
        if signature == self._signature:
            return False
        self._signature = signature
        try:
            self.current = read(self._path)
        except ConfigurationError as error:
            self.error = str(error)
            logger.error("The former keys stay in force: %s", error)
            return False
        self.error = None
        self.reloads += 1
        logger.warning("Keys read again: %d keys", len(self.current.api_keys))
        return True


def read(path: Path) -> KeyRing:
    """Raises ConfigurationError, in which no hash is named."""
    where = f"gateway.keys_file: {str(path)!r}"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigurationError(f"it is larger than {MAX_FILE_BYTES} bytes")
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=UniqueKeyLoader)
        if not isinstance(content, dict) or "api_keys" not in content:
            raise ConfigurationError("not allowed; allowed: a mapping with 'api_keys'")
        ring = KeyRing.model_validate(content)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{where} can't be read ({error.strerror})") from None
    except (UnicodeDecodeError, yaml.YAMLError):
        raise ConfigurationError(f"{where} is not YAML; allowed: a mapping with 'api_keys'") from None
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {explain(error, KeyRing)}") from None
    return ring


def _signature(path: Path) -> Signature | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def main(arguments: list[str]) -> int:
    """A new key on standard output, with what belongs into the file; the key is shown this once."""
    parser = argparse.ArgumentParser(prog="python -m serve_app.keys_file", description=main.__doc__)
    parser.add_argument("tenant")
    parser.add_argument("--operator", action="store_true")
    options = parser.parse_args(arguments)
    key = "ar-" + secrets.token_urlsafe(32)
    hashed = hashlib.sha256(key.encode()).hexdigest()
    try:
        ApiKey(tenant=options.tenant, sha256=hashed, operator=options.operator)
    except ValidationError as error:
        print(explain(error, ApiKey), file=sys.stderr)
        return 2
    print(f"key (shown this once): {key}")
    print(f"- tenant: {options.tenant}\n  sha256: {hashed}" + ("\n  operator: true" if options.operator else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
