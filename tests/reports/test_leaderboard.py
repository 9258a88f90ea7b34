"""The leaderboard: averages from the row, flags where the paper's do not follow, nothing averaged over a gap."""

import multiprocessing

import numpy as np
import pandas as pd
import pytest

from frozenprobe.errors import ComparisonError, RecordError, SettingsError
from frozenprobe.records.reading import read_run
from frozenprobe.reports.boards import BOARDS, CATEGORIES
from frozenprobe.reports.leaderboard import make_leaderboard, read_leaderboard, write_leaderboard
from frozenprobe.reports.paper_tables import TABLES, read_table
from tests.reports.runs import PROBES, TITLES, finetuned_unit, glue_run, make_run, make_unit

GLUE_COLUMNS = [
    "model", "source", "method", "backbone", "protocol", "pair_form", "max_train", "params", "flops", "tokens_per_s",
    "encoding_tokens_per_s", "device", "mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb", "avg", "missing",
    "printed_avg", "flag", "run",
]  # fmt: skip


def mteb_unit(board, category, number, value, **about):
    unit = make_unit(f"{category}{number}", 0.5, suite=board.suite, form="single", category=category, **about)
    unit.rows = [
        row for row in unit.rows if row["kind"] == "score" and row["protocol"] == "honest" and row["is_headline"]
    ]
    unit.rows = [{**row, "probe": "contrastive", "protocol": "", "value": value} for row in unit.rows[:1]]
    return unit


def mteb_units(board, **about):
    """Every task of a board; the score tells category and number."""
    return [
        mteb_unit(board, category, number, 0.1 * (place + 1) + 0.001 * number, **about)
        for place, (category, tasks) in enumerate(zip(CATEGORIES, board.tasks_per_column, strict=True))
        for number in range(tasks)
    ]


def test_the_flagged_averages_are_those_known_and_no_others():
    flagged = {
        (board, row["model"].split(" (")[0], row["backbone"], average.split()[0])
        for board in ("glue", "mteb-v1", "mteb-v2")
        for row in make_leaderboard([], suite=board, with_published=True).frame.to_dict("records")
        for average in filter(None, row["flag"].split("; "))
    }
    assert flagged == {
        ("mteb-v1", "ModernBERT", "unfrozen", "avg"),
        ("mteb-v1", "NeoBERT", "unfrozen", "avg"),
        ("mteb-v1", "DeBERTaV3", "unfrozen", "avg"),
        ("mteb-v1", "Electra", "frozen", "avg"),
        ("mteb-v1", "Electra", "frozen", "overall"),
        ("mteb-v2", "Electra", "unfrozen", "overall"),
    }


@pytest.mark.parametrize(
    ("table", "board"),
    [
        ("table4_predictor_shape", "glue"),
        ("table5_cms_ablation", "glue"),
        ("table6_masking_bert", "glue"),
        ("table9_scale_1b", "glue"),
        ("table7_warm_start_mteb_eng_v2_frozen", "mteb-v2"),
    ],
)
def test_the_ablation_tables_follow_from_their_rows(table, board):
    for line in read_table(f"{table}.csv"):
        scores = {column: float(line[column]) for column in BOARDS[board].columns}
        for name, value in BOARDS[board].average(scores).items():
            assert value == pytest.approx(float(line[name]), abs=0.1001)


@pytest.mark.parametrize("board", ["glue", "mteb-v1", "mteb-v2"])
def test_published_scores_are_the_tables_cells(board):
    frame = make_leaderboard([], suite=board, with_published=True).frame
    tables = {name for name, (where, *_) in TABLES.items() if where == board}
    assert len(frame) == sum(len(read_table(name)) for name in tables)
    for name in tables:
        for line in read_table(name):
            row = frame[(frame["run"] == name.removesuffix(".csv")) & (frame["model"] == line["model"])]
            row = row[row["backbone"] == line["backbone"]] if "backbone" in line else row
            (row,) = row.to_dict("records")
            assert [row[column] for column in BOARDS[board].columns] == [float(line[c]) for c in BOARDS[board].columns]
            assert row["params"] == float(line["params"].removesuffix("M")) * 1e6
            assert row["flops"] == line["flops"]
            assert row["source"] == "published"


