import json
import os
import shutil
from threading import Thread

import numpy as np
import pytest

from frozenprobe.errors import RecordError
from frozenprobe.probes.base import ProbePredictions, ProbeResult, ProbeScore
from frozenprobe.records import store as store_module
from frozenprobe.records.reading import read_run
from frozenprobe.records.schema import Unit, UnitKey
from frozenprobe.records.store import RunStore, read_timings


def manifest(**identity):
    return {
        "identity": {"fingerprint": "f", "probes": {"seed": 0, "ks": (1, 3)}, **identity},
        "encoder": {"name": "tiny", "revision": None},
    }


def make_unit(task="cola", value=0.5):
    score = ProbeScore(
        probe="ridge",
        protocol="honest",
        n=10,
        draw=0,
        split="validation",
        metric="accuracy",
        value=value,
        low=0.4,
        high=0.6,
        n_evaluated=3,
        is_headline=True,
        lambda_=10.0,
        replicates=np.array([0.4, 0.6]),
    )
    predictions = ProbePredictions("ridge", "honest", "validation", np.array([0, 1, 1]))
    unit = Unit(UnitKey("GLUE", task, "single"), task, {"subset": None, "metrics": ["accuracy"]})
    unit.add_labels("validation", np.array([0, 1, 0]))
    unit.add_view("last", "mean", True, ProbeResult([score], [predictions], []))
    return unit


def test_what_is_written_is_read_back(tmp_path):
    RunStore(tmp_path / "run", manifest()).write(make_unit(), {"forward": 1.5})
    run = read_run(tmp_path / "run")
    row = run.scores().iloc[0]
    assert (row["task"], row["probe"], row["lambda"], row["value"], row["high"]) == ("cola", "ridge", 10.0, 0.5, 0.6)
    assert np.isnan(row["k"])
    assert run.headline()[0]["values"] == [0.4, 0.6]
    assert run.rows("prediction")[0]["values"] == [0, 1, 1]
    assert run.rows("label")[0]["values"] == [0, 1, 0]
    assert run.seconds() == {"forward": 1.5}


def test_headline_scores_alone_are_read_from_the_footer(tmp_path):
    RunStore(tmp_path, manifest()).write(make_unit(), {})
    whole, quick = read_run(tmp_path), read_run(tmp_path, headline_only=True)
    assert [{**row, "values": None} for row in whole.headline()] == quick.headline()
    assert quick.rows("prediction") == []
    assert whole.units[0].about == quick.units[0].about
    assert (whole.units[0].headline_split, whole.units[0].headline_metric) == ("validation", "accuracy")


@pytest.mark.parametrize(
    ("folder", "encoder", "ckpt", "step"),
    [
        ("run", {"fingerprint": "mine step 400"}, "mine", 400),
        ("run", {"fingerprint": "abc1"}, "runs/mine/checkpoint-30", 30),
        ("step-7", {"fingerprint": "abc1"}, "mine", 7),
        ("run-3", {"fingerprint": "abc1"}, "org/model-v2", None),
    ],
)
def test_a_checkpoints_step_is_told_by_its_names(tmp_path, folder, encoder, ckpt, step):
    facts = manifest()
    facts["encoder"] |= encoder
    RunStore(tmp_path / folder, {**facts, "settings": {"encoder": {"ckpt": ckpt}}})
    assert read_run(tmp_path / folder).step == step


def test_the_same_unit_is_the_same_file(tmp_path):
    store = RunStore(tmp_path, manifest())
    store.write(make_unit(), {"forward": 1.0})
    store.write(make_unit(), {"forward": 2.0})
    assert len(list(tmp_path.glob("units/*"))) == 1
    assert read_run(tmp_path).seconds() == {"forward": 2.0}


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-9], lambda content: content.replace(b"cola", b"cole"), lambda _: b""]
)
def test_a_damaged_unit_is_named_and_left_out(tmp_path, damage):
    store = RunStore(tmp_path, manifest())
    store.write(make_unit("cola"), {})
    (file,) = tmp_path.glob("units/*.parquet")
    store.write(make_unit("rte"), {})
    file.write_bytes(damage(file.read_bytes()))
    assert read_run(tmp_path).damaged == [file.name]
    again = RunStore(tmp_path, manifest())
    assert again.finished() == {UnitKey("GLUE", "rte", "single")}
    assert again.damaged == [file.name]
    # It is set aside, so that it is told of once.
    assert (tmp_path / "units" / f"{file.name}.damaged").exists()
    assert read_run(tmp_path).damaged == RunStore(tmp_path, manifest()).damaged == []


