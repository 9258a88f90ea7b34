"""Unmodified hub clients against a hub on the loopback address: what works, and how each failure is told."""

import json
import textwrap

import pandas as pd
import pytest

from tests.hub import COMMIT, serve_hub

CARD = """---
configs:
- config_name: cola
  data_files:
  - {split: train, path: cola/train-*}
  - {split: validation, path: cola/validation-*}
- config_name: rte
  data_files:
  - {split: train, path: rte/train-*}
  - {split: validation, path: rte/validation-*}
---
"""

# Prints one JSON line per attempt: what was loaded, or the DataError; anything else breaks the script.
PRELUDE = """
import json
from dataclasses import replace
from frozenprobe.errors import DataError
from frozenprobe.tasks import GLUE, load_task

def attempt(spec, **kwargs):
    try:
        data = load_task(spec, **kwargs)
    except DataError as error:
        print(json.dumps({"error": str(error)}))
    else:
        print(json.dumps({"revision": data.revision, "source": data.source, "texts": data.train.texts,
            "labels": data.train.labels.tolist(), "n": len(data.evaluations[0]), "subset": data.subset}))
"""


@pytest.fixture
def hub(tmp_path):
    folder = tmp_path / "datasets/nyu-mll/glue"
    (folder / "cola").mkdir(parents=True)
    (folder / "rte").mkdir()
    (folder / "README.md").write_text(CARD)
    for split, n in (("train", 5), ("validation", 4)):
        texts = [f"{split} text {i}" for i in range(n)]
        labels = [i % 2 for i in range(n)]
        frame = pd.DataFrame({"sentence": texts, "label": labels, "idx": range(n)})
        frame.to_parquet(folder / f"cola/{split}-00000-of-00001.parquet")
        frame = pd.DataFrame({"sentence1": texts, "sentence2": texts, "label": labels})
        frame.to_parquet(folder / f"rte/{split}-00000-of-00001.parquet")
    with serve_hub(tmp_path) as hub:
        yield hub


def attempts(hub, *calls, **kwargs):
    finished = hub.run_python(PRELUDE + "\n".join(f"attempt({call})" for call in calls), **kwargs)
    assert finished.returncode == 0, finished.stderr
    results = [json.loads(line) for line in finished.stdout.splitlines()]
    for result in results:
        assert "\n" not in result.get("error", "")
        assert "Traceback" not in result.get("error", "")
    return results


def test_load_dataset_and_every_way_to_fail(hub):
    hub.cut.add("rte/train-00000-of-00001.parquet")
    plain, pinned, no_branch, no_commit, no_set, no_config, cut = attempts(
        hub,
        "GLUE['cola']",
        f"GLUE['cola'], revision='{COMMIT}'",
        "GLUE['cola'], revision='v9'",
        f"GLUE['cola'], revision='{'ab' * 20}'",
        "replace(GLUE['cola'], hub_id='nyu-mll/absent')",
        "GLUE['mrpc']",
        "GLUE['rte']",
        timeout=120,
    )
    assert plain == {
        "revision": COMMIT,
        "source": "nyu-mll/glue",
        "texts": [f"train text {i}" for i in range(5)],
        "labels": [0, 1, 0, 1, 0],
        "n": 4,
        "subset": "train 5 of 8,551 rows, validation 4 of 1,043 rows",
    }
    assert pinned == plain
    assert any(request.startswith("GET /datasets/nyu-mll/glue/resolve/") for request in hub.requests)
    assert no_branch["error"].startswith("cola: cannot load nyu-mll/glue (cola) at revision v9 from the hub: ")
    assert "ab" * 20 in no_commit["error"]
    assert "nyu-mll/absent" in no_set["error"]
    assert "'mrpc' not found" in no_config["error"]
    assert cut["error"].startswith("rte: cannot load nyu-mll/glue (rte) from the hub: peer closed connection")
    # The client resumed, but not for ever.
    assert 2 <= sum("rte/train" in request and request.startswith("GET") for request in hub.requests) <= 10


def test_without_a_network_the_cache_answers_but_never_for_another_commit(hub):
    (online,) = attempts(hub, "GLUE['cola']")
    hub.requests.clear()
    cached, other_commit, other_branch, uncached = attempts(
        hub,
        "GLUE['cola']",
        f"GLUE['cola'], revision='{'ab' * 20}'",
        "GLUE['cola'], revision='v9'",
        "GLUE['rte']",
        env={"HF_HUB_OFFLINE": "1"},
    )
    assert hub.requests == []
    assert cached == online
    assert f"only at revision {COMMIT}" in other_commit["error"]
    assert "cannot load" in other_branch["error"]
    assert "rte" in uncached["error"]


def test_an_unmodified_model_client_loads_a_tiny_bert(hub):
    script = textwrap.dedent(
        f"""
        import torch
        from transformers import AutoModel, BertConfig, BertModel
        torch.manual_seed(0)
        folder = {str(hub.root / "models/org/tiny-bert")!r}
        config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        made = BertModel(config).eval()
        made.save_pretrained(folder)
        ids = torch.tensor([[2, 5, 6, 3]])
        with torch.no_grad():
            loaded = AutoModel.from_pretrained("org/tiny-bert").eval()
            assert torch.equal(made(ids).last_hidden_state, loaded(ids).last_hidden_state)
        AutoModel.from_pretrained("org/tiny-bert", revision="{COMMIT}")
        for repository, revision in (("org/absent", None), ("org/tiny-bert", "v9")):
            try:
                AutoModel.from_pretrained(repository, revision=revision or "main")
            except OSError as error:
                print("refused", repository)
        """
    )
    finished = hub.run_python(script, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == ["refused org/absent", "refused org/tiny-bert"]
    snapshots = hub.home / "hub/models--org--tiny-bert/snapshots"
    assert [folder.name for folder in snapshots.iterdir()] == [COMMIT]
    assert (snapshots / COMMIT / "model.safetensors").is_file()
