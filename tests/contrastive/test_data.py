"""Reading training rows: every layout, every fault counted or refused in one line, memory-mapped afterwards."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frozenprobe.contrastive.data import TrainingRows, prepare, text_key
from frozenprobe.contrastive.settings import PairSettings
from frozenprobe.errors import DataError

GOOD = {"query": "q", "positive": "p", "negative": "n"}


def read(path, folder, **settings):
    return prepare(PairSettings(train_data=str(path), **settings), folder)


@pytest.mark.parametrize(
    "row",
    [
        {"query": "q", "positive": "p", "negatives": ["n1", "n2"]},
        {"query": "q", "positive": "p", "negative_2": "n2", "negative_1": "n1"},
        {"query": "q", "positive": "p", "negative": ["n1", "n2"]},
        {"anchor": "q", "positive": "p", "negative": "n1", "negative_1": "n2"},
    ],
)
def test_every_layout_is_read(write_rows, tmp_path, row):
    (found,) = read(write_rows([row]), tmp_path / "out").read(np.array([0]))
    assert (found.query, found.positive, found.negatives) == ("q", "p", ["n1", "n2"])
    assert found.negative_keys == [text_key("n1"), text_key("n2")]


def test_negatives_beyond_the_limit_are_left_out_in_the_order_of_their_numbers(write_rows, tmp_path):
    row = {"query": "q", "positive": "p", **{f"negative_{i}": f"n{i}" for i in (10, 9, 1, 2)}}
    (found,) = read(write_rows([row]), tmp_path / "out", hard_negatives=3).read(np.array([0]))
    assert found.negatives == ["n1", "n2", "n9"]


def test_json_and_parquet_and_folders_give_the_same_rows(write_rows, tmp_path):
    rows = [{"query": f"q{i}", "positive": f"p{i}", "negatives": [f"n{i}"] * (i % 2)} for i in range(5)]
    write_rows(rows)
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=1))
    folder = tmp_path / "folder"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows[:2]), folder / "train-0.parquet")
    pq.write_table(pa.Table.from_pylist(rows[2:]), folder / "train-1.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:1]), folder / "test.parquet")
    everything = np.arange(5)
    found = [
        read(path, tmp_path / path.name.replace(".", "-")).read(everything)
        for path in (tmp_path / "rows.jsonl", tmp_path / "rows.json", folder)
    ]
    assert found[0] == found[1] == found[2]


def test_faults_are_counted_and_reported(write_rows, tmp_path):
    rows = [
        GOOD,
        {"query": None, "positive": "p"},
        {"query": "  ", "positive": "p"},
        {"query": "q", "positive": ""},
        {"query": "q", "positive": 3},
        {"query": "q", "positive": "\ud800"},
        {"query": "q", "positive": "p", "negatives": ["p", "n", None, "", "n"]},
        {"query": "q", "positive": "p", "negatives": ["p"]},
        {"query": "q", "positive": "p", "negatives": []},
    ]
    report = read(write_rows(rows), tmp_path / "out").report
    assert report.rows == 4
    assert report.without_query == 2
    assert report.without_positive == 3
    assert report.positive_among_negatives == 2
    assert report.bad_negatives == 2
    assert report.without_negatives == 2
    assert "3 rows without a positive were left out" in report.lines()
    assert "2 rows had their positive among their negatives, where it was taken out" in report.lines()
    kept = TrainingRows(next((tmp_path / "out").glob("rows-*.arrow"))).read(np.arange(4))
    assert [row.negatives for row in kept] == [["n"], ["n"], [], []]


def test_rows_are_read_in_any_order_across_batches(write_rows, tmp_path):
    rows = [{"query": f"q{i}", "positive": f"p{i}", "negatives": [f"n{i}"] * (i % 3 > 0)} for i in range(3000)]
    found = read(write_rows(rows), tmp_path / "out")
    wanted = np.array([2999, 0, 1023, 1024, 0, 2047])
    assert [row.query for row in found.read(wanted)] == [f"q{i}" for i in wanted]
    pairs = {
        (int(row), int(key)) for rows_, keys in found.negative_keys() for row, key in zip(rows_, keys, strict=True)
    }
    assert pairs == {(i, text_key(f"n{i}")) for i in range(3000) if i % 3}
    assert np.array_equal(found.query_keys[:2], [text_key("q0"), text_key("q1")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no row has both"),
        ('{"query": "q"}\n', "no column query or positive; it has query"),
        ('{"query": "q", "positive": "p"\n', "line 1 is not valid JSON"),
        ('{"query": "q", "positive": "p"}\n[1]\n', "line 2: a row must be an object"),
        ('{"query": "q", "positive": ""}\n', "no row has both"),
        (b"\xff\xfe\x00", "not valid UTF-8"),
    ],
)
def test_a_file_at_fault_is_one_line_and_leaves_nothing(tmp_path, content, message):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        read(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_parquet_file_is_one_line(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"rows\.parquet: cannot be read"):
        read(path, tmp_path / "out")


@pytest.mark.parametrize("name", ["nowhere.jsonl", "./nowhere", "a/b/c"])
def test_a_missing_path_never_reaches_the_hub(tmp_path, name):
    with pytest.raises(DataError, match="there is no such file or folder"):
        read(name, tmp_path / "out")


def test_a_folder_without_the_split_is_refused(write_rows, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "test.jsonl").write_text(json.dumps(GOOD))
    with pytest.raises(DataError, match="begins with train"):
        read(folder, tmp_path / "out")
    assert read(folder, tmp_path / "out", train_split="test").report.rows == 1


def test_checked_rows_are_used_again_only_for_the_same_content(write_rows, tmp_path):
    path = write_rows([GOOD])
    read(path, tmp_path / "out")
    (first,) = (tmp_path / "out").glob("rows-*")
    stamp = first.stat().st_mtime_ns
    read(path, tmp_path / "out")
    assert first.stat().st_mtime_ns == stamp
    write_rows([GOOD, GOOD])
    assert read(path, tmp_path / "out").report.rows == 2
    first.write_bytes(first.read_bytes()[:100])
    with pytest.raises(DataError, match="is damaged"):
        TrainingRows(first)