def test_a_unit_that_is_damaged_or_goes_while_the_run_is_open_is_noticed(tmp_path):
    store = RunStore(tmp_path, manifest())
    store.write(make_unit("cola"), {})
    (file,) = tmp_path.glob("units/*.parquet")
    store.write(make_unit("rte"), {})
    assert {key.task for key in store.finished()} == {"cola", "rte"}
    file.write_bytes(file.read_bytes()[:-9])
    assert {key.task for key in store.finished()} == {"rte"}
    for other in tmp_path.glob("units/*.parquet"):
        other.unlink()
    assert store.finished() == set()


def test_a_unit_that_cannot_be_read_is_damaged(tmp_path):
    RunStore(tmp_path, manifest())
    (tmp_path / "units" / "0000.parquet").mkdir(parents=True)
    assert read_run(tmp_path).damaged == ["0000.parquet"]
    assert RunStore(tmp_path, manifest()).damaged == ["0000.parquet"]


def test_units_without_a_manifest_are_dropped_only_when_asked(tmp_path):
    RunStore(tmp_path, manifest()).write(make_unit(), {})
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(RecordError, match="has lost its manifest"):
        RunStore(tmp_path, manifest())
    assert len(list(tmp_path.glob("units/*.parquet"))) == 1
    assert RunStore(tmp_path, manifest(), overwrite=True).finished() == set()


def test_somebody_elses_manifest_is_never_overwritten(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "my web app"}')
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / "mine.parquet").write_text("precious")
    with pytest.raises(RecordError, match="holds other files"):
        RunStore(tmp_path, manifest(), overwrite=True)
    assert (tmp_path / "units" / "mine.parquet").read_text() == "precious"


def test_a_run_that_was_overwritten_meanwhile_writes_nothing(tmp_path):
    slow = RunStore(tmp_path, manifest())
    other = RunStore(tmp_path, manifest(fingerprint="g"), overwrite=True)
    with pytest.raises(RecordError, match="overwritten by another run"):
        slow.write(make_unit(), {})
    with pytest.raises(RecordError, match=r"overwritten by another run meanwhile$"):
        slow.update(tokens_per_batch=8)
    assert read_run(tmp_path).manifest["run_id"] == other.manifest["run_id"]
    assert other.finished() == set()


def test_a_unit_whose_run_is_overwritten_while_it_is_written_goes_again(tmp_path, monkeypatch):
    slow = RunStore(tmp_path, manifest())
    write = store_module.write_atomically

    def overwritten_before(path, content, **options):
        monkeypatch.setattr(store_module, "write_atomically", write)
        RunStore(tmp_path, manifest(fingerprint="g"), overwrite=True)
        return write(path, content, **options)

    monkeypatch.setattr(store_module, "write_atomically", overwritten_before)
    with pytest.raises(RecordError, match="overwritten by another run"):
        slow.write(make_unit(), {})
    assert list(tmp_path.glob("units/*")) == []


