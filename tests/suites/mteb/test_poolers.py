"""A pooler trained as part of a run: frozen, unfrozen, or taken from a folder; what is recorded and exported of it."""

import json
import shutil

import numpy as np
import pytest

import frozenprobe
from frozenprobe.cli.main import main
from frozenprobe.contrastive.settings import TRAIN_DATA
from frozenprobe.engine.progress import PlainReporter
from frozenprobe.errors import EncoderError, FrozenprobeError, RecordError, SettingsError
from frozenprobe.records.reading import read_run
from frozenprobe.reports.leaderboard import make_leaderboard
from frozenprobe.reports.mteb import summarise_mteb
from frozenprobe.settings import parse
from frozenprobe.suites.mteb.settings import MtebSettings
from tests.contrastive.conftest import make_rows

TEXTS = ["a", "some words, and some more of them", "many words " * 60]
SECTIONS = {
    "training": {"batch_size": 16, "lr": 3e-3, "checkpoint_every": 1},
    "pooler": {"blocks": 1, "heads": 2},
}


@pytest.fixture(scope="module")
def triples(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "msmarco.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in make_rows(50)))
    return path


@pytest.fixture(scope="module")
def values(tiny_bert, copies, triples):
    """Settings of a run that trains, with some of them changed."""

    def change(contrastive=None, **changes):
        sections = {**SECTIONS, "data": {"train_data": str(triples), "held_out": 4}, **(contrastive or {})}
        common = {"tasks": "BIOSSES", "data_dir": str(copies), "features": {"cache": False}, "export": False}
        return {"frozen": True, **common, "contrastive": sections, **changes}

    return change


@pytest.fixture(scope="module")
def probe(tiny_bert, values):
    """Runs MTEB into a folder; returns the run and what was noted."""
    from frozenprobe.suites.mteb.run import run_mteb

    def run(out, contrastive=None, ckpt=tiny_bert, overwrite=False, **changes):
        lines = []
        chosen = values(contrastive, **changes)
        if "pooler" in changes:
            del chosen["contrastive"]
        settings = parse(MtebSettings, {"encoder": {"ckpt": str(ckpt)}, **chosen})
        return run_mteb(settings, out, overwrite=overwrite, reporter=PlainReporter(lines.append)), lines

    return run


@pytest.fixture(scope="module")
def frozen(probe, tmp_path_factory):
    """A finished run with a trained pooler, in which the copy counts as whole, and its notes."""
    from frozenprobe.suites.mteb import data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "subset_of", lambda task: None)
        return probe(tmp_path_factory.mktemp("frozen") / "run", export=True)


