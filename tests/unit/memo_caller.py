"""Run as a program: many threads that call one memoized tool. ARGS: url, threads, file to count runs in."""

from __future__ import annotations

import os
import sys
import threading
import time

from agent_client.memo import Memo


def main(url: str, threads: int, log: str) -> None:
    memo = Memo(url, "k1")

    @memo.tool("search", version="1")
    def search(query: str, trace: int) -> dict[str, str]:
        with open(log, "ab", buffering=0) as file:
            file.write(b"ran\n")
        time.sleep(0.2)
        return {"found": query}

    results: list[dict[str, str]] = []
    callers = [threading.Thread(target=lambda n=n: results.append(search("x", trace=n))) for n in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [{"found": "x"}] * threads, results
    print(os.getpid(), len(results))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