def test_recomputed_averages_are_the_plain_means():
    row = make_leaderboard([], suite="mteb-v1", with_published=True).frame.set_index(["model", "backbone"])
    bert = row.loc[("BERT", "frozen")]
    scores = np.array([60.1, 29.7, 64.6, 43.7, 19.2, 62.7, 30.5])
    assert bert["avg"] == round(scores.mean(), 2)
    assert bert["overall"] == round((scores * [12, 11, 3, 4, 15, 10, 1]).sum() / 56, 2)


def test_a_run_gives_a_row_per_probe_and_protocol(tmp_path):
    board = make_leaderboard([glue_run(tmp_path / "mine", 0.7)])
    frame = board.frame
    assert list(frame.columns) == GLUE_COLUMNS
    assert frame[["method", "protocol"]].to_numpy().tolist() == [
        ["linear", "honest"], ["linear", "paper"], ["kNN", "honest"], ["kNN", "paper"]
    ]  # fmt: skip
    headline = {
        row["task"]: row["value"]
        for row in read_run(tmp_path / "mine").headline()
        if row["probe"] == "ridge" and row["protocol"] == "honest"
    }
    assert frame.loc[0, "cola"] == round(100 * headline["cola"], 2)
    assert frame.loc[0, "avg"] == round(100 * np.mean(list(headline.values())), 2)
    assert frame.loc[0, "missing"] == ""
    assert frame.loc[0, "params"] == 22_000_000
    assert frame.loc[0, "encoding_tokens_per_s"] == 2000  # 3,000 tokens in 1.5 s for each task
    assert frame.loc[0, "device"] == "cpu fp32"
    assert frame.loc[0, ["printed_avg", "tokens_per_s"]].isna().all()


def test_finetuned_runs_stand_beside_the_papers_finetuned_rows(tmp_path):
    folder = make_run(tmp_path / "mine", [finetuned_unit(task, 0.9) for task in TITLES])
    frame = make_leaderboard([folder], with_published=True).frame
    ours = frame[frame["source"] == "measured"]
    assert ours[["method", "backbone", "pair_form"]].to_numpy().tolist() == [["finetuned", "unfrozen", "joint"]] * 2
    assert set(ours["protocol"]) == {"honest", "paper"}
    finetuned = frame[frame["method"] == "finetuned"]
    assert finetuned["avg"].tolist() == sorted(finetuned["avg"], reverse=True)
    assert len(finetuned) == 2 + len(read_table("table3_glue_finetuned.csv"))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"max_train": 50}, "train rows 100 (a, b, c and 1 more), 50 (other)"),
        ({"seed": 3}, "seed 0 (a, b, c and 1 more), 3 (other)"),
        ({"knn": {"ks": [1], "distances": ["l2"]}}, "knn ks 1,3 (a, b, c and 1 more), 1 (other)"),
        ({"ridge": {**PROBES["ridge"], "solver": "qr"}}, None),
    ],
)
def test_what_does_not_compare_is_in_one_line_below(tmp_path, changed, told):
    runs = [glue_run(tmp_path / name, 0.5) for name in "abcd"]
    runs.append(glue_run(tmp_path / "other", 0.5, probes=PROBES | changed))
    board = make_leaderboard(runs)
    assert board.notes == ([f"not measured alike: {told}"] if told else [])
    assert set(board.frame.set_index("model").loc["other", "max_train"]) == {str(changed.get("max_train", 100))}


def test_other_train_rows_than_the_papers_and_other_data_are_marked(tmp_path):
    probes = {**PROBES, "max_train": 10_000}
    like = make_run(tmp_path / "like", [make_unit("rte", 0.5), finetuned_unit("rte", 0.9)], probes=probes)
    board = make_leaderboard([like], with_published=True)
    assert board.notes == []
    finetuned = board.frame[board.frame["method"] == "finetuned"].set_index("source")["max_train"]
    assert finetuned["measured"].tolist() == ["all", "all"]
    assert set(finetuned["published"]) == {""}
    small = glue_run(tmp_path / "small", 0.5, ["rte"])
    note = "not measured alike: train rows 10000 (published), 100 (small)"
    assert make_leaderboard([small], with_published=True).notes == [note]
    other = make_run(tmp_path / "other", [make_unit("rte", 0.5, digests={"validation": "else"})], probes=probes)
    assert make_leaderboard([like, other]).notes == ["not measured alike: the data of RTE"]


