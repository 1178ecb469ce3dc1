"""Load at saturation for a while, and the memory of every process: `scripts/soak [--minutes N] [...]`.
`--samples FILE.csv` shows what an earlier run's `--csv` wrote, `--plot FILE.svg` draws either.

More callers than the engines can serve at once; a share of clients leaves early, another reads slowly, and each turn is
a new agent for some. Prints a sample each `--every` seconds, a plot in letters at the end, and how much each process
grew over the second half (the first fills caches). Exit code 1 when a process grew by more than `--most-growth`
of its size, or a request ended in any other way than with a whole answer, a 429, or its client's leaving.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import itertools
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from benchmarks.engine.charts import line_chart
from tests.fault.chaos.__main__ import MODEL
from tests.fault.chaos.server import ChaosServer

BARS = " ▁▂▃▄▅▆▇█"
CLIENT_TIMEOUT_S = 300.0
SLOW_READ_S = 0.2
WELL_ENDED = (": 200", ": left", ": 429")
"""A whole answer, a client that went away, a refusal that says when to come back."""
AGENTS = 8
MAX_TOLD = 50
"""Connections that broke, told one by one."""

Samples = list[tuple[float, dict[str, int]]]


def system_prompt(agent: int) -> str:
    return f"You are agent {agent}. " + "Do the next step with care. " * 40


class Soak:
    """`callers` at once until `stop` is set; what became of each request is in `ends`."""

    def __init__(self, url: str, callers: int) -> None:
        self._url = url
        self._callers = callers
        self._numbers = itertools.count()
        self.stop = threading.Event()
        self.ends: Counter[str] = Counter()
        self._began_s = time.monotonic()
        self._told = 0

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self._url, timeout=CLIENT_TIMEOUT_S, limits=limits, trust_env=False
        ) as client:
            await asyncio.gather(*(self._caller(client, number) for number in range(self._callers)))

    async def _caller(self, client: httpx.AsyncClient, number: int) -> None:
        while not self.stop.is_set():
            turn = next(self._numbers)
            kind = ("plain", "stream", "leaves", "slow", "new agent")[(number + turn) % 5]
            try:
                end = await self._one(client, kind, number, turn)
            except httpx.TimeoutException:
                end = "no answer"
            except httpx.HTTPError as error:
                end = type(error).__name__
                self._tell(kind, error)
            self.ends[f"{kind}: {end}"] += 1
            if end == "429":
                await asyncio.sleep(0.5)

    def _tell(self, kind: str, error: httpx.HTTPError) -> None:
        if self._told < MAX_TOLD:
            self._told += 1
            cause = error.__cause__ or error.__context__
            inner = (cause.__cause__ or cause.__context__) if cause is not None else None
            print(
                f"{time.monotonic() - self._began_s:6.0f} s  {kind}: {error!r}, by {cause!r}, by {inner!r}", flush=True
            )

    async def _one(self, client: httpx.AsyncClient, kind: str, number: int, turn: int) -> str:
        system = system_prompt(AGENTS + turn if kind == "new agent" else number % AGENTS)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"step {turn} of {number}"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 24, "stream": kind != "plain"}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return str(answer.status_code)
            async for _ in answer.aiter_bytes():
                if kind == "leaves":
                    return "left"
                if kind == "slow":
                    await asyncio.sleep(SLOW_READ_S)
        return "200"


def sample(server: ChaosServer, soak: Soak, seconds: float, every_s: float) -> Samples:
    samples: Samples = []
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < seconds:
        samples.append((passed_s, server.memory_bytes()))
        told = "  ".join(f"{name} {size >> 20}" for name, size in sorted(samples[-1][1].items()))
        print(f"{passed_s:6.0f} s  {sum(soak.ends.values()):6d} requests  MiB: {told}", flush=True)
        soak.stop.wait(every_s)
    return samples


def numbered(samples: Samples) -> Samples:
    """The same with `kind 1`, `kind 2` for `kind PID`, in the order in which they appeared; one alone has no number."""
    order: dict[str, list[str]] = {}
    for _, sizes in samples:
        for name in sizes:
            alike = order.setdefault(name.split()[0], [])
            if name not in alike:
                alike.append(name)
    names = {
        name: f"{kind} {number}" if len(alike) > 1 else kind
        for kind, alike in order.items()
        for number, name in enumerate(alike, 1)
    }
    return [(at_s, {names[name]: size for name, size in sizes.items()}) for at_s, sizes in samples]


def chart(samples: Samples, title: str) -> str:
    """MiB of each process over minutes, as SVG."""
    found = numbered(samples)
    lines = {
        name: [(at_s / 60.0, sizes[name] / 2**20) for at_s, sizes in found if name in sizes]
        for name in sorted({name for _, sizes in found for name in sizes})
    }
    return line_chart(title, "minutes", "MiB resident", lines)


def read_samples(path: Path) -> Samples:
    """What `write_samples` wrote."""
    samples: dict[float, dict[str, int]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            samples.setdefault(float(row["seconds"]), {})[row["process"]] = int(row["bytes"])
    return list(samples.items())


def write_samples(path: Path, samples: Samples) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["seconds", "process", "bytes"])
        rows.writerows((round(at_s, 1), name, size) for at_s, found in samples for name, size in found.items())


def plot(samples: Samples) -> list[str]:
    """A line for each process: smallest to largest, MiB, and its course."""
    lines = []
    for name in sorted({name for _, sizes in samples for name in sizes}):
        sizes = [found[name] for _, found in samples if name in found]
        low, high = min(sizes), max(sizes)
        scale = (len(BARS) - 1) / max(1, high - low)
        course = "".join(BARS[round((size - low) * scale)] for size in sizes)
        lines.append(f"{name:24s} {low >> 20:5d} to {high >> 20:5d} MiB  {course}")
    return lines


def growth(samples: Samples) -> dict[str, float]:
    """Of each process that lived through the second half: mean of its last quarter over that of the one before."""
    half = samples[len(samples) // 2 :]
    middle = len(half) // 2
    grown = {}
    for name in half[0][1] if half else ():
        parts = [[found[name] for _, found in part if name in found] for part in (half[:middle], half[middle:])]
        if all(parts) and name in half[-1][1]:
            first, second = (sum(part) / len(part) for part in parts)
            grown[name] = second / first - 1.0
    return grown


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=("vllm", "simulated"), default="vllm")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two samples")
    parser.add_argument("--most-growth", type=float, default=0.05)
    parser.add_argument("--csv", type=Path, help="also write the samples there")
    parser.add_argument("--samples", type=Path, help="show these instead of running anything")
    parser.add_argument("--plot", type=Path, help="also draw them there, as SVG")
    parser.add_argument("--title", default="Memory under load", help="of the picture; its second line follows ': '")
    return parser.parse_args()


def main() -> int:
    options = _parse()
    ends: Counter[str] = Counter()
    samples = read_samples(options.samples) if options.samples else run(options, ends)
    grown = growth(samples)
    print("\n".join(plot(numbered(samples))))
    print("growth over the last quarter:", ", ".join(f"{name} {share:+.1%}" for name, share in sorted(grown.items())))
    if not options.samples:
        print("requests:", ", ".join(f"{n} {end}" for end, n in sorted(ends.items())))
    if options.csv:
        write_samples(options.csv, samples)
    if options.plot:
        options.plot.write_text(chart(samples, options.title))
    bad = [name for name, share in grown.items() if share > options.most_growth]
    return 1 if bad or badly_ended(ends) else 0


def badly_ended(ends: Counter[str]) -> int:
    """How many requests got neither a whole answer nor a refusal, though their clients waited."""
    return sum(n for end, n in ends.items() if not end.endswith(WELL_ENDED))


def run(options: argparse.Namespace, ends: Counter[str]) -> Samples:
    """A server and its load for as long as was asked; `ends` is filled."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        server = ChaosServer(options.engine, Path(folder))
        soak = Soak(server.url, options.callers)
        thread = threading.Thread(target=soak.run)
        try:
            thread.start()
            samples = sample(server, soak, 60.0 * options.minutes, options.every)
        finally:
            soak.stop.set()
            thread.join()
            server.stop()
    ends.update(soak.ends)
    return samples


if __name__ == "__main__":
    sys.exit(main())