def files(folder):
    """All files but locks, with when they were written."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return sorted((str(path), path.stat().st_mtime_ns) for path in found)


def scores(run):
    return sorted((row["metric"], row["value"]) for unit in run.units for row in unit.rows)


def test_records_name_method_and_backbone_as_the_leaderboard_reads_them(frozen):
    run, notes = frozen
    (unit,) = run.units
    assert unit.about["backbone"] == "frozen"
    assert {(row["probe"], row["pooling"]) for row in unit.rows} == {("contrastive", "contrastive")}
    (row,) = make_leaderboard([run.folder], suite="mteb-v2").frame.to_dict("records")
    assert (row["method"], row["backbone"]) == ("contrastive", "frozen")
    assert run.manifest["pooler"]["data"]["rows"] == 50
    assert "note: held out: 4 queries with 4 passages that answer them" in notes
    assert (run.folder / "pooler/poolers/pooler/pooler.safetensors").is_file()


def test_ms_marco_rows_are_told_to_mteb_and_what_else_is_unknown_is_no_zero_shot(frozen):
    run, notes = frozen
    (path,) = run.folder.glob("mteb/results/frozenprobe__tiny-bert-contrastive/*/model_meta.json")
    assert json.loads(path.read_text())["training_datasets"] == ["MSMARCO"]
    assert run.manifest["training_data"] == ["MSMARCO"]
    assert run.manifest["zero_shot"]["BIOSSES"] is None
    assert set(run.manifest["zero_shot"].values()) <= {None, False}
    assert any("mteb is told of MSMARCO; what else" in line for line in notes)


def test_the_export_gives_the_vectors_that_were_scored(frozen, tiny):
    from sentence_transformers import SentenceTransformer

    run, _ = frozen
    pooler = frozenprobe.load_pooler(run.folder / "pooler/poolers/pooler", tiny)
    model = frozenprobe.MtebEncoder(tiny, pooler)
    loaded = SentenceTransformer(str(run.folder / "model"), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(loaded.encode(TEXTS), model.vectors(TEXTS), atol=1e-5)
    assert np.abs(loaded.encode(TEXTS) - frozenprobe.MtebEncoder(tiny, "mean").vectors(TEXTS)).max() > 0.01


def test_a_finished_run_trains_and_encodes_nothing(frozen, probe, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(frozen[0].folder, out)
    before = files(out / "pooler"), files(out / "units"), files(out / "model")
    again, notes = probe(out, export=True)
    assert any("is finished: its poolers are read, nothing is trained" in line for line in notes)
    after = files(out / "pooler"), files(out / "units"), files(out / "model")
    assert after == before
    assert scores(again) == scores(frozen[0])


def test_a_trained_poolers_folder_gives_the_same_scores(frozen, probe, tmp_path):
    from frozenprobe.suites.mteb import data

    folder = frozen[0].folder / "pooler/poolers/pooler"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "subset_of", lambda task: None)
        run, _ = probe(tmp_path / "run", frozen=False, pooler=str(folder))
    assert scores(run) == scores(frozen[0])
    assert run.manifest["training_data"] == ["MSMARCO"]
    assert run.units[0].about["backbone"] == "frozen"


def test_a_poolers_folder_goes_with_its_encoder_layer_and_prompts_only(frozen, probe, tmp_path, tiny_bert):
    folder = frozen[0].folder / "pooler/poolers/pooler"

    def refused(kind, message, **changes):
        with pytest.raises(kind, match=message):
            probe(tmp_path / "run", frozen=False, **{"pooler": str(folder), **changes})

    refused(SettingsError, "was trained on layer last; leave out --layer", layer=1)
    refused(SettingsError, "was trained with the prompts none; leave out yours", query_prompt="find: ")
    refused(EncoderError, "add --max-length 128", encoder={"ckpt": str(tiny_bert), "max_length": 20})
    refused(
        EncoderError,
        "a pooler belongs to one encoder",
        encoder={"ckpt": str(tiny_bert), "random_init": True, "init_seed": 1},
    )
    refused(RecordError, "name one of its poolers: .*/poolers/pooler", pooler=str(folder.parents[1]))
    refused(RecordError, "holds no pooler", pooler=str(folder.parents[2]))
    refused(SettingsError, "vectors have length 1", normalise=False)
    assert not (tmp_path / "run").exists()


def test_unfrozen_trains_the_encoder_too_and_exports_the_trained_one(probe, frozen, tmp_path):
    from sentence_transformers import SentenceTransformer

    from frozenprobe.settings import EncoderSettings

    training = {"training": {**SECTIONS["training"], "unfrozen": True}}
    run, _ = probe(tmp_path / "run", training, frozen=False, export=True, training_data="none")
    assert run.units[0].about["backbone"] == "unfrozen"
    assert run.manifest["encoder"]["name"] == "tiny-bert"
    assert run.manifest["training_data"] == ["MSMARCO"]
    assert run.manifest["zero_shot"]["BIOSSES"] is True
    assert [path.name for path in run.folder.glob("mteb/results/*")] == ["frozenprobe__tiny-bert-contrastive-unfrozen"]
    encoder = frozenprobe.load_encoder(EncoderSettings(ckpt=f"hf:{run.folder / 'pooler/encoder'}"))
    pooler = frozenprobe.load_pooler(run.folder / "pooler/poolers/pooler", encoder)
    expected = frozenprobe.MtebEncoder(encoder, pooler).vectors(TEXTS)
    loaded = SentenceTransformer(str(run.folder / "model"), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(loaded.encode(TEXTS), expected, atol=1e-5)
    apart = SentenceTransformer(str(frozen[0].folder / "model"), device="cpu", trust_remote_code=True)
    assert np.abs(apart.encode(TEXTS) - expected).max() > 1e-4
    again, notes = probe(tmp_path / "run", training, frozen=False, export=True, training_data="none")
    assert scores(again) == scores(run)
    assert any("nothing is trained" in line for line in notes)


def test_an_inner_layer_and_prompts_are_those_of_the_training(probe, tmp_path):
    changes = {"layer": -2, "query_prompt": "find: "}
    run, notes = probe(tmp_path / "run", export=True, **changes)
    assert run.manifest["identity"]["layer"] == 1
    assert any("is not exported: sentence-transformers pools the last layer only" in line for line in notes)
    folder = run.folder / "pooler/poolers/pooler"
    again, _ = probe(tmp_path / "again", frozen=False, pooler=str(folder))
    assert scores(again) == scores(run)
    assert again.manifest["identity"]["prompts"] == {"query": "find: "}


def test_the_best_of_a_sweep_is_probed(probe, tmp_path):
    run, notes = probe(tmp_path / "run", {"sweep": "lr=1e-6,1e-2"})
    results = json.loads((tmp_path / "run/pooler/results.json").read_text())
    assert run.manifest["pooler"]["name"] == results["best"]
    assert any(f"{results['best']} is best of 2 poolers" in line for line in notes)
    with pytest.raises(SettingsError, match="leave out --held-out 0"):
        probe(tmp_path / "other", {"sweep": "lr=1e-6,1e-2", "data": {"held_out": 0}})


def test_python_trains_on_a_loaded_encoder(tiny, values, tmp_path):
    frame = frozenprobe.evaluate_mteb(tiny, **values())
    assert set(frame["pooling"]) == {"contrastive"}
    with pytest.raises(SettingsError, match="a pooler is given"):
        frozenprobe.evaluate_mteb(tiny, tiny.model, **values())


def test_another_run_in_the_folder_is_refused_before_anything_is_trained(frozen, probe, tmp_path):
    mean, _ = probe(tmp_path / "mean", frozen=False, pooler="mean")
    before = files(mean.folder)
    with pytest.raises(RecordError, match=r"holds a different run .*pooling was mean, is contrastive"):
        probe(mean.folder)
    assert files(mean.folder) == before
    out = tmp_path / "run"
    shutil.copytree(frozen[0].folder, out)
    with pytest.raises(RecordError, match=r"holds a different training \(poolers.pooler.lr was 0.003, is 0.5\)"):
        probe(out, {"training": {**SECTIONS["training"], "lr": 0.5}})
    with pytest.raises(RecordError, match=r"layer was last, is 1"):
        probe(out, layer=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("precious")
    with pytest.raises(RecordError, match="holds other files"):
        probe(tmp_path / "mine")
    (tmp_path / "mine/thesis.tex").rename(tmp_path / "mine/pooler")
    for changes in ({"frozen": False, "pooler": "mean"}, {}):
        with pytest.raises(RecordError):
            probe(tmp_path / "mine", overwrite=True, **changes)
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["precious"]


def test_overwrite_loses_nothing_to_bad_input_and_drops_all_of_another_run(frozen, probe, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(frozen[0].folder, out)
    for contrastive in ({"data": {"train_data": "nowhere.jsonl"}}, {"pooler": {"warm_start": True}}):
        before = files(out)
        with pytest.raises(FrozenprobeError):
            probe(out, contrastive, overwrite=True)
        assert files(out) == before
    with pytest.raises(SettingsError, match="where --overwrite would drop it"):
        probe(out, frozen=False, pooler=str(out / "pooler/poolers/pooler"), overwrite=True)
    assert files(out) == before
    probe(out, layer=1, overwrite=True)
    assert not (out / "model").exists()
    assert json.loads((out / "pooler/poolers/pooler/config.json").read_text())["encoder"]["layer"] == 1
    probe(out, frozen=False, pooler="mean", overwrite=True)
    assert not (out / "pooler").exists()


def test_finished_tasks_never_meet_another_pooler(frozen, probe, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(frozen[0].folder, out)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["pooler"]["weights"] = "another"
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RecordError, match="another pooler than the finished tasks were run with"):
        probe(out)


def test_a_run_whose_pooler_is_in_training_can_be_shown(frozen, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(frozen[0].folder, out)
    shutil.rmtree(out / "units")
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["pooler"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert len(summarise_mteb(read_run(out)).missing) == 41
    with pytest.raises(SystemExit) as exit_:
        main(["show", str(out)])
    assert exit_.value.code == 0
    assert "0 of 41" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contrastive": {"training": {"lr": 1e-3}}}, "^contrastive.training.lr is for the training of a pooler"),
        ({"contrastive": {"sweep": "lr=1,2"}}, "^contrastive.sweep is for the training of a pooler"),
        ({"frozen": True, "contrastive": {"training": {"unfrozen": True}}}, "^frozen excludes unfrozen"),
        ({"frozen": True, "pooler": "mean"}, "^pooler mean excludes frozen"),
        ({"layer": 1, "contrastive": {"training": {"unfrozen": True}}}, "its layer is last"),
        ({"frozen": True, "normalise": False}, "length 1"),
        ({"pooler": "nowhere"}, "^pooler: allowed are auto, mean, cls, last, own, and the folder"),
        ({"frozen": True, "contrastive": {"training": {"min_lr": 1}}}, "min_lr 1 is above lr"),
    ],
)
def test_options_that_would_have_no_effect_or_exclude_each_other_are_refused(changes, message):
    with pytest.raises(SettingsError, match=message):
        parse(MtebSettings, {"encoder": {"ckpt": "x"}, **changes})


def test_what_was_trained_on_is_told_as_far_as_it_is_known(tiny):
    from dataclasses import replace

    from frozenprobe.suites.mteb.meta import training_data

    known = replace(tiny.info, name="sentence-transformers/all-MiniLM-L6-v2")

    def told(rows, info=tiny.info, **stated):
        found = training_data(parse(MtebSettings, {"encoder": {"ckpt": "x"}, **stated}), info, rows)
        return (None if found.names is None else set(found.names)), found.complete

    assert told(None) == (None, False)
    assert told(None, training_data="none") == (set(), True)
    assert told(TRAIN_DATA) == ({"MSMARCO"}, False)
    assert told(TRAIN_DATA, training_data="none") == ({"MSMARCO"}, True)
    assert told(TRAIN_DATA, training_data="NQ") == ({"MSMARCO", "NQ"}, True)
    assert told("rows.jsonl") == (None, False)
    assert told("rows.jsonl", training_data="NQ") == ({"NQ"}, True)
    assert told("rows.jsonl", known) == (None, False)
    names, complete = told("data/ms_marco/train.parquet", known)
    assert {"MSMARCO", "NQ"} <= names
    assert complete