def test_an_incomplete_row_has_no_average_and_says_what_it_lacks(tmp_path):
    glue_run(tmp_path / "part", 0.9, ["cola", "rte", "sst2"])
    glue_run(tmp_path / "whole", 0.2)
    frame = make_leaderboard([tmp_path / "part", tmp_path / "whole"]).frame
    linear = frame[(frame["method"] == "linear") & (frame["protocol"] == "honest")].set_index("model")
    assert np.isnan(linear.loc["part", "avg"])
    assert linear.loc["part", "missing"] == "mnli, qnli, qqp, mrpc, stsb"
    assert linear.index.tolist() == ["whole", "part"]  # incomplete ones stand behind
    assert not np.isnan(linear.loc["whole", "avg"])


def test_a_subset_never_stands_under_the_tasks_name(tmp_path):
    units = [make_unit(task, 0.6, subset="train 9 rows" if task == "qnli" else None) for task in TITLES]
    frame = make_leaderboard([make_run(tmp_path / "mine", units)]).frame
    assert "qnli-subset" in frame
    assert frame["qnli"].isna().all()
    assert frame["avg"].isna().all()
    assert set(frame["missing"]) == {"qnli"}


def test_pair_forms_are_rows_of_their_own_and_share_the_single_tasks(tmp_path):
    units = [make_unit(task, 0.6, form=form) for task in ("mrpc", "rte") for form in ("joint", "siamese")]
    frame = make_leaderboard([make_run(tmp_path / "mine", [*units, make_unit("cola", 0.6)])]).frame
    assert set(frame["pair_form"]) == {"joint", "siamese"}
    assert frame[["mrpc", "rte", "cola"]].notna().all().all()


@pytest.mark.parametrize("name", ["mteb-v1", "mteb-v2"])
def test_mteb_rows_are_category_means_and_both_averages(tmp_path, name):
    board = BOARDS[name]
    units = mteb_units(board, backbone="unfrozen")
    frame = make_leaderboard([make_run(tmp_path / "mine", units)], with_published=True).frame
    (row,) = frame[frame["source"] == "measured"].to_dict("records")
    values = {
        category: [100 * unit.rows[0]["value"] for unit in units if unit.about["category"] == category]
        for category in CATEGORIES
    }
    assert row["retriev"] == pytest.approx(np.mean(values["Retrieval"]), abs=0.006)
    assert row["avg"] == pytest.approx(np.mean([np.mean(tasks) for tasks in values.values()]), abs=0.006)
    assert row["overall"] == pytest.approx(np.mean(np.concatenate(list(values.values()))), abs=0.006)
    assert (row["method"], row["backbone"]) == ("contrastive", "unfrozen")


def test_an_mteb_category_that_lacks_a_task_has_no_mean(tmp_path):
    units = mteb_units(BOARDS["mteb-v2"])[1:]
    (row,) = make_leaderboard([make_run(tmp_path / "mine", units)]).frame.to_dict("records")
    assert np.isnan([row["class"], row["avg"], row["overall"]]).all()
    assert row["missing"] == "class 7 of 8"
    assert not np.isnan(row["clust"])


@pytest.mark.parametrize("with_published", [False, True])
def test_the_csv_read_back_is_the_same_table(tmp_path, with_published):
    runs = [glue_run(tmp_path / "a", 0.5), glue_run(tmp_path / "b", 0.7, ["cola", "rte"], name="org/b, with a comma")]
    board = make_leaderboard(runs, with_published=with_published)
    write_leaderboard(board, tmp_path / "wide.csv", tmp_path / "long.csv")
    pd.testing.assert_frame_equal(read_leaderboard(tmp_path / "wide.csv"), board.frame)
    pd.testing.assert_frame_equal(read_leaderboard(tmp_path / "long.csv"), board.long)
    first = (tmp_path / "wide.csv").read_text()
    write_leaderboard(make_leaderboard(runs, with_published=with_published), tmp_path / "wide.csv")
    assert (tmp_path / "wide.csv").read_text() == first


def test_the_long_form_has_a_row_per_score_with_its_interval(tmp_path):
    board = make_leaderboard([glue_run(tmp_path / "mine", 0.5)], with_published=True)
    ours = board.long[board.long["source"] == "measured"]
    assert len(ours) == 8 * 4
    row = ours[(ours["task"] == "rte") & (ours["method"] == "linear") & (ours["protocol"] == "honest")].iloc[0]
    assert row["high"] - row["low"] == pytest.approx(6.0)
    assert (row["lambda"], row["n"], row["n_evaluated"], row["metric"]) == (100.0, 100, 200, "accuracy")
    assert len(board.long) - len(ours) == 8 * (6 + 7)


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", None])
def test_a_file_that_is_no_leaderboard_is_one_line(tmp_path, content):
    path = tmp_path / "x.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RecordError, match="is no leaderboard"):
        read_leaderboard(path)


