"""Every table and figure of the paper from tiny records; each measured line stands beside the paper's of its kind."""

import io
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from benchmarks.paper import COMMANDS, main, print_tables
from benchmarks.paper_figures import FIGURES
from benchmarks.paper_records import read_records
from benchmarks.paper_tables import PAPER, TABLES
from crossbert.scaling import paper_flops
from crossbert.settings import TrainSettings
from crossbert.studies import flat
from crossbert.sweep import unflat
from crossbert.swept import mean_score
from frozenprobe.reports.boards import BOARDS, CATEGORIES
from frozenprobe.reports.paper_tables import read_table
from frozenprobe.settings import parse
from tests.reports.runs import TITLES, make_run, make_unit

SHAPE = {"vocabulary": 300, "width": 32, "layers": 4, "heads": 4, "sequence_length": 32}
STEPS = (50, 100)


def swept(folder, skill, *, axes=None, suite="GLUE", layers=("last",), steps=STEPS, **changes):
    """One run of a sweep as it is left behind, its checkpoints answering as well as they are told to."""
    changes = flat({"model": SHAPE, "data": {"folder": "data", "batch": 8}, "steps": 100}) | {
        "optimiser.warmup_steps": 5,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    settings = parse(TrainSettings, unflat(changes))
    folder.mkdir(parents=True)
    values = {"config": "tiny", "axes": axes or {}, "settings": settings.model_dump(mode="json")}
    (folder / "member.json").write_text(json.dumps(values))
    (folder / "result.json").write_text("{}")
    (folder / "train").mkdir()
    rows = [{"step": s, "validation_loss": 5 - skill - s / 100} for s in steps]
    rows = [row | {"validation_a_loss": row["validation_loss"] + 1, "validation_b_loss": 3.0} for row in rows]
    (folder / "train" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cost = 8 * paper_flops(settings.model)
    for step in steps:
        (folder / "probes").mkdir(exist_ok=True)
        level = skill * step / steps[-1]
        names = TITLES if suite == "GLUE" else ("sentiment", "acceptability")
        units = [make_unit(task, level, suite=suite, layers=layers, seed=settings.seed) for task in names]
        make_run(
            folder / "probes" / f"step-{step}", units, name=f"{folder.name}, step-{step}", training_flops=step * cost
        )
    return folder


def mteb(folder, checkpoint, skill, *, benchmark="mteb-v2", backbone="frozen", drop=0, **manifest):
    """A finished run of MTEB on a checkpoint of a sweep."""
    board = BOARDS[benchmark]
    units = []
    for category, count in zip(CATEGORIES, board.tasks_per_column, strict=True):
        for number in range(count):
            unit = make_unit(f"{category}{number}", skill, suite=board.suite, form="single", category=category)
            unit.about["backbone"] = backbone
            headline = next(row for row in unit.rows if row.get("is_headline") and row["protocol"] == "honest")
            unit.rows = [{**headline, "probe": "contrastive", "protocol": ""}]
            units.append(unit)
    make_run(folder, units[drop:], name=folder.name, training_flops=1e15)
    path = folder / "manifest.json"
    values = json.loads(path.read_text()) | manifest
    values["settings"]["encoder"]["ckpt"] = f"{checkpoint}/train" if drop else f"crossbert:{checkpoint}/train/step-100"
    path.write_text(json.dumps(values))
    return folder


def printed(entry, *folders, out=None):
    console = Console(file=io.StringIO(), width=240)
    print_tables(entry, folders, out, console)
    return console.file.getvalue()


def lines(entry, *folders):
    return [line for table in TABLES[entry](read_records(folders)) for line in table.lines]


def pairs(entry, *folders):
    """Keys that both a measured line and one of the paper's have."""
    found = lines(entry, *folders)
    return {line.key for line in found if line.source == PAPER} & {line.key for line in found if line.source != PAPER}


def test_table1_takes_the_layers_of_bert(tmp_path):
    layers = ("last", "3", "2", "1")
    folder = swept(tmp_path / "bert", 0.9, layers=layers, model__objective="bert")
    swept(tmp_path / "crossbert", 0.9, layers=layers)
    honest = next(line for line in lines("table1", tmp_path) if line.source == "measured, honest")
    assert [line.source for line in lines("table1", tmp_path)].count("measured, honest") == 1
    # Each layer's scores are 0.01 below the one before it, all of them 0.01 x (100 x place) points of a percent.
    assert honest.scores["last-1"] == pytest.approx(honest.scores["last"] - 1)
    assert honest.scores["last-3"] == pytest.approx(honest.scores["last"] - 3)
    assert honest.scores["layer20"] == honest.scores["last-1"]  # the third of four is as deep as the 20th of 28
    assert honest.scores["gain"] == pytest.approx((-1 - 2 - 3 - 1) / 4)
    text = printed("table1", tmp_path)
    assert "BERT 239M" in text
    assert "+1.8" in text
    assert str(folder.name)


def test_table2_and_table6_by_masking_ratio(tmp_path):
    for ratio in (0.2, 0.5, 0.3):
        swept(tmp_path / f"c{ratio}", ratio, model__mask_ratio=ratio, model__complementary=False)
        swept(tmp_path / f"b{ratio}", ratio, model__objective="bert", model__mask_ratio=ratio)
    assert pairs("table2", tmp_path) == {"20%", "50%"}
    assert pairs("table6", tmp_path) == {"20%", "30%"}
    text = printed("table2", tmp_path)
    assert "73.8" in text
    measured = next(
        line for line in lines("table2", tmp_path) if (line.key, line.source) == ("20%", "measured, honest")
    )
    run = next(run for run in read_records([tmp_path]).swept if run.name == "c0.2").probes[-1]
    assert measured.scores["avg"] == pytest.approx(100 * mean_score(run))
    paper = next(line for line in lines("table6", tmp_path) if (line.key, line.source) == ("65%", PAPER))
    assert (paper.scores["cola"], paper.scores["avg"]) == (22.6, 59.9)


def test_table4_matches_by_share_of_width_and_depth(tmp_path):
    for width, blocks in ((8, 2), (16, 2), (32, 1)):
        shape = {
            "model__predictor_width": width,
            "model__predictor_layers": blocks,
            "model__predictor_heads": width // 8,
        }
        swept(tmp_path / f"{width}x{blocks}", 0.5, **shape)
    assert pairs("table4", tmp_path) == {(1, True), (2, True), (4, False)}
    assert re.search(r"8 x 2 .*measured", printed("table4", tmp_path))


def test_table5_with_and_without_complementary_masking(tmp_path):
    swept(tmp_path / "no", 0.5, model__complementary=False)
    swept(tmp_path / "yes", 0.6)
    assert pairs("table5", tmp_path) == {"no", "yes"}


def test_table9_by_the_axis_of_its_study(tmp_path):
    swept(tmp_path / "a", 0.5, model__objective="bert", axes={"other_hyperparameters": "no"})
    swept(tmp_path / "b", 0.5, model__objective="bert", axes={"other_hyperparameters": "yes"}, seed=1)
    swept(tmp_path / "c", 0.7)
    assert pairs("table9", tmp_path) == {("BERT", "no"), ("BERT", "yes"), ("CrossBERT", "no")}


def test_seeds_are_one_line_with_their_spread(tmp_path):
    for seed in range(3):
        swept(tmp_path / f"s{seed}", 0.5, seed=seed)
    (line,) = [line for line in lines("table5", tmp_path) if line.source == "measured, honest"]
    scores = [mean_score(run.probes[-1]) for run in read_records([tmp_path]).swept]
    assert line.scores["avg"] == pytest.approx(100 * np.mean(scores))
    assert line.spread == pytest.approx(100 * np.std(scores, ddof=1))
    assert f"± {line.spread:.1f}" in printed("table5", tmp_path)


def test_table3_of_glue_and_mteb(tmp_path, capsys):
    a = swept(tmp_path / "a", 0.8)
    swept(tmp_path / "b", 0.5, model__objective="bert")
    mteb(tmp_path / "m", a, 0.6, benchmark="mteb-v1")
    text = printed("table3", tmp_path, out=tmp_path / "table3.csv")
    assert "GLUE, full finetuning: no records" in text
    assert "unfrozen backbone: no records" in text
    tables = TABLES["table3"](read_records([tmp_path]))
    linear = [line for line in tables[0].lines if line.key == "CrossBERT"]
    assert [line.source for line in linear] == ["measured, honest", "measured, paper's choice", PAPER]
    assert linear[-1].scores["avg"] == 73.8
    (frozen,) = [line for line in tables[2].lines if line.source == "measured"]
    assert frozen.key == "CrossBERT"  # known from the sweep that its checkpoint is of
    assert set(frozen.scores) == {*BOARDS["mteb-v1"].columns, "avg", "overall"}
    written = pd.read_csv(tmp_path / "table3.csv")
    assert set(written["source"]) == {"measured", "measured, honest", "measured, paper's choice", PAPER}


def test_the_built_in_suite_is_averaged_apart(tmp_path):
    swept(tmp_path / "a", 0.8, suite="built-in")
    for entry in ("table3", "table5"):
        text = printed(entry, tmp_path)
        assert "measured averages are over acceptability, sentiment; the paper's over the eight tasks of GLUE" in text
        assert any(
            line.source != PAPER and set(line.scores) == {"sentiment", "acceptability", "avg"}
            for line in lines(entry, tmp_path)
        )


def test_table7_and_table8_of_mteb(tmp_path):
    a = swept(tmp_path / "a", 0.8)
    mteb(tmp_path / "cold", a, 0.6, identity={"pooler": {"warm_start": False}})
    mteb(tmp_path / "warm", a, 0.7, identity={"pooler": {"warm_start": True}})
    mteb(tmp_path / "end to end", a, 0.8, backbone="unfrozen")
    mteb(tmp_path / "part", a, 0.9, drop=1, identity={"pooler": {"warm_start": True}})
    assert pairs("table7", tmp_path) == {"no", "yes"}
    text = printed("table7", tmp_path)
    assert "unfinished are class 7 of 8" in text
    partial = [line for line in lines("table7", tmp_path) if line.source != PAPER and "class" not in line.scores]
    assert len(partial) == 1
    assert "avg" not in partial[0].scores  # never over some of the categories
    frozen, unfrozen = TABLES["table8"](read_records([tmp_path]))
    assert sum(line.source != PAPER for line in frozen.lines) == 3
    assert sum(line.source != PAPER for line in unfrozen.lines) == 1
    nameless = mteb(tmp_path / "nameless", a, 0.5)
    assert f"{nameless} does not say" in printed("table7", tmp_path)


@pytest.fixture(scope="module")
def scaling(tmp_path_factory):
    """Two sizes of BERT and CrossBERT, and MTEB of each."""
    folder = tmp_path_factory.mktemp("scaling")
    for width in (32, 128):
        for objective in ("bert", "crossbert"):
            shape = {"model__width": width, "model__objective": objective, "optimiser__learning_rate": 0.1 / width}
            run = swept(folder / "sweep" / f"{objective}{width}", 0.3 + width / 200, **shape)
            for backbone in ("frozen", "unfrozen"):
                mteb(folder / "mteb" / f"{run.name}-{backbone}", run, 0.3 + width / 200, backbone=backbone)
    return folder


@pytest.mark.parametrize("entry", FIGURES)
def test_every_figure_is_drawn(entry, scaling, tmp_path, capsys):
    path = tmp_path / f"{entry}.png"
    assert main([entry, str(scaling), "--out", str(path)]) == 0
    assert path.stat().st_size > 10_000
    assert str(path) in capsys.readouterr().out


def curves(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def test_figure1_and_figure4_show_scores_against_compute_and_the_papers_points(scaling):
    records = read_records([scaling])
    top, bottom = FIGURES["figure1"](records, "honest").axes
    bert = sorted((run for run in records.swept if run.model.objective == "bert"), key=lambda run: run.flops())
    curve = curves(top)["BERT, linear"]
    assert curve.get_xdata() == pytest.approx([run.flops() for run in bert])
    assert curve.get_ydata() == pytest.approx([100 * mean_score(run.probes[-1]) for run in bert])
    assert curves(top)["paper's CrossBERT (4.1e19 FLOPs), linear"].get_ydata()[0] == 73.8
    shown = {"CrossBERT, frozen", "CrossBERT, unfrozen", "paper's Electra (7.5e19 FLOPs), unfrozen"}
    assert shown <= set(curves(bottom))
    panels = [axes for axes in FIGURES["figure4"](records, "paper").axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [*TITLES.values(), "mean"]
    (row,) = [row for row in read_table("table3_glue_linear_probe.csv") if row["model"] == "BERT"]
    assert curves(panels[0])["paper's BERT (6.8e19 FLOPs), linear"].get_ydata()[0] == float(row["mnli"])
    categories = [axes for axes in FIGURES["figure3"](records, "honest").axes if axes.get_visible()]
    assert len(categories) == 8


def test_figure5_and_figure6_show_training(scaling):
    records = read_records([scaling])
    left, right = FIGURES["figure5"](records, "honest").axes
    assert (left.get_title(), right.get_title()) == ("BERT", "CrossBERT")
    assert {"a", "b"} <= set(curves(left))
    drawn = [line.get_ydata() for line in left.lines if len(line.get_ydata()) == 2]
    run = next(run for run in records.swept if run.name == "bert128")
    assert any(list(y) == [row["validation_a_loss"] for row in run.validations] for y in drawn)
    (axes,) = FIGURES["figure6"](records, "honest").axes
    curve = curves(axes)["CrossBERT, crossbert32"]
    run = next(run for run in records.swept if run.name == "crossbert32")
    assert list(curve.get_xdata()) == list(STEPS)
    assert curve.get_ydata() == pytest.approx([100 * mean_score(probe) for probe in run.probes])


def test_figure7_draws_without_a_law_where_all_runs_cost_the_same(tmp_path):
    for rate in (0.01, 0.02):
        swept(tmp_path / f"{rate}", rate, optimiser__learning_rate=rate)
    figure = FIGURES["figure7"](read_records([tmp_path]), "honest")
    assert not figure.axes[0].lines


@pytest.mark.parametrize("entry", [*TABLES, *FIGURES])
def test_what_is_missing_is_told_with_the_command_that_makes_it(entry, tmp_path, capsys):
    assert main([entry]) == 2
    assert COMMANDS[entry] in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main([entry, str(tmp_path / "empty"), "--out", str(tmp_path / "x.png")]) == 2
    told = capsys.readouterr().err
    assert COMMANDS[entry] in told
    assert told.count("\n") == 1
    assert not (tmp_path / "x.png").exists()


def test_wrong_folders_are_one_line(tmp_path, capsys):
    assert main(["table2", str(tmp_path / "absent")]) == 2
    assert "absent is no folder" in capsys.readouterr().err
    (tmp_path / "member.json").write_text("{")
    assert main(["table2", str(tmp_path)]) == 2
    assert "member.json is damaged" in capsys.readouterr().err


def cut_off(folder, *, units=3):
    """Leaves so many tasks of a run's last probing, as a kill does."""
    for file in sorted((folder / "probes" / "step-100" / "units").glob("*.parquet"))[units:]:
        file.unlink()
    return folder


@pytest.mark.parametrize("entry", ["table1", "table3", "table5"])
def test_a_row_that_lacks_tasks_has_no_average(entry, tmp_path):
    more = {"model__objective": "bert", "layers": ("last", "3", "2", "1")} if entry == "table1" else {}
    swept(tmp_path / "whole", 0.8, **more)
    cut_off(swept(tmp_path / "part", 0.7, steps=(100,), model__layers=3, **more))
    text = printed(entry, tmp_path)
    table = TABLES[entry](read_records([tmp_path]))[0]
    part, whole = ([line for line in table.lines if f"{n} x 32" in " ".join(line.about)] for n in (3, 4))
    assert len(part) == len(whole) == 2
    assert not any({"avg", "last", "gain"} & line.scores.keys() for line in part)
    assert all({"avg", "last"} & line.scores.keys() for line in whole)
    (note,) = re.findall(r"^.* has no average.*$", text, re.MULTILINE)
    assert "3 x 32" in note
    assert note.count(",") >= 5  # five tasks of eight
    assert "averages are over" not in text  # those that are left are over the eight of GLUE


def test_a_seed_that_lacks_tasks_takes_the_average_of_its_line(tmp_path):
    swept(tmp_path / "s0", 0.8)
    cut_off(swept(tmp_path / "s1", 0.8, seed=1))
    swept(tmp_path / "other", 0.8, model__layers=3)
    found = [line for line in lines("table5", tmp_path) if line.source == "measured, honest"]
    assert [("avg" in line.scores, line.spread) for line in found] == [(True, None), (False, None)]


def test_figures_leave_out_averages_over_other_tasks_and_say_so(tmp_path):
    swept(tmp_path / "a", 0.8)
    part = cut_off(swept(tmp_path / "b", 0.5, model__layers=3))
    records = read_records([tmp_path])
    figure = FIGURES["figure1"](records, "honest")
    whole = next(run for run in records.swept if run.name == "a")
    assert curves(figure.axes[0])["CrossBERT, linear"].get_xdata() == pytest.approx([whole.flops()])
    assert "CrossBERT 3 x 32 + 1 x 32 is left out of the linear mean: it lacks " in figure.get_supxlabel()
    assert "left out of the kNN mean" in FIGURES["figure4"](records, "honest").get_supxlabel()
    figure = FIGURES["figure6"](records, "honest")
    assert list(curves(figure.axes[0])["CrossBERT, b"].get_xdata()) == [50]
    assert f"{part.name}, step 100 is left out: it lacks " in figure.get_supxlabel()


def test_copies_are_no_seeds(tmp_path, capsys):
    sweep = tmp_path / "sweep"
    for seed in (0, 1):
        swept(sweep / f"s{seed}", 0.5, seed=seed)
    (expected,) = [line for line in lines("table5", sweep) if line.source == "measured, honest"]
    (tmp_path / "other").mkdir()
    again = tmp_path / "other" / ".." / "sweep"
    assert printed("table5", sweep, again) == printed("table5", sweep)
    copy = shutil.copytree(sweep / "s0", tmp_path / "other" / "s0")
    (line,) = [line for line in lines("table5", tmp_path) if line.source == "measured, honest"]
    assert line == expected
    assert f"{sweep / 's0'} has the seed and the settings of {copy}: counted once" in printed("table5", tmp_path)
    assert len(read_records([tmp_path]).swept) == 2
    assert main(["figure7", str(tmp_path), "--out", str(tmp_path / "x.png")]) == 0
    assert "counted once" in capsys.readouterr().out


def test_a_run_that_was_probed_twice_is_one_seed(tmp_path):
    run = swept(tmp_path / "s0", 0.5)
    again = shutil.copytree(run / "probes" / "step-100", tmp_path / "scores")
    manifest = json.loads((again / "manifest.json").read_text())
    manifest["settings"]["encoder"]["ckpt"] = f"crossbert:{run}/train/step-100"
    (again / "manifest.json").write_text(json.dumps(manifest))
    (line,) = [line for line in lines("table5", tmp_path) if line.source == "measured, honest"]
    assert line.spread is None
    assert f"{again} and {run}/probes/step-100 are of one training: counted once" in printed("table5", tmp_path)
