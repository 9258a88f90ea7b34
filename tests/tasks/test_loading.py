import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from frozenprobe.errors import DataError
from frozenprobe.tasks import GLUE, load_task

COLA, STSB, MNLI, MRPC = (GLUE[name] for name in ("cola", "stsb", "mnli", "mrpc"))


def rows(n, labels=None):
    labels = [i % 2 for i in range(n)] if labels is None else labels
    return {"sentence": [f"sentence {i}" for i in range(n)], "label": labels, "idx": list(range(n))}


def write(root, split, columns, config="cola", hub_id="nyu-mll/glue", suffix=".parquet", name=None):
    folder = root / hub_id / config
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name or split}{suffix}"
    frame = pd.DataFrame(columns)
    if suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix == ".json":
        path.write_text(json.dumps(frame.to_dict("records")), encoding="utf-8")
    elif suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, sep="," if suffix == ".csv" else "\t")
    return path


def write_cola(root, **kwargs):
    return write(root, "train", rows(8), **kwargs), write(root, "validation", rows(6), **kwargs)


def refused(match, spec, root, **kwargs):
    with pytest.raises(DataError, match=match) as caught:
        load_task(spec, data_dir=root, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(spec.name) or str(root) in message


@pytest.mark.parametrize("suffix", [".parquet", ".json", ".jsonl", ".csv", ".tsv"])
def test_every_format_gives_the_same_rows_as_written(tmp_path, suffix):
    columns = rows(8)
    # Words that careless readers take for missing values, an empty text, and other scripts.
    columns["sentence"][:5] = ["null", "NA", "None", "", "Zoë, naïve and 日本"]
    write(tmp_path, "train", columns, suffix=suffix)
    write(tmp_path, "validation", rows(6), suffix=suffix)
    data = load_task(COLA, data_dir=tmp_path)
    assert data.train.texts == columns["sentence"]
    assert data.train.pairs is None
    assert data.train.labels.dtype == np.int64
    assert data.train.labels.tolist() == columns["label"]
    assert data.revision == "unknown"
    assert data.evaluations[0].name == "validation"
    assert len(data.evaluations[0]) == 6


def test_a_tsv_quotation_mark_swallows_nothing(tmp_path):
    folder = tmp_path / "nyu-mll/glue/cola"
    folder.mkdir(parents=True)
    body = 'sentence\tlabel\n"He said\t0\nsecond\t1\nthird" line\t0\n'
    for split in ("train", "validation"):
        (folder / f"{split}.tsv").write_text(body)
    assert load_task(COLA, data_dir=tmp_path).train.texts == ['"He said', "second", 'third" line']


def test_a_csv_text_may_span_lines(tmp_path):
    columns = rows(4)
    columns["sentence"][1] = 'two\nlines, "quoted"'
    write(tmp_path, "train", columns, suffix=".csv")
    write(tmp_path, "validation", rows(4))
    assert load_task(COLA, data_dir=tmp_path).train.texts == columns["sentence"]


def test_pairs_and_class_names(tmp_path):
    texts = {"sentence1": ["a", "b"], "sentence2": ["c", "d"]}
    write(tmp_path, "train", texts | {"label": ["equivalent", "not_equivalent"]}, "mrpc", suffix=".csv")
    write(tmp_path, "validation", texts | {"label": [0.0, 1.0]}, "mrpc")
    data = load_task(MRPC, data_dir=tmp_path)
    assert (data.train.texts, data.train.pairs) == (["a", "b"], ["c", "d"])
    assert data.train.labels.tolist() == [1, 0]
    assert data.evaluations[0].labels.tolist() == [0, 1]


def test_shards_are_joined_in_order_and_a_lost_one_is_refused(tmp_path):
    write(tmp_path, "validation", rows(6), name="validation-00000-of-00001")
    write(tmp_path, "train", rows(3), name="train-00000-of-00002")
    refused("1 of 2 shards", COLA, tmp_path)
    write(tmp_path, "train", {"sentence": ["last", "x"], "label": [1, 0]}, name="train-00001-of-00002")
    assert load_task(COLA, data_dir=tmp_path).train.texts == ["sentence 0", "sentence 1", "sentence 2", "last", "x"]


def test_two_files_for_one_split_are_refused(tmp_path):
    write_cola(tmp_path)
    write(tmp_path, "train", rows(4), suffix=".csv")
    refused("more than one file claims it", COLA, tmp_path)


def test_pinned_folder_comes_first_and_its_revision_is_recorded(tmp_path):
    write_cola(tmp_path)
    write(tmp_path, "train", rows(4), hub_id="nyu-mll/glue@abc")
    write(tmp_path, "validation", rows(4), hub_id="nyu-mll/glue@abc")
    pinned = load_task(COLA, data_dir=tmp_path, revision="abc")
    assert (len(pinned.train), pinned.revision) == (4, "abc")
    plain = load_task(COLA, data_dir=tmp_path)
    assert (len(plain.train), plain.revision) == (8, "unknown")


def test_only_pinned_folders(tmp_path):
    write(tmp_path, "train", rows(4), hub_id="nyu-mll/glue@abc")
    write(tmp_path, "validation", rows(4), hub_id="nyu-mll/glue@abc")
    assert load_task(COLA, data_dir=tmp_path).revision == "abc"
    refused("choose a revision", COLA, tmp_path, revision="def")


def test_a_whole_task_is_no_subset_and_others_say_how(tmp_path):
    write_cola(tmp_path)
    assert load_task(COLA, data_dir=tmp_path).subset == "train 8 of 8,551 rows, validation 6 of 1,043 rows"
    whole = replace(COLA, published_rows={"train": 8, "validation": 6})
    assert load_task(whole, data_dir=tmp_path).subset is None
    fewer = replace(COLA, published_rows={"train": 8, "validation": 5})
    assert load_task(fewer, data_dir=tmp_path).subset == "validation 6 rows where 5 are published"


def test_a_missing_secondary_split_is_noted_a_missing_headline_refused(tmp_path):
    texts = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [0, 1, 2]}
    write(tmp_path, "train", texts, "mnli")
    write(tmp_path, "validation_mismatched", texts, "mnli")
    refused("no split validation_matched .*splits found: train, validation_mismatched", MNLI, tmp_path)
    write(tmp_path, "validation_matched", texts, "mnli")
    (tmp_path / "nyu-mll/glue/mnli/validation_mismatched.parquet").unlink()
    data = load_task(MNLI, data_dir=tmp_path)
    assert [split.name for split in data.evaluations] == ["validation_matched"]
    assert "validation_mismatched missing" in data.subset