def test_an_overwriting_that_falls_into_an_update_is_not_undone(tmp_path, monkeypatch):
    slow = RunStore(tmp_path, manifest())
    read, others = store_module.read_manifest, []

    def overwritten_after(folder):
        held = read(folder)
        monkeypatch.setattr(store_module, "read_manifest", read)
        others.append(Thread(target=RunStore, args=(tmp_path, manifest(fingerprint="g")), kwargs={"overwrite": True}))
        others[0].start()
        others[0].join(0.5)
        assert others[0].is_alive()  # it waits
        return held

    monkeypatch.setattr(store_module, "read_manifest", overwritten_after)
    slow.update(tokens_per_batch=8)
    others[0].join()
    with pytest.raises(RecordError, match="overwritten by another run"):
        slow.update(tokens_per_batch=9)
    assert read_run(tmp_path).manifest["identity"]["fingerprint"] == "g"


def test_folders_that_a_run_leaves_go_with_it_but_for_its_own(tmp_path):
    leaves = ("results", "model")
    RunStore(tmp_path, manifest()).write(make_unit(), {})
    for name in leaves:
        (tmp_path / name).mkdir()
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(RecordError, match="holds other files"):
        RunStore(tmp_path, manifest(), overwrite=True)
    RunStore(tmp_path, manifest(), overwrite=True, leaves=leaves, beside=("model",))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["manifest.json", "model", "units"]


@pytest.mark.parametrize("manifest_file", ["{", None])
def test_folders_of_others_stay_although_runs_leave_such(tmp_path, manifest_file):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("precious")
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / "0000.parquet").write_text("no unit")
    if manifest_file is not None:
        (tmp_path / "manifest.json").write_text(manifest_file)
    with pytest.raises(RecordError, match="holds other files"):
        RunStore(tmp_path, manifest(), overwrite=True, leaves=("model",))
    assert (tmp_path / "model" / "weights").read_text() == "precious"


def test_the_new_manifest_is_there_before_old_units_go(tmp_path, monkeypatch):
    RunStore(tmp_path, manifest()).write(make_unit(), {})
    monkeypatch.setattr(store_module.Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "I/O error")))
    with pytest.raises(RecordError, match="I/O error"):
        RunStore(tmp_path, manifest(fingerprint="g"), overwrite=True)
    monkeypatch.undo()
    assert len(list(tmp_path.glob("units/*.parquet"))) == 1
    assert RunStore(tmp_path, manifest(fingerprint="g")).finished() == set()


@pytest.mark.parametrize("links", [True, False])
def test_of_two_that_begin_the_same_run_one_goes_on_with_the_others(tmp_path, monkeypatch, links):
    if not links:  # as some file systems
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(95, "Not supported")))
    check = store_module.require_free

    def late(folder, identity, **options):
        """Looks before the other process begins and goes on after it."""
        monkeypatch.setattr(store_module, "require_free", check)
        found = check(folder, identity, **options)
        others.append(RunStore(folder, manifest()))
        others[0].write(make_unit("cola"), {})
        return found

    others: list[RunStore] = []
    monkeypatch.setattr(store_module, "require_free", late)
    store = RunStore(tmp_path / "run", manifest())
    assert store.manifest["run_id"] == others[0].manifest["run_id"]
    store.write(make_unit("rte"), {})
    store.update(tokens_per_batch=8)
    others[0].update(asked=["cola"])
    assert {key.task for key in others[0].finished()} == {"cola", "rte"}
    assert read_run(tmp_path / "run").manifest["tokens_per_batch"] == 8
    monkeypatch.setattr(store_module, "require_free", late)
    others.clear()
    with pytest.raises(RecordError, match="different run"):
        RunStore(tmp_path / "another", manifest(fingerprint="g"))


def test_a_unit_of_another_run_is_named_and_left_out(tmp_path):
    RunStore(tmp_path / "a", manifest()).write(make_unit("cola"), {})
    store = RunStore(tmp_path / "b", manifest())
    store.write(make_unit("rte"), {})
    (file,) = (tmp_path / "a").glob("units/*")
    shutil.copy(file, tmp_path / "b" / "units")
    for headline_only in (True, False):
        run = read_run(tmp_path / "b", headline_only=headline_only)
        assert ([unit.key.task for unit in run.units], run.damaged, run.foreign) == (["rte"], [], [file.name])
        assert f"{file.name} is of another run and left out" in run.warnings()
    for opened in (store, RunStore(tmp_path / "b", manifest())):
        assert {key.task for key in opened.finished()} == {"rte"}


