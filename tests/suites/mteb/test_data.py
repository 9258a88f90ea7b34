"""Local copies: which folder is read at which revision, layouts, and what is told where something is missing."""

import json

import pandas as pd
import pytest

from frozenprobe.errors import DataError
from tests.suites.mteb.rows import Writer


@pytest.fixture
def task():
    import mteb

    from frozenprobe.suites.mteb.selection import fresh

    def make(name):
        known = {t.metadata.name: t for b in ("MTEB(eng, v1)", "MTEB(eng, v2)") for t in mteb.get_benchmark(b).tasks}
        return fresh(known[name])

    return make


def use(tasks, data_dir, pages):
    from frozenprobe.suites.mteb.data import use_local_copies

    use_local_copies(tasks, data_dir, pages)


def first_sentence(task):
    from frozenprobe.suites.mteb.data import load

    load(task)
    return task.dataset["test"]["sentence1"][0]


def pairs(sentence):
    return {"default": {"test": [{"sentence1": sentence, "sentence2": "b", "score": 1.0}] * 3}}


def test_the_pinned_revision_comes_before_the_plain_folder(task, tmp_path):
    sts = task("BIOSSES")
    pinned = sts.metadata.dataset["revision"]
    writer = Writer(tmp_path)
    writer.put("mteb/biosses-sts", pairs("of unknown revision"))
    use([sts], tmp_path, tmp_path / "pages")
    assert sts.metadata.dataset["revision"] == "revision unknown"
    assert first_sentence(sts) == "of unknown revision"
    writer.put(f"mteb/biosses-sts@{pinned}", pairs("pinned"))
    again = task("BIOSSES")
    use([again], tmp_path, tmp_path / "pages")
    assert again.metadata.dataset["revision"] == pinned
    assert first_sentence(again) == "pinned"
    assert task("BIOSSES").metadata.dataset["path"] == "mteb/biosses-sts"  # mteb's own is untouched


def test_two_benchmarks_read_one_data_set_at_their_own_revisions(task, tmp_path):
    old, new = task("STS22"), task("STS22.v2")
    assert old.metadata.dataset["path"] == new.metadata.dataset["path"]
    writer = Writer(tmp_path)
    for one in (old, new):
        splits = pairs(one.metadata.name)["default"]
        writer.put(f"mteb/sts22-crosslingual-sts@{one.metadata.dataset['revision']}", {"en": splits})
    use([old, new], tmp_path, tmp_path / "pages")
    from frozenprobe.suites.mteb.data import load

    for one in (old, new):
        load(one)
        assert one.dataset["en"]["test"]["sentence1"][0] == one.metadata.name


def test_a_folder_whose_readme_names_configs_is_read_as_it_is(task, tmp_path):
    sts = task("BIOSSES")
    folder = Writer(tmp_path, card=True).put("mteb/biosses-sts", pairs("as it is"))
    (folder / "default").rename(folder / "elsewhere")
    (folder / "README.md").write_text((folder / "README.md").read_text().replace("default/", "elsewhere/"))
    use([sts], tmp_path, tmp_path / "pages")
    assert sts.metadata.dataset["path"] == str(tmp_path / "mteb/biosses-sts")
    assert not (tmp_path / "pages").exists()
    assert first_sentence(sts) == "as it is"


def test_shards_and_folder_names_with_brackets_are_read(task, tmp_path):
    root = tmp_path / "data [of mine]"
    folder = Writer(root).put("mteb/biosses-sts", pairs("shard 0"))
    (folder / "default/test.parquet").rename(folder / "default/test-00000-of-00002.parquet")
    pd.DataFrame(pairs("shard 1")["default"]["test"]).to_parquet(folder / "default/test-00001-of-00002.parquet")
    sts = task("BIOSSES")
    use([sts], root, tmp_path / "pages")
    assert first_sentence(sts) == "shard 0"
    assert len(sts.dataset["test"]) == 6


@pytest.mark.parametrize(
    ("name", "hub_id", "configs", "message"),
    [
        ("SciFact", "mteb/scifact", {"default": {"test": [{"a": 1}]}}, "has no config corpus"),
        ("AskUbuntuDupQuestions", "mteb/AskUbuntuDupQuestions", None, "has no config top_ranked"),
        ("STS17", "mteb/sts17-crosslingual-sts", {"default": {"train": [{"a": 1}]}}, "has no split test in default"),
        ("STS17", "mteb/sts17-crosslingual-sts", {"ko-ko": {"test": [{"a": 1}]}}, "has no config en-en"),
        (
            "Banking77Classification",
            "mteb/banking77",
            {"default": {"test": [{"a": 1}]}},
            "has no split train in default",
        ),
    ],
)
def test_a_config_or_split_that_is_not_there_is_named(task, tmp_path, name, hub_id, configs, message):
    writer = Writer(tmp_path)
    if configs is None:
        writer.retrieval(hub_id)
    else:
        writer.put(hub_id, configs)
    with pytest.raises(DataError, match=message):
        use([task(name)], tmp_path, tmp_path / "pages")


def test_candidates_that_get_lost_are_an_error_and_not_another_task(task, tmp_path):
    from frozenprobe.suites.mteb.data import load

    folder = Writer(tmp_path, card=True).retrieval("mteb/AskUbuntuDupQuestions")
    assert "top_ranked" not in json.dumps((folder / "README.md").read_text())
    rerank = task("AskUbuntuDupQuestions")
    use([rerank], tmp_path, tmp_path / "pages")
    with pytest.raises(DataError, match=r"candidates .* are missing"):
        load(rerank)


def test_a_damaged_file_is_one_line_that_names_the_task(task, tmp_path):
    from frozenprobe.suites.mteb.data import load

    folder = Writer(tmp_path).put("mteb/biosses-sts", pairs("x"))
    (folder / "default/test.parquet").write_bytes(b"PAR1 and then nothing")
    sts = task("BIOSSES")
    use([sts], tmp_path, tmp_path / "pages")
    with pytest.raises(DataError, match=r"BIOSSES: .* cannot be read") as caught:
        load(sts)
    assert "\n" not in str(caught.value)


def test_a_data_folder_that_does_not_exist_is_one_line(task, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        use([task("BIOSSES")], tmp_path / "nothing", tmp_path / "pages")


@pytest.mark.parametrize(
    ("name", "texts"),
    [("BIOSSES", 200), ("SciFact", 5483), ("Banking77Classification", 3080 + 77 * 80), ("STS17", 500)],
)
def test_the_size_of_a_task_is_mtebs_count_of_what_it_encodes(task, name, texts):
    from frozenprobe.suites.mteb.selection import size

    assert size(task(name)).texts == pytest.approx(texts, rel=0.15)


def test_every_task_of_both_benchmarks_has_a_size():
    import mteb

    from frozenprobe.suites.mteb.selection import size

    for benchmark in ("MTEB(eng, v1)", "MTEB(eng, v2)"):
        sizes = {t.metadata.name: size(t) for t in mteb.get_benchmark(benchmark).tasks}
        assert all(sizes.values()), [name for name, counted in sizes.items() if not counted]
