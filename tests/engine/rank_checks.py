"""What two ranks do in `test_ranks.py`: run as `python -m tests.engine.rank_checks FOLDER` in each, with the launcher's variables set.

Each check returns plain values for the test to judge, or the error that it met; they land in `FOLDER/rank-N.pickle`.
"""

import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from frozenprobe.encoders.module import ModuleEncoder
from frozenprobe.engine.ranks import on_all_ranks
from frozenprobe.errors import SettingsError
from frozenprobe.features.base import Inputs, View
from frozenprobe.features.cache import FeatureCache
from frozenprobe.features.extract import extract
from frozenprobe.ranks import joined
from frozenprobe.settings import FeatureSettings
from frozenprobe.suites.glue import evaluate_glue
from tests.features.conftest import FakeEncoder

VIEWS = [View("last", "mean"), View(1, "max")]
QUICK = {
    "suite": "builtin",
    "tasks": "builtin-sentiment,builtin-similarity",
    "features": {"cache": False, "tokens_per_batch": 1024, "rank_timeout": 60},
    "probes": {"max_train": 100, "regimes": "10", "draws": 1, "bootstrap": 20},
}


class Fake(FakeEncoder):
    """Finds no role for tokens that another process made."""

    def collate(self, tokens, rows):
        self.roles.setdefault(id(tokens), (None, tokens))
        return super().collate(tokens, rows)


def texts(n=400, seed=0):
    generator = np.random.default_rng(seed)
    return [" ".join(f"w{w}" for w in generator.integers(500, size=generator.integers(1, 40))) for _ in range(n)]


def shared(encoder, inputs, *, budget=256, cache=None):
    """Features by view and the report of one extraction on all ranks, and how many rows this rank encoded."""
    before = None

    def load():
        nonlocal before
        before = encoder.encoded
        return encoder

    def work(load, team):
        settings = FeatureSettings(tokens_per_batch=budget)
        (found,) = extract(load(), [Inputs(inputs)], VIEWS, settings, cache=cache, team=team)
        return {str(view): found.by_view[view] for view in VIEWS}, found.report.as_dict()

    features, report = on_all_ranks(load, work, timeout=20)
    return {"features": features, "report": report, "encoded_here": encoder.encoded - before}


def same_features(folder, tiny):
    return shared(Fake(), texts())


def measured_budget(folder, tiny):
    return shared(Fake(), texts(1200), budget=None)


def one_row(folder, tiny):
    return shared(Fake(), ["one text"])


def cached(folder, tiny):
    cache = FeatureCache(folder / f"cache-{dist.get_rank()}")
    first = shared(Fake(), texts(), cache=cache)
    again = shared(Fake(), texts(), cache=cache)
    return {"first": first, "again": again, "files": len([path for path in cache._tree.rglob("*") if path.is_file()])}


def not_finite(folder, tiny):
    rows = texts()
    rows[37] = "poison " + rows[37]
    return shared(Fake(poison="poison"), rows)


def little_memory(folder, tiny):
    return shared(Fake(tokens_that_fit=200), texts())


def little_memory_there(folder, tiny):
    return shared(Fake(tokens_that_fit=200 if dist.get_rank() else None), texts())


def no_memory(folder, tiny):
    rows = texts()
    rows[250] += " far too long" * 90
    return shared(Fake(tokens_that_fit=200, max_length=512), rows)


def breaks_there(folder, tiny):
    encoder = Fake()

    def fail():
        if dist.get_rank() and encoder.encoded > 20:
            raise ValueError("a bug")

    encoder.before_forward = fail
    return shared(encoder, texts())


def different_weights(folder, tiny):
    return shared(Fake(weight_seed=dist.get_rank()), texts())


def missing_there(folder, tiny):
    def load():
        if dist.get_rank():
            raise SettingsError("there is no GPU here")
        return Fake()

    return on_all_ranks(load, lambda load, team: load().info.name, timeout=20)


def wrong_input(folder, tiny):
    def work(load, team):
        raise SettingsError("no such task")

    return on_all_ranks(Fake, work, timeout=20)


def _model(tiny):
    from transformers import AutoModel, AutoTokenizer

    return AutoModel.from_pretrained(tiny).train(), AutoTokenizer.from_pretrained(tiny)


def _scores(model, tokenizer, **more):
    state = torch.random.get_rng_state()
    frame = evaluate_glue(ModuleEncoder(model, tokenizer, name="live", step=3), **QUICK, **more)
    unchanged = bool((state == torch.random.get_rng_state()).all())
    return {"frame": frame, "trains": all(m.training for m in model.modules()), "random_state_unchanged": unchanged}


def replicated(folder, tiny):
    model, tokenizer = _model(tiny)
    return _scores(torch.nn.parallel.DistributedDataParallel(model), tokenizer)


def sharded(folder, tiny):
    from torch.distributed.fsdp import fully_shard

    model, tokenizer = _model(tiny)
    for layer in model.encoder.layer:
        fully_shard(layer)
    return _scores(fully_shard(model), tokenizer)


def sharded_the_older_way(folder, tiny):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model, tokenizer = _model(tiny)
    return _scores(FullyShardedDataParallel(model, device_id=torch.device("cpu")), tokenizer)


def sharded_without_step(folder, tiny):
    from torch.distributed.fsdp import fully_shard

    model, tokenizer = _model(tiny)
    return ModuleEncoder(fully_shard(model), tokenizer, name="live").fingerprint()


def silent(folder, tiny):
    """The other rank goes quiet; a late check, since nothing can be said to it afterwards."""

    def work(load, team):
        (found,) = extract(load(), [Inputs(texts())], VIEWS, FeatureSettings(tokens_per_batch=256), team=team)
        return found

    encoder = Fake()
    if dist.get_rank():
        encoder.before_forward = lambda: time.sleep(5) if encoder.encoded > 20 else None
    return on_all_ranks(lambda: encoder, work, timeout=2)


def absent(folder, tiny):
    """The other rank does not take part."""
    if dist.get_rank():
        time.sleep(3)
        return None
    return on_all_ranks(Fake, lambda load, team: None, timeout=1)


CHECKS = (
    same_features,
    measured_budget,
    one_row,
    cached,
    not_finite,
    little_memory,
    little_memory_there,
    no_memory,
    breaks_there,
    different_weights,
    missing_there,
    wrong_input,
    replicated,
    sharded,
    sharded_the_older_way,
    sharded_without_step,
    silent,
    absent,
)


def main():
    folder, tiny = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ["RANK"])
    found = {"alone": _scores(*_model(Path(tiny)))}  # one process, with as many threads as a rank
    with joined(60):
        for check in CHECKS:
            started = time.perf_counter()
            try:
                found[check.__name__] = check(folder, tiny)
            except Exception as error:
                found[check.__name__] = error
            found[f"{check.__name__}: seconds"] = time.perf_counter() - started
        (folder / f"rank-{rank}.pickle").write_bytes(pickle.dumps(found))
        os._exit(0)


if __name__ == "__main__":
    main()