def test_missing_folders_are_named(tmp_path):
    refused("data folder .* does not exist", COLA, tmp_path / "nowhere")
    refused("no folder", COLA, tmp_path)
    write_cola(tmp_path)
    refused("no folder .*stsb", STSB, tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([-1] * 8, "split train .*has no labels"),
        ([0, 1, -1, 0, 1, 0, 1, -1], r"split train .*2 of 8 rows have no label.*first is row 2"),
        ([0.0, 1.0, None, 0.0, 1.0, 0.0, 1.0, 0.0], "1 of 8 rows have no label"),
        ([1] * 8, "every label is acceptable"),
        ([0, 1, 2, 0, 1, 0, 1, 0], "row 2: 2 is not a label"),
        ([0, 1, 0.5, 0, 1, 0, 1, 0], "row 2: 0.5 is not a label"),
        ([0, 1, float("inf"), 0, 1, 0, 1, 0], "row 2: inf is not a label"),
        (["0", "1", "good", "0", "1", "0", "1", "0"], "row 2: 'good' is not a label"),
        ([[0], [1], [0], [0], [1], [0], [1], [0]], r"row 0: \[0\] is not a label"),
    ],
)
def test_bad_class_labels_are_refused(tmp_path, labels, message):
    write(tmp_path, "train", rows(8, labels))
    write(tmp_path, "validation", rows(6))
    refused(message, COLA, tmp_path)


