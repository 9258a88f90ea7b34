"""Unmodified mteb against a hub on the loopback address: every kind of task, and what is told when the hub is not there.

One process for all: importing mteb takes seconds.
"""

import json

import pytest

from tests.hub import serve_hub
from tests.suites.mteb import rows

SCRIPT = """
import json, sys
from frozenprobe.errors import DataError
from frozenprobe.suites.mteb.run import evaluate_mteb

model, out, *runs = json.loads(sys.argv[1])
for tasks, benchmark in runs:
    try:
        frame = evaluate_mteb(model, "mean", out=out, benchmark=benchmark, tasks=tasks, export=False,
                              features={"cache": False}, training_data="none")
    except DataError as error:
        print(json.dumps({"error": str(error)}))
    else:
        headline = frame[frame["is_headline"]]
        print(json.dumps(dict(zip(headline["task"], headline["value"]))))
"""


def evaluate(hub, model, out, *runs, **options):
    argument = json.dumps(json.dumps([str(model), str(out), *runs]))
    finished = hub.run_python(f"import sys; sys.argv = ['', {argument}]\n{SCRIPT}", **options)
    assert finished.returncode == 0, finished.stderr
    return [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    rows.write(root / "datasets", card=True)
    with serve_hub(root, any_commit=True) as hub:
        yield hub


@pytest.mark.slow
def test_every_kind_of_task_of_both_benchmarks_runs_from_the_hub(hub, tiny_bert, tmp_path):
    out = tmp_path / "run"
    first, second, refused = answers = evaluate(
        hub,
        tiny_bert,
        out,
        *[(tasks, benchmark) for benchmark, tasks in rows.TASKS.items()],
        ("BIOSSES,NFCorpus,STS12", "MTEB(eng, v1)"),
    )
    assert "error" not in first | second, answers
    assert set(rows.TASKS["MTEB(eng, v1)"].split(",")) <= set(first)
    assert set(rows.TASKS["MTEB(eng, v2)"].split(",")) <= set(second)
    assert not [name for name in second if name.endswith("-subset")]
    assert "2 of 2 data sets cannot be had from the hub" in refused["error"]
    assert "NFCorpus (mteb/nfcorpus" in refused["error"]
    (results,) = out.glob("mteb/results/*/*")
    for task in rows.TASKS["MTEB(eng, v2)"].split(","):
        saved = json.loads((results / f"{task}.json").read_text())
        assert len(saved["dataset_revision"]) == 40
        assert saved["scores"]["test"][0]["main_score"] == pytest.approx(second[task], abs=1e-6)

    # The network goes, the cache stays: what was loaded at its revision still runs, and what was not is named at once.
    offline = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    again, missing = evaluate(
        hub, tiny_bert, tmp_path / "offline", ("BIOSSES", "MTEB(eng, v1)"), ("STS13", "MTEB(eng, v1)"), env=offline
    )
    assert again["BIOSSES"] == pytest.approx(first["BIOSSES"], abs=1e-6)
    assert "STS13 (mteb/sts13-sts" in missing["error"]