@pytest.mark.parametrize("knows_its_run", [True, False])
def test_runs_of_earlier_versions_are_read_and_resumed(tmp_path, knows_its_run):
    """Their units have no run_id; the first manifests had none either."""
    store = RunStore(tmp_path, {**manifest(), "run_id": None})
    store.write(make_unit("cola"), {})
    path = tmp_path / "manifest.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "run_id": "r"} if knows_its_run else {**facts, "run_id": None}))
    store = RunStore(tmp_path, manifest())
    assert {key.task for key in store.finished()} == {"cola"}
    store.write(make_unit("rte"), {})
    assert {unit.key.task for unit in read_run(tmp_path).units} == {"cola", "rte"}
    assert {unit.run_id for unit in read_run(tmp_path).units} == {None, "r" if knows_its_run else None}


@pytest.mark.parametrize("line", ["12", "[]", "{}", '{"what": "rte", "seconds": 3}', "\udcff"])
def test_odd_lines_in_the_timings_are_passed_over(tmp_path, line):
    RunStore(tmp_path, manifest()).write(make_unit(), {"forward": 1.0})
    with open(tmp_path / "timings.jsonl", "a", errors="surrogateescape") as file:
        file.write(f"{line}\n")
    assert read_run(tmp_path).seconds() == {"forward": 1.0}


def test_a_folder_below_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"cannot be used for --out|cannot write"):
        RunStore(tmp_path / "file" / "run", manifest())
    with pytest.raises(RecordError):
        RunStore(tmp_path / ("x" * 300), manifest())


def test_a_line_cut_short_in_the_timings_is_passed_over(tmp_path):
    RunStore(tmp_path, manifest()).write(make_unit(), {"forward": 1.0})
    with open(tmp_path / "timings.jsonl", "a") as file:
        file.write('{"what": "rte", "sec')
    assert [line["what"] for line in read_timings(tmp_path)] == ["cola"]


def test_the_same_run_is_resumed_and_another_refused(tmp_path):
    RunStore(tmp_path, manifest()).write(make_unit(), {})
    assert RunStore(tmp_path, manifest()).finished()
    with pytest.raises(
        RecordError, match=r"different run \(fingerprint was f, is g\); choose another --out or --overwrite"
    ):
        RunStore(tmp_path, manifest(fingerprint="g"))
    assert RunStore(tmp_path, manifest(fingerprint="g"), overwrite=True).finished() == set()


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RecordError, match="holds other files"):
        RunStore(tmp_path, manifest())
    with pytest.raises(RecordError, match="holds other files"):
        RunStore(tmp_path, manifest(), overwrite=True)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(RecordError, match="is a file"):
        RunStore(tmp_path / "thesis.tex", manifest())


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    store = RunStore(tmp_path, manifest())

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match=r"cannot write .*: No space left on device"):
        store.write(make_unit(), {})
    assert list(tmp_path.glob("units/*")) == list(tmp_path.glob("units/.*")) == []


@pytest.mark.parametrize(
    "content", ["", "{", "[]", json.dumps({"schema_version": 99}), json.dumps({"schema_version": 1, "identity": []})]
)
def test_a_manifest_that_cannot_be_read_is_one_line(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(RecordError) as error:
        read_run(tmp_path)
    assert "\n" not in str(error.value)
    assert "--overwrite" not in str(error.value)  # a reader has no such option
    with pytest.raises(RecordError, match=r"choose another --out or --overwrite$"):
        RunStore(tmp_path, manifest())
    (tmp_path / "units").mkdir()
    (tmp_path / "scores.csv").write_text("")
    if content != "[]":  # which no run of ours has begun with
        assert RunStore(tmp_path, manifest(), overwrite=True).finished() == set()


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RecordError, match="not a run"):
        read_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"not a run: it is a file, not a folder$"):
        read_run(tmp_path / "file")
