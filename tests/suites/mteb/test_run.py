"""A run over local copies: every kind of task, means and missing tasks, resume, mteb's folder."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from frozenprobe.encoders.registry import load_encoder
from frozenprobe.errors import DataError, RecordError
from frozenprobe.records.reading import read_run
from frozenprobe.reports.mteb import print_mteb, summarise_mteb
from frozenprobe.settings import EncoderSettings, parse
from frozenprobe.suites.mteb.settings import MtebSettings
from tests.suites.mteb import rows


def settings(model, copies, tmp_path, **changes):
    values = {
        "encoder": {"ckpt": str(model)},
        "features": {"cache_dir": str(tmp_path / "cache")},
        "benchmark": "MTEB(eng, v1)",
        "tasks": rows.TASKS["MTEB(eng, v1)"],
        "data_dir": str(copies),
        "export": False,
    }
    return parse(MtebSettings, {**values, **changes})


def run(*arguments, **options):
    from frozenprobe.suites.mteb.run import run_mteb

    return run_mteb(*arguments, **options)


def watch(monkeypatch):
    """The names of the tasks that are computed from now on."""
    from frozenprobe.suites.mteb import units

    names = []
    compute = units._compute

    def watched(task, *arguments):
        names.append(task.metadata.name)
        return compute(task, *arguments)

    monkeypatch.setattr(units, "_compute", watched)
    return names


@pytest.fixture(scope="module")
def whole(tiny_bert, copies, tmp_path_factory):
    """A finished run in which the copies count as whole: their row counts are not compared."""
    from frozenprobe.suites.mteb import data

    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "subset_of", lambda task: None)
        return run(settings(tiny_bert, copies, folder, training_data="MSMARCO"), folder / "run")


def test_every_kind_of_task_gives_a_main_score_and_nothing_else_is_in_the_means(whole):
    summary = summarise_mteb(whole)
    done = {score.task for score in summary.tasks if score.value is not None}
    assert done == set(rows.TASKS["MTEB(eng, v1)"].split(","))
    assert {mean.category for mean in summary.categories if mean.done} == {mean.category for mean in summary.categories}
    assert all(0 <= score.value <= 1 for score in summary.tasks if score.category != "STS" and score.value is not None)
    assert not summary.others  # the parts of an aggregate are in its score
    assert summary.average is None
    assert summary.overall is None
    assert len(summary.missing) == 56 - len(done)


def test_the_aggregate_counts_once_as_the_mean_of_its_parts(whole):
    scores = {unit.key.task: [row["value"] for row in unit.rows if row["n_evaluated"]] for unit in whole.units}
    headline = {unit.key.task for unit in whole.units for row in unit.rows if row["is_headline"]}
    assert headline == set(rows.TASKS["MTEB(eng, v1)"].split(","))
    parts = [
        value[0] for task, value in scores.items() if task.startswith("CQADupstack") and task != "CQADupstackRetrieval"
    ]
    assert len(parts) == 12
    assert scores["CQADupstackRetrieval"][0] == pytest.approx(np.mean(parts), abs=1e-5)


def test_mteb_reads_its_results_folder_and_gives_the_same_scores(whole):
    import mteb

    results = mteb.ResultCache(cache_path=whole.folder / "mteb").load_results(
        models=["frozenprobe/tiny-bert-mean"], validate_and_filter=False
    )
    (model,) = results.model_results
    theirs = {result.task_name: result.get_score() for result in model.task_results}
    ours = {score.task: score.value for score in summarise_mteb(whole).tasks if score.value is not None}
    assert ours.keys() <= theirs.keys()
    for task, value in ours.items():
        assert theirs[task] == pytest.approx(value, abs=1e-6)


def test_the_models_metadata_names_training_data_and_dimensions(whole):
    (path,) = whole.folder.glob("mteb/results/*/*/model_meta.json")
    meta = json.loads(path.read_text())
    assert meta["name"] == "frozenprobe/tiny-bert-mean"
    assert meta["revision"] == path.parent.name
    assert meta["training_datasets"] == ["MSMARCO"]
    assert meta["embed_dim"] == 32
    assert meta["max_tokens"] == 128


def test_scores_are_mteb_s_own_for_an_encoder_that_it_runs_itself(whole, tiny_bert, copies, tmp_path):
    import mteb
    from sentence_transformers import SentenceTransformer

    from frozenprobe.suites.mteb.data import use_local_copies
    from frozenprobe.suites.mteb.quiet import quiet
    from frozenprobe.suites.mteb.selection import parts_of, select

    names = "Banking77Classification,TwentyNewsgroupsClustering,TwitterSemEval2015,AskUbuntuDupQuestions,SciFact,BIOSSES,SummEval"
    chosen = select(settings(tiny_bert, copies, tmp_path, tasks=names))
    tasks = [part for task in chosen.tasks for part in parts_of(task)]
    use_local_copies(tasks, copies, tmp_path / "pages")
    # Of a plain transformers folder sentence-transformers makes a model with mean pooling.
    peer = SentenceTransformer(str(tiny_bert), device="cpu")
    encode = peer.encode
    peer.encode = lambda *arguments, **options: encode(*arguments, **options | {"normalize_embeddings": True})
    with quiet():
        theirs = mteb.evaluate(peer, tasks, cache=None, co2_tracker=False, show_progress_bar=False)
    ours = {score.task: score.value for score in summarise_mteb(whole).tasks}
    assert len(theirs.task_results) == len(names.split(","))
    for result in theirs.task_results:
        assert ours[result.task_name] == pytest.approx(result.get_score(), abs=1e-4), result.task_name


def test_tables_and_csv_state_what_is_missing(whole):
    console = Console(width=200)
    with console.capture() as capture:
        print_mteb(whole, console)
    text = capture.get()
    assert "missing: AmazonPolarityClassification" in text
    assert "2 of 12" in text
    assert "(" in next(line for line in text.splitlines() if "Reranking" in line and " of " in line)
    (summary,) = pd.read_csv(whole.folder / "summary.csv").to_dict("records")
    assert summary["tasks"] == 11
    assert np.isnan(summary["Avg"])
    assert np.isnan(summary["Clustering"])
    assert summary["Summarization"] > 0  # one of one
    tasks = pd.read_csv(whole.folder / "tasks.csv")
    assert len(tasks) == 56
    assert tasks["score"].notna().sum() == 11
    assert set(tasks.loc[tasks["score"].notna(), "zero_shot"]) == {"yes"}
    assert set(tasks.loc[tasks["task"] == "MSMARCO", "zero_shot"]) == {"no"}


def test_a_complete_benchmark_has_both_means(whole):
    complete = read_run(whole.folder)
    present = summarise_mteb(whole)
    benchmark = [[score.task, score.category, score.metric] for score in present.tasks if score.value is not None]
    complete.manifest["benchmark"] = {"name": "MTEB(eng, v1)", "tasks": benchmark}
    summary = summarise_mteb(complete)
    frame = pd.DataFrame([(score.category, score.value) for score in summary.tasks], columns=["category", "value"])
    assert summary.average == pytest.approx(frame.groupby("category")["value"].mean().mean())
    assert summary.overall == pytest.approx(frame["value"].mean())
    assert summary.missing == []


def test_a_resume_runs_what_is_missing_and_writes_mtebs_folder_anew(whole, tiny_bert, copies, tmp_path, monkeypatch):
    from frozenprobe.suites.mteb import units as module

    out = tmp_path / "run"
    shutil.copytree(whole.folder, out)
    lost = next(file for file in out.glob("units/*") if b"BIOSSES" in file.read_bytes())
    damaged = next(file for file in out.glob("units/*") if b"STS17" in file.read_bytes())
    lost.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-5])
    (gone,) = out.glob("mteb/results/*/*/SummEval.json")
    gone.unlink()
    ran = watch(monkeypatch)
    monkeypatch.setattr(module.data, "subset_of", lambda task: None)
    again = run(settings(tiny_bert, copies, tmp_path, training_data="MSMARCO"), out)
    assert sorted(ran) == ["BIOSSES", "STS17"]
    assert gone.exists()

    def scores(run):
        return sorted(json.dumps(row, sort_keys=True) for unit in run.units for row in unit.rows)

    assert scores(again) == scores(whole)


def test_a_finished_run_needs_neither_data_nor_network_and_takes_another_word_on_training_data(
    whole, tiny_bert, tmp_path
):
    out = tmp_path / "run"
    shutil.copytree(whole.folder, out)
    again = run(settings(tiny_bert, tmp_path, tmp_path, training_data="SciFact", data_dir=None), out)
    assert len(again.units) == len(whole.units)
    known = {score.task: score.zero_shot for score in summarise_mteb(again).tasks}
    assert known["SciFact"] is False
    assert known["MSMARCO"] is True
    (path,) = out.glob("mteb/results/*/*/model_meta.json")
    assert json.loads(path.read_text())["training_datasets"] == ["SciFact"]


@pytest.mark.parametrize("damaged", [False, True])
def test_overwrite_drops_what_another_run_left(whole, tiny_bert, copies, tmp_path, damaged):
    out = tmp_path / "run"
    shutil.copytree(whole.folder, out)
    (out / "model").mkdir()
    if damaged:
        (out / "manifest.json").write_text("{")
    changed = run(settings(tiny_bert, copies, tmp_path, pooler="cls", tasks="BIOSSES"), out, overwrite=True)
    assert [unit.key.task for unit in changed.units] == ["BIOSSES-subset"]
    assert [path.parent.parent.name for path in out.glob("mteb/results/*/*/*")] == ["frozenprobe__tiny-bert-cls"]
    assert not (out / "model").exists()


def test_rows_that_mteb_cannot_score_are_one_line_and_the_finished_tasks_stay(tiny_bert, copies, tmp_path):
    import pandas as pd

    shutil.copytree(copies / "mteb", tmp_path / "data/mteb")
    pd.DataFrame({"sentence1": ["a"], "sentence2": ["b"], "score": ["x"]}).to_parquet(
        tmp_path / "data/mteb/biosses-sts/default/test.parquet"
    )
    with pytest.raises(DataError, match=r"BIOSSES: mteb cannot score its rows: \w+: ") as caught:
        run(settings(tiny_bert, tmp_path / "data", tmp_path, tasks="BIOSSES,STS17"), tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_both_benchmarks_share_a_folder_and_what_they_have_in_common(whole, tiny_bert, copies, tmp_path, monkeypatch):
    from frozenprobe.suites.mteb import units as module

    out = tmp_path / "run"
    shutil.copytree(whole.folder, out)
    monkeypatch.setattr(module.data, "subset_of", lambda task: None)
    changes = {"benchmark": "MTEB(eng, v2)", "tasks": rows.TASKS["MTEB(eng, v2)"], "training_data": "MSMARCO"}
    computed = watch(monkeypatch)
    second = run(settings(tiny_bert, copies, tmp_path, **changes), out)
    summary = summarise_mteb(second)
    assert summary.benchmark == "MTEB(eng, v2)"
    assert {score.task for score in summary.tasks if score.value is not None} >= set(changes["tasks"].split(","))
    assert sorted(computed) == ["SummEvalSummarization.v2", "TwentyNewsgroupsClustering.v2"]
    for unit in second.units:  # filed under both, once as a part and once as a task of its own
        if unit.key.task == "CQADupstackGamingRetrieval":
            assert any(row["is_headline"] for row in unit.rows) == (unit.key.suite == "MTEB(eng, v2)")
            assert {row["suite"] for row in unit.rows} == {unit.key.suite}


def test_a_task_outside_of_the_benchmark_is_printed_and_in_no_mean_until_its_own_is_asked_for(
    whole, tiny_bert, copies, tmp_path, monkeypatch
):
    from frozenprobe.suites.mteb import units as module

    monkeypatch.setattr(module.data, "subset_of", lambda task: None)
    out = tmp_path / "run"
    first = summarise_mteb(
        run(settings(tiny_bert, copies, tmp_path, tasks="SciFact,BIOSSES", benchmark="MTEB(eng, v2)"), out)
    )
    assert [score.task for score in first.others] == ["SciFact"]
    assert [score.task for score in first.tasks if score.value is not None] == ["BIOSSES"]
    computed = watch(monkeypatch)
    second = summarise_mteb(run(settings(tiny_bert, copies, tmp_path, tasks="SciFact"), out))
    assert computed == []
    assert [score.task for score in second.tasks if score.value is not None] == ["SciFact"]
    assert second.tasks != first.tasks


def test_another_pooling_in_the_same_folder_is_refused(whole, tiny_bert, copies, tmp_path):
    with pytest.raises(RecordError, match=r"holds a different run .*pooling was mean, is cls"):
        run(settings(tiny_bert, copies, tmp_path, pooler="cls", training_data="MSMARCO"), whole.folder)


def test_a_copy_with_fewer_rows_is_a_subset_in_no_mean_and_not_in_mtebs_folder(tiny_bert, copies, tmp_path):
    from frozenprobe.suites.mteb.run import evaluate_mteb

    def evaluate():
        return evaluate_mteb(
            tiny_bert,
            "mean",
            out=tmp_path / "run",
            tasks="BIOSSES,CQADupstackRetrieval",
            benchmark="MTEB(eng, v1)",
            data_dir=copies,
            features={"cache": False},
            export=False,
        )

    frame = evaluate()
    assert "BIOSSES-subset" in set(frame["task"])
    finished = read_run(tmp_path / "run")
    summary = summarise_mteb(finished)
    assert summary.missing == [score.task for score in summary.tasks]
    assert {score.task for score in summary.others} == {"BIOSSES (subset)", "CQADupstackRetrieval (subset)"}
    assert {unit.about["revision"] for unit in finished.units} == {"revision unknown"}
    (biosses,) = [unit for unit in finished.units if unit.key.task == "BIOSSES-subset"]
    assert biosses.about["source"] == str(copies / "mteb/biosses-sts")
    assert biosses.about["result"]["dataset_revision"] == "revision unknown"
    assert [path.name for path in (tmp_path / "run").glob("mteb/results/*/*/*")] == ["model_meta.json"]
    before = sorted((tmp_path / "run").glob("units/*"))
    evaluate()
    assert sorted((tmp_path / "run").glob("units/*")) == before


def test_a_module_is_a_pooler_of_a_run_and_other_weights_are_another_run(tiny, copies, tmp_path, pooler):
    import torch
    from sentence_transformers import SentenceTransformer

    from frozenprobe.suites.mteb.run import evaluate_mteb

    def evaluate():
        features = {"cache_dir": tmp_path / "cache"}
        return evaluate_mteb(tiny, pooler, out=tmp_path / "run", tasks="BIOSSES", data_dir=copies, features=features)

    frame = evaluate()
    assert set(frame["pooling"]) == {"TinyPooler"}
    loaded = SentenceTransformer(str(tmp_path / "run/model"), device="cpu", trust_remote_code=True)
    assert loaded.encode(["a"]).shape == (1, 12)
    with torch.no_grad():
        pooler.query += 1
    with pytest.raises(RecordError, match=r"holds a different run .*fingerprint was"):
        evaluate()


def test_a_hub_model_is_itself_only_as_it_was_published_and_keeps_the_training_data_that_mteb_knows(
    tiny, copies, tmp_path
):
    from dataclasses import replace

    from frozenprobe.suites.mteb.adapter import MtebEncoder
    from frozenprobe.suites.mteb.export import export
    from frozenprobe.suites.mteb.meta import model_meta

    export(MtebEncoder(tiny, "mean"), tmp_path / "model")
    encoder = load_encoder(EncoderSettings(ckpt=str(tmp_path / "model")))
    encoder.info = replace(encoder.info, name="sentence-transformers/all-MiniLM-L6-v2", revision="a" * 40)

    def meta(pooling, **changes):
        chosen = settings(tmp_path / "model", copies, tmp_path, **changes)
        return model_meta(chosen, MtebEncoder(encoder, pooling), encoder.info.name)

    published = meta("own")
    assert (published.name, published.revision) == (encoder.info.name, "a" * 40)
    assert "MSMARCO" in published.training_datasets
    assert published.is_zero_shot_on(["MSMARCO"]) is False
    pooled = meta("mean", training_data="STS12")
    assert pooled.name == "sentence-transformers/all-MiniLM-L6-v2-mean"
    assert pooled.revision != "a" * 40
    assert pooled.adapted_from == encoder.info.name
    assert {"STS12", "MSMARCO"} <= pooled.training_datasets
    encoder.info = replace(encoder.info, name="somebody/else")
    assert meta("own").training_datasets is None
    assert meta("own", training_data="none").training_datasets == set()
    assert meta("own", model_name="me/mine").name == "me/mine"


def test_a_missing_data_set_is_one_line_before_anything_is_loaded_or_written(tiny_bert, copies, tmp_path):
    with pytest.raises(DataError) as caught:
        run(settings("/nowhere", copies, tmp_path, tasks="BIOSSES,STS12,NFCorpus"), tmp_path / "run")
    assert "2 of 3 data sets are not in" in str(caught.value)
    assert "STS12 (mteb/sts12-sts)" in str(caught.value)
    assert "NFCorpus (mteb/nfcorpus)" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": "STSBenchmrk"}, "did you mean .*STSBenchmark"),
        ({"benchmark": "MTEB(eng, v3)"}, r"did you mean .*MTEB\(eng, v2\)"),
        ({"tasks": "BIOSSES", "task_types": "Retrieval"}, "no task is left"),
        ({"tasks": "CIFAR10"}, "not a task of texts only"),
    ],
)
def test_a_wrong_choice_of_tasks_is_one_line(tiny_bert, copies, tmp_path, changes, message):
    from frozenprobe.suites.mteb.selection import select

    with pytest.raises(DataError, match=message):
        select(settings(tiny_bert, copies, tmp_path, **changes))


def test_tasks_are_chosen_by_any_spelling_and_type_and_run_cheap_ones_first(tiny_bert, copies, tmp_path):
    from frozenprobe.suites.mteb.selection import select

    chosen = select(settings(tiny_bert, copies, tmp_path, tasks="scifact,sick-r,stsbenchmark,Biosses,msmarco"))
    assert [task.metadata.name for task in chosen.tasks] == ["BIOSSES", "STSBenchmark", "SICK-R", "SciFact", "MSMARCO"]
    assert len(chosen.complete) == 56
    types = select(settings(tiny_bert, copies, tmp_path, tasks=None, task_types="Reranking,Summarization"))
    assert len(types.tasks) == 5
    outside = select(settings(tiny_bert, copies, tmp_path, tasks="SciFact", benchmark="MTEB(eng, v2)"))
    assert [task.metadata.name for task in outside.tasks] == ["SciFact"]
    assert "SciFact" not in {name for name, *_ in outside.complete}


def test_a_benchmark_that_mteb_has_changed_is_noticed():
    from frozenprobe.suites.mteb.selection import _notes
    from frozenprobe.tasks.mteb import tasks_of

    assert _notes("MTEB(eng, v2)", tasks_of("MTEB(eng, v2)")) == []
    (line,) = _notes("MTEB(eng, v2)", tasks_of("MTEB(eng, v2)")[1:])
    assert "AmazonCounterfactualClassification" in line
