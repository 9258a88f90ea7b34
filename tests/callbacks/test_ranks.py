"""A probe on every rank of a data-parallel training: the same losses, one log, one folder of records."""

from __future__ import annotations

import json
import socket

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import frozenprobe
from frozenprobe.callbacks import Probe
from tests.callbacks.conftest import FAST, make_model, seed_everything
from tests.encoders import tiny


def run(rank, folder, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    tokenizer = tiny.wordpiece()
    result = {"log": []}
    for name in ("without", "with"):
        seed_everything(rank)
        model = DistributedDataParallel(make_model().train())
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        probe = None
        if name == "with":
            probe = Probe(
                **FAST,
                every=2,
                max_seconds=1000,
                out=folder / "frozen",
                log=lambda step, scores: result["log"].append([step, scores]),
            )
        losses = result[name] = []
        for step in (1, 2, 3, 4):
            ids = torch.randint(5, 80, (4, 8))
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(loss.item())
            if probe is not None:
                scores = probe(step, model, tokenizer)
        if probe is not None:
            probe.close()
            result["scores"] = scores
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def test_two_ranks(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run, (tmp_path, port), nprocs=2)
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    for result in (first, second):
        assert result["without"] == result["with"]
    assert first["without"] != second["without"]  # each rank has its own rows
    assert [step for step, _ in first["log"]] == [2, 4]
    assert second["log"] == []
    del first["scores"]["frozen_seconds"], second["scores"]["frozen_seconds"]
    assert first["scores"] == second["scores"]
    assert {folder.name for folder in (tmp_path / "frozen").glob("step-*")} == {"step-00000002", "step-00000004"}
    assert len(frozenprobe.read_run(tmp_path / "frozen/step-00000004").units) == 2