def test_an_unlabelled_evaluation_split_is_refused_by_name(tmp_path):
    write(tmp_path, "train", rows(8))
    write(tmp_path, "validation", rows(100, [-1 if i in (7, 50, 99) else i % 2 for i in range(100)]))
    refused("split validation .*3 of 100 rows .*row 7", COLA, tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1.0, 2.5, 5.5, 0.0], "row 2: the label 5.5 is not between 0 and 5"),
        ([1.0, 2.5, float("inf"), 0.0], "row 2: the label inf"),
        ([1.0, float("nan"), 2.0, 0.0], "1 of 4 rows have no label"),
        ([-1.0] * 4, "has no labels"),
        ([1.0, -1.0, 2.0, 0.0], "1 of 4 rows have no label"),
        ([1.0, -0.5, 2.0, 0.0], "row 1: the label -0.5"),
        ([2.0] * 4, "every label is 2.0"),
        (["1.0", "2.0", "high", "0"], "row 2: 'high' is not a number"),
    ],
)
def test_bad_values_are_refused(tmp_path, labels, message):
    texts = {"sentence1": list("abcd"), "sentence2": list("efgh")}
    write(tmp_path, "train", texts | {"label": labels}, "stsb")
    write(tmp_path, "validation", texts | {"label": [0.0, 1.25, 2.0, 5.0]}, "stsb")
    refused(message, STSB, tmp_path)


def test_values_are_kept_as_float64(tmp_path):
    texts = {"sentence1": list("abcd"), "sentence2": list("efgh")}
    for split in ("train", "validation"):
        write(tmp_path, split, texts | {"label": [0.0, 1.25, 2.0, 5.0]}, "stsb", suffix=".tsv")
    labels = load_task(STSB, data_dir=tmp_path).train.labels
    assert labels.dtype == np.float64
    assert labels.tolist() == [0.0, 1.25, 2.0, 5.0]


def test_bad_texts_are_refused_by_row(tmp_path):
    write(tmp_path, "validation", rows(6))
    write(tmp_path, "train", rows(4) | {"sentence": ["a", "b", None, "d"]})
    refused("row 2: no text in column sentence", COLA, tmp_path)
    write(tmp_path, "train", rows(4) | {"sentence": [1, 2, 3, 4]})
    refused("row 0: column sentence holds a int", COLA, tmp_path)
    path = write(tmp_path, "train", rows(4))
    path.unlink()
    path.with_suffix(".jsonl").write_text(
        '{"sentence": "a", "label": 0}\n{"sentence": "b \\ud800", "label": 1}\n', encoding="utf-8"
    )
    refused("row 1: column sentence holds broken Unicode", COLA, tmp_path)


def test_damaged_parquet_is_named(tmp_path):
    train, _ = write_cola(tmp_path)
    content = train.read_bytes()
    damage = {"cut": content[: len(content) // 2], "empty": b"", "pointer": b"version https://git-lfs...\n"}
    # The footer stays whole and the pages are overwritten.
    damage["scrambled"] = content[:4] + b"\x07" * (len(content) // 3) + content[4 + len(content) // 3 :]
    for damaged in damage.values():
        train.write_bytes(damaged)
        refused(r"train\.parquet: cannot be read", COLA, tmp_path)


def test_missing_and_doubled_columns_are_named(tmp_path):
    write_cola(tmp_path, suffix=".csv")
    train = tmp_path / "nyu-mll/glue/cola/train.csv"
    train.write_text("text,label\na,0\nb,1\n")
    refused(r"train\.csv: no column sentence; it has text, label", COLA, tmp_path)
    train.write_text("sentence,sentence,label\na,b,0\n")
    refused("sentence appears more than once", COLA, tmp_path)
    train.write_text("sentence,label\n")
    refused("no rows", COLA, tmp_path)
    train.write_text("")
    refused("the file is empty", COLA, tmp_path)
    train.write_text("sentence,label\na,0\nb,1,2\n")
    refused("cannot be read", COLA, tmp_path)
    train.write_bytes(b"sentence,label\nna\xefve,0\nb,1\n")
    refused(r"train\.csv", COLA, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"sentence": "a", "label": 0}\n{"sentence": "b"', "line 2 is not valid JSON"),
        ('[{"sentence": "a", "label": 0}', "not valid JSON"),
        ('{"sentence": "a", "label": 0}\n{"sentence": "b"}', "row 1: no column label"),
        ("[1, 2]", "row 0 is not an object"),
        ("", "the file is empty"),
        ("[]", "no rows"),
    ],
)
def test_damaged_json_is_named(tmp_path, content, message):
    train, _ = write_cola(tmp_path, suffix=".json")
    train.write_text(content)
    refused(message, COLA, tmp_path)
