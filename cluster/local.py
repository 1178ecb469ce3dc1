"""`scripts/serve`: a local Ray, the applications of serve_config.yaml on it, until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from cluster.embedded_model import ensure_embedded_model
from cluster.errors import LaunchError
from cluster.launch_config import LaunchConfig, check_port, load
from cluster.local_ray import LocalRay
from cluster.readiness import wait_until_ready
from cluster.stop_signals import StopRequested, StopSignals

DEFAULT_CONFIG = Path(__file__).resolve().parent.parent / "serve_config.yaml"
START_TIMEOUT_S = 600.0
ANSWER_TIMEOUT_S = 120.0
MANY_STEPS = 20
KEY = "YOUR_KEY"
"""Of `gateway.api_keys` the file has only hashes."""


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    cluster = LocalRay()
    started_s = time.monotonic()
    code = 0
    stop = StopSignals()
    stop.install()
    try:
        config = load(options.config, options.port)
        check_port(config.host, config.port)
        _prepare_model(config, stop)
        _serve(cluster, config, stop)
        took_s = time.monotonic() - started_s
        print(ready_text(config, took_s, cluster.dashboard_url, str(cluster.token_path)), flush=True)
        stop.wait()
    # Ray's own handler of SIGTERM, there while Ray starts, exits.
    except (StopRequested, SystemExit):
        stop.wait_until_printed()
    except LaunchError as error:
        print(f"serve: {error}", file=sys.stderr, flush=True)
        code = 1
    finally:
        stop.ignore()
        cluster.stop()
    if code == 0:
        print("serve: stopped; every process it started has ended", flush=True)
    return code


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/serve", description="Set up and serve the agent runtime on this machine."
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="default: serve_config.yaml")
    parser.add_argument("--port", type=_port, help="overrides http_options.port of the config")
    return parser.parse_args(arguments)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (allowed: 1 to 65535)")
    return int(text)


def _prepare_model(config: LaunchConfig, stop: StopSignals) -> None:
    if config.uses_embedded_model:
        with _bar("model: converting", stop) as update:
            ensure_embedded_model(update)


def _serve(cluster: LocalRay, config: LaunchConfig, stop: StopSignals) -> None:
    print("serve: starting Ray", flush=True)
    cluster.start()
    stop.take_over()
    stop.check()
    print(f"serve: starting {config.model_id} (one to three minutes; logs: {cluster.log_folder})", flush=True)
    cluster.deploy(config.serve)
    with _bar("serve: replicas and gateway", stop) as update:
        cluster.wait_until_running(config.application, START_TIMEOUT_S, update)
    with _bar("serve: replicas reporting", stop) as update:
        replicas = config.first_replicas
        wait_until_ready(config.url, replicas, ANSWER_TIMEOUT_S, update)


def ready_text(config: LaunchConfig, took_s: float, dashboard_url: str, token_path: str) -> str:
    url, model = config.url, config.model_id
    has_keys = bool(config.app.gateway.api_keys or config.app.gateway.keys_file)
    key, header = (KEY, f" -H 'authorization: Bearer {KEY}'") if has_keys else ("none", "")
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 20}}'
    return f"""
serve: READY after {took_s:.0f} s - {url}/v1 (OpenAI API, model {model})

  try    curl {url}/v1/chat/completions -H 'content-type: application/json'{header} -d '{body}'
  python OpenAI(base_url="{url}/v1", api_key="{key}").chat.completions.create(model="{model}", ...)
  demo   scripts/demo        a team of agents on HumanEval, this policy beside LRU
  watch  {url}/runtime/      live page      {url}/runtime/state      the same as JSON
  Ray    {dashboard_url}       asks for the token in {token_path}

  Ctrl-C stops it."""


@contextmanager
def _bar(label: str, stop: StopSignals) -> Iterator[Callable[[int, int], None]]:
    """`update(done, total)`: a line that is redrawn on a terminal, else a line where the numbers change.

    It raises StopRequested too.
    """
    if sys.stderr.isatty():
        with tqdm(desc=label, leave=False, bar_format="{desc}: {n_fmt}/{total_fmt} [{elapsed}]") as bar:

            def redraw(done: int, total: int) -> None:
                stop.check()
                bar.total, bar.n = total, done
                bar.refresh()

            yield redraw
        return
    shown = (0, 0)

    def print_change(done: int, total: int) -> None:
        nonlocal shown
        stop.check()
        # Many steps (tensors of a model) are shown as the first and the last.
        if (done, total) != shown and (total <= MANY_STEPS or done in (1, total)):
            print(f"{label}: {done}/{total}", file=sys.stderr, flush=True)
        shown = (done, total)

    yield print_change


if __name__ == "__main__":
    raise SystemExit(main())
