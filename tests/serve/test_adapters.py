"""Real LoRA adapters in a real engine: loaded ahead of their requests through vLLM's own calls."""

from __future__ import annotations

import asyncio
import gc
import itertools
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from replicas.adapters import AdapterFailed, AdapterKeeper
from replicas.engine.adapters import VllmAdapters
from tests.lora_kit import RANK, make_adapter
from tests.server_kit import model_dir
from tests.unit.runtime_kit import Kit

AGENTS = {"planner": "poet", "coder": "judge", "reviewer": "clerk"}
SESSIONS = 8


def started(monkeypatch: pytest.MonkeyPatch) -> AsyncLLM:
    for name, value in (
        ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        ("OMP_NUM_THREADS", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
    ):
        monkeypatch.setenv(name, value)
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(model_dir()),
            dtype="bfloat16",
            max_model_len=512,
            block_size=32,
            num_gpu_blocks_override=64,
            max_num_seqs=2,
            max_num_batched_tokens=512,
            enforce_eager=True,
            enable_lora=True,
            max_loras=1,
            max_cpu_loras=2,
            max_lora_rank=RANK,
        )
    )


async def answer(engine: AsyncLLM, port: VllmAdapters, adapter: str | None, number: int) -> tuple[int, ...]:
    request = port._requests[adapter] if adapter is not None else None
    sampling = SamplingParams(max_tokens=6, temperature=0.0)
    prompt = "Tell me about the sea."
    tokens: tuple[int, ...] = ()
    async for output in engine.generate(prompt, sampling, f"r{number}-{adapter}", lora_request=request):
        tokens = tuple(output.outputs[0].token_ids)
    return tokens


async def pipelines(engine: AsyncLLM, port: VllmAdapters, is_on: bool) -> tuple[int, list[tuple[int, ...]]]:
    """(requests whose adapter wasn't there when they came, their answers) of sessions that walk all agents."""
    kit = Kit(policies=[{"name": "kv_cache"}, {"name": "adapters", "enabled": is_on}])
    kit.exchange(report=kit.report())
    keeper = AdapterKeeper(port, frozenset(AGENTS.values()))
    waits, answers = 0, []
    # A team that starts over: who speaks after the last one is known too.
    for number, (agent, adapter) in enumerate(itertools.islice(itertools.cycle(AGENTS.items()), 3 * SESSIONS)):
        kit.clock.advance(1.0)
        waits += adapter not in await port.loaded()
        keeper.request_began(adapter)
        answers.append(await answer(engine, port, adapter, number + 1000 * is_on))
        kit.runtime.handle([kit.arrived("s", agent, adapter=adapter)])
        keeper.request_ended(adapter)
        keeper.take_values(kit.exchange(report=kit.report()).adapters)
        await keeper.step()
    return waits, answers


# vLLM's asynchronous client leaves its socket's context to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_adapters_are_loaded_before_their_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted(AGENTS.values())
    paths = {name: str(make_adapter(tmp_path / name, model_dir(), seed)) for seed, name in enumerate(names)}
    paths["none"] = str(make_adapter(tmp_path / "none", model_dir(), 9, scale=0.0))

    async def main() -> None:
        engine = started(monkeypatch)
        try:
            port: Any = VllmAdapters(engine, paths, timeout_s=30.0)
            assert port.slots == 2
            base = await answer(engine, port, None, 1)
            assert await answer(engine, port, "none", 2) == base, "an adapter of zeros changes nothing"
            stock_waits, stock = await pipelines(engine, port, is_on=False)
            waits, answers = await pipelines(engine, port, is_on=True)
            assert answers == stock and len(set(answers)) > 1, "the same answers, each adapter's its own"
            assert base not in answers
            requests = 3 * SESSIONS
            assert stock_waits >= requests - 1, "three in turn in two slots: vLLM's own order always drops the next"
            assert waits <= 0.2 * requests, f"{waits} of {requests} still waited"
            assert len(await port.loaded()) == 2
            paths_of_nothing = VllmAdapters(engine, {"gone": str(tmp_path / "gone")}, timeout_s=30.0)
            with pytest.raises(AdapterFailed):
                await paths_of_nothing.load("gone")
            assert await answer(engine, port, "poet", 3), "the engine lives on"
        finally:
            engine.shutdown()

    asyncio.run(main())
    gc.collect()