def test_costs_are_filled_in_and_unknown_models_named(tmp_path):
    (tmp_path / "costs.toml").write_text('[mine]\nflops = 4.9e21\ntokens_per_s = 1000\n["org/absent"]\nparams = 1e8\n')
    board = make_leaderboard([glue_run(tmp_path / "mine", 0.5)], costs=tmp_path / "costs.toml")
    assert board.frame.loc[0, ["flops", "tokens_per_s", "params"]].tolist() == ["4.9e21", 1000, 22_000_000]
    assert board.notes == [f"{tmp_path / 'costs.toml'}: no row is of org/absent"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("mine", "costs.toml"),
        ("mine = 3", "must be a table"),
        ("[mine]\nflop = 1", "unknown setting flop"),
        ("[mine]\nflops = -1", "greater than 0"),
    ],
)
def test_costs_that_are_none_are_one_line(tmp_path, content, message):
    (tmp_path / "costs.toml").write_text(content)
    with pytest.raises(SettingsError, match=message):
        make_leaderboard([glue_run(tmp_path / "mine", 0.5)], costs=tmp_path / "costs.toml")


def test_counted_flops_come_from_the_record(tmp_path):
    frame = make_leaderboard([glue_run(tmp_path / "mine", 0.5, training_flops=4.13e19)]).frame
    assert set(frame["flops"]) == {"4.1e19"}


def test_suites_are_never_mixed(tmp_path):
    runs = [glue_run(tmp_path / "a", 0.5), make_run(tmp_path / "b", [make_unit("x", 0.5, suite="mine")])]
    with pytest.raises(ComparisonError, match="choose one with --suite: glue, mine"):
        make_leaderboard(runs)
    assert make_leaderboard(runs, suite="mine").columns == ("x",)
    only = make_leaderboard(runs, suite="glue")
    assert set(only.frame["model"]) == {"a"}
    assert only.notes == [f"{tmp_path / 'b'}: no finished task of GLUE; left out"]
    with pytest.raises(
        ComparisonError, match="unknown suite 'gleu'; allowed are glue, builtin, mteb-v1, mteb-v2, custom, mine"
    ):
        make_leaderboard(runs, suite="gleu")


def test_a_task_that_is_called_like_a_column_is_refused(tmp_path):
    folder = make_run(tmp_path / "a", [make_unit("avg", 0.5, suite="mine")])
    with pytest.raises(ComparisonError, match="a task is called avg"):
        make_leaderboard([folder])


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [glue_run(tmp_path / f"step-{step}", 0.5, name="mine") for step in (1, 2)]
    runs.append(glue_run(tmp_path / "other", 0.5, name="mine"))
    assert set(make_leaderboard(runs).frame["model"]) == {"mine, step 1", "mine, step 2", "mine"}


def test_a_run_that_is_named_twice_counts_once(tmp_path):
    folder = glue_run(tmp_path / "mine", 0.5)
    assert len(make_leaderboard([folder, folder / ".." / "mine"]).frame) == 4


def test_a_damaged_record_is_named_and_left_out(tmp_path):
    folder = glue_run(tmp_path / "mine", 0.5)
    file = next(iter(folder.glob("units/*.parquet")))
    file.write_bytes(file.read_bytes()[:-3])
    board = make_leaderboard([folder])
    assert board.notes == [f"{folder}: {file.name} is damaged and left out"]
    assert board.frame["avg"].isna().all()


def write_some(folder, tasks):
    make_run(folder, [make_unit(task, 0.5) for task in tasks])


def test_two_writers_and_a_reader_lose_nothing(tmp_path):
    folder = tmp_path / "mine"
    make_run(folder, [])
    tasks = list(TITLES)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_some, args=(folder, part)) for part in (tasks[:5], tasks[3:][::-1])]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        try:
            board = make_leaderboard([folder])
        except RecordError:  # nothing finished yet
            continue
        assert not board.notes
        now = int(board.frame.loc[0, list(board.columns)].notna().sum())
        assert now >= seen
        seen = now
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert make_leaderboard([folder]).frame["missing"].tolist() == [""] * 4
