"""The feature cache: what is reused, what never is, damage, full disks, limits, two writers (C01, C02, C12)."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frozenprobe.features import cache as cache_module
from frozenprobe.features import segments
from frozenprobe.features.base import Inputs, View
from frozenprobe.features.cache import CacheWarning, FeatureCache, StoreKey, default_cache_dir
from frozenprobe.features.extract import extract
from frozenprobe.settings import FeatureSettings

MEAN, MAX = View("last", "mean"), View(1, "max")
SETTINGS = FeatureSettings(tokens_per_batch=256)


def run(encoder, texts, root, views=(MEAN,), role=None, limit=None):
    cache = FeatureCache(root, limit)
    return extract(encoder, [Inputs(texts, role=role)], views, SETTINGS, cache=cache)[0]


def segments_in(root):
    return sorted(Path(root).rglob("*.segment"))


def test_second_run_encodes_nothing_and_gives_the_same_bits(fake, words, tmp_path):
    texts = words(80)
    first = run(fake(), texts, tmp_path, (MEAN, MAX))
    encoder = fake()
    second = run(encoder, [*texts[::-1], texts[3]], tmp_path, (MAX, MEAN))
    assert encoder.encoded == second.report.encoded == 0
    assert second.report.distinct == 80
    for view in (MEAN, MAX):
        np.testing.assert_array_equal(second.by_view[view][:80], first.by_view[view][::-1])
        np.testing.assert_array_equal(second.by_view[view][80], first.by_view[view][3])


def test_a_new_task_reuses_what_an_old_one_encoded(fake, words, tmp_path):
    texts = words(60)
    run(fake(), texts[:40], tmp_path)
    encoder = fake()
    result = run(encoder, texts[20:], tmp_path)
    assert encoder.encoded == 20
    expected = extract(fake(), [Inputs(texts[20:])], [MEAN], SETTINGS)[0].by_view[MEAN]
    np.testing.assert_allclose(result.by_view[MEAN], expected, rtol=1e-5, atol=1e-6)


def test_c01_the_role_is_part_of_the_key(fake, tmp_path):
    encoder = fake(role_in_weights=True)
    query = run(encoder, ["a b"], tmp_path, role="query").by_view[MEAN]
    document = run(encoder, ["a b"], tmp_path, role="document").by_view[MEAN]
    assert encoder.encoded == 2
    np.testing.assert_allclose(query - document, 10.0, rtol=1e-5)
    np.testing.assert_array_equal(run(encoder, ["a b"], tmp_path, role="query").by_view[MEAN], query)
    np.testing.assert_array_equal(run(encoder, ["a b"], tmp_path, role="document").by_view[MEAN], document)
    assert encoder.encoded == 2


def test_c02_a_changed_weight_misses_and_changing_it_back_hits(fake, tmp_path):
    encoder = fake()
    original = run(encoder, ["a b"], tmp_path).by_view[MEAN]
    kept = encoder.weight[3].item()
    encoder.weight[3] += 0.25
    changed = run(encoder, ["a b"], tmp_path).by_view[MEAN]
    assert encoder.encoded == 2
    assert not np.array_equal(changed, original)
    encoder.weight[3] = kept
    np.testing.assert_array_equal(run(encoder, ["a b"], tmp_path).by_view[MEAN], original)
    assert encoder.encoded == 2


def test_the_name_is_no_part_of_the_key(fake, tmp_path):
    run(fake(name="one"), ["a"], tmp_path)
    encoder = fake(name="another")
    run(encoder, ["a"], tmp_path)
    assert encoder.encoded == 0


def test_c12_the_length_limit_is_part_of_the_key(fake, tmp_path):
    text = "word " * 300
    short, long = fake(max_length=64), fake(max_length=128)
    assert run(short, [text], tmp_path).report.truncated == 1
    assert run(long, [text], tmp_path).report.lost_tokens == 301 - 128
    assert (short.encoded, long.encoded) == (1, 1)
    # Even where the tokens are the same: a limit may change how a model treats positions.
    run(short, ["a"], tmp_path)
    run(long, ["a"], tmp_path)
    assert (short.encoded, long.encoded) == (2, 2)


def test_all_that_changes_a_vector_changes_the_key(fake, monkeypatch):
    encoder = fake()
    base = StoreKey.of(encoder, None, "single").digest
    digests = {base, StoreKey.of(encoder, None, "joint").digest, StoreKey.of(encoder, "query", "single").digest}
    info = encoder.info
    changes = {"max_length": 65, "dtype": "bf16", "attention": "eager", "device": "cuda", "padding_side": "left"}
    for name, value in changes.items():
        encoder.info = replace(info, **{name: value})
        digests.add(StoreKey.of(encoder, None, "single").digest)
    encoder.info = info
    monkeypatch.setattr(cache_module.importlib.metadata, "version", lambda name: "99")
    digests.add(StoreKey.of(encoder, None, "single").digest)
    assert len(digests) == 3 + len(changes) + 1
    monkeypatch.undo()
    for change in ({"name": "other"}, {"revision": "abc"}, {"kind": "other"}, {"device": "cpu:0"}):
        encoder.info = replace(info, **change)
        assert StoreKey.of(encoder, None, "single").digest == base


def test_only_missing_views_are_computed_and_added(fake, words, tmp_path):
    texts = words(30)
    run(fake(), texts, tmp_path, (MEAN,))
    before = {path: path.stat().st_size for path in segments_in(tmp_path)}
    encoder = fake()
    result = run(encoder, texts, tmp_path, (MEAN, MAX))
    assert encoder.encoded == 30
    added = [path for path in segments_in(tmp_path) if path not in before]
    assert [path.parent.name for path in added] == ["1~max"]
    expected = extract(fake(), [Inputs(texts)], [MAX], SETTINGS)[0].by_view[MAX]
    np.testing.assert_allclose(result.by_view[MAX], expected, rtol=1e-6)
    encoder = fake()
    run(encoder, texts, tmp_path, (MAX,))
    assert encoder.encoded == 0


def test_the_fingerprint_is_asked_for_only_with_a_cache(fake, tmp_path):
    encoder = fake()
    extract(encoder, [Inputs(["a"])], [MEAN], SETTINGS)
    assert encoder.fingerprints == 0
    run(encoder, ["a"], tmp_path)
    assert encoder.fingerprints == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-7],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: data + b"more",
        lambda data: b"x" + data[1:],
        lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
        lambda data: data[:-9] + bytes([data[-9] ^ 64]) + data[-8:],
        lambda data: data[:8] + (2**60).to_bytes(8, "little") + data[16:],
        lambda data: data[:16] + (0).to_bytes(8, "little") + data[24:],
    ],
    ids=["cut", "cut in header", "empty", "longer", "magic", "key", "vector", "huge n", "no width"],
)
def test_a_damaged_segment_is_reported_once_and_computed_again(fake, words, tmp_path, damage):
    texts = words(25)
    good = run(fake(), texts, tmp_path).by_view[MEAN]
    (path,) = segments_in(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    encoder = fake()
    with pytest.warns(CacheWarning, match="is damaged") as caught:
        result = run(encoder, texts, tmp_path)
    assert len(caught) == 1
    assert encoder.encoded == 25
    np.testing.assert_array_equal(result.by_view[MEAN], good)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder = fake()
        run(encoder, texts, tmp_path)
    assert encoder.encoded == 0


def test_a_full_disk_gives_one_warning_and_the_run_goes_on(fake, words, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segments.os, "replace", full)
    cache = FeatureCache(tmp_path)
    with pytest.warns(CacheWarning, match="No space left on device.*going on without") as caught:
        result = extract(fake(), [Inputs(words(20))], [MEAN, MAX], SETTINGS, cache=cache)[0]
    assert len(caught) == 1
    assert np.isfinite(result.by_view[MEAN]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract(fake(), [Inputs(words(20, seed=1))], [MEAN], SETTINGS, cache=cache)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("place", ["file", "null"])
def test_an_impossible_folder_gives_one_warning(fake, words, tmp_path, place):
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "cache" if place == "file" else Path("/dev/null/cache")
    with pytest.warns(CacheWarning, match="cannot be written") as caught:
        assert len(run(fake(), words(5), root).by_view[MEAN]) == 5
    assert len(caught) == 1


def test_finished_rows_survive_an_interrupt(fake, words, tmp_path):
    texts, encoder = words(200), fake()
    calls = iter(range(1000))

    def interrupt():
        if next(calls) == 6:
            raise KeyboardInterrupt

    encoder.before_forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(encoder, texts, tmp_path)
    done = encoder.encoded
    again = fake()
    result = run(again, texts, tmp_path)
    assert again.encoded == 200 - done < 200
    expected = extract(fake(), [Inputs(texts)], [MEAN], SETTINGS)[0].by_view[MEAN]
    np.testing.assert_allclose(result.by_view[MEAN], expected, rtol=1e-5, atol=1e-6)


def test_a_non_finite_row_is_never_kept(fake, words, tmp_path):
    texts = words(50)
    texts[10] = "poison"
    with pytest.raises(Exception, match="non-finite"):
        run(fake(poison="poison"), texts, tmp_path)
    kept = [segments.Segment(path) for path in segments_in(tmp_path)]
    assert all(np.isfinite(segment.rows(np.arange(len(segment)))).all() for segment in kept)


WRITER = """
import json, sys
from tests.features.conftest import FakeEncoder
from tests.features.test_cache import run
root, texts = sys.argv[1], json.loads(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
run(FakeEncoder(), texts, root)
"""


def test_two_processes_may_write_one_store(fake, words, tmp_path):
    root = Path(__file__).parents[2]
    commands = [
        [sys.executable, "-c", WRITER, str(tmp_path), json.dumps(words(60)[start : start + 40])] for start in (0, 20)
    ]
    writers = [
        subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.wait(60) for writer in writers] == [0, 0]
    encoder = fake()
    result = run(encoder, words(60), tmp_path)
    assert encoder.encoded == 0
    expected = extract(fake(), [Inputs(words(60))], [MEAN], SETTINGS)[0].by_view[MEAN]
    np.testing.assert_allclose(result.by_view[MEAN], expected, rtol=1e-5, atol=1e-6)
    assert not list(tmp_path.rglob(".writing-*"))


def age(path, seconds):
    os.utime(path, (path.stat().st_atime - seconds, path.stat().st_mtime - seconds))


def test_the_least_recently_used_go_first(fake, words, tmp_path):
    old, middle, new = (words(20, seed=seed) for seed in range(3))
    for texts in (old, middle, new):
        known = set(segments_in(tmp_path))
        run(fake(), texts, tmp_path)
        (path,) = set(segments_in(tmp_path)) - known
        age(path, 3000 if texts is old else 2000 if texts is middle else 1000)
    run(fake(), old, tmp_path)  # used again: `middle` is the oldest now
    cache = FeatureCache(tmp_path)
    one = cache.size() // 3
    cache.prune(2 * one + 10)
    assert len(segments_in(tmp_path)) == 2
    for texts, encoded in ((old, 0), (new, 0), (middle, 20)):
        encoder = fake()
        run(encoder, texts, tmp_path)
        assert encoder.encoded == encoded


def test_the_limit_holds_while_writing(fake, words, tmp_path):
    run(fake(), words(20), tmp_path)
    limit = int(FeatureCache(tmp_path).size() * 2.5)
    for seed in range(1, 8):
        run(fake(), words(20, seed=seed), tmp_path, limit=limit)
        assert FeatureCache(tmp_path).size() <= limit
    encoder = fake()
    run(encoder, words(20, seed=7), tmp_path)
    assert encoder.encoded == 0


def test_an_evicted_segment_that_is_open_can_still_be_read(fake, words, tmp_path):
    run(fake(), words(10), tmp_path)
    (path,) = segments_in(tmp_path)
    segment = segments.Segment(path)
    FeatureCache(tmp_path).clear()
    assert not path.exists()
    assert segment.rows(np.arange(10)).shape == (10, 16)


def test_stores_size_and_clear(fake, words, tmp_path):
    stranger = tmp_path / "notes.txt"
    stranger.write_text("mine")
    run(fake(name="one"), words(10), tmp_path, (MEAN, MAX))
    run(fake(name="two", weight_seed=1), words(15), tmp_path)
    cache = FeatureCache(tmp_path)
    lines = cache.stores()
    assert {(line.encoder, line.view, line.rows) for line in lines} == {
        ("one", "last/mean", 10),
        ("one", "1/max", 10),
        ("two", "last/mean", 15),
    }
    assert (
        sum(line.bytes for line in lines) == cache.size() == sum(path.stat().st_size for path in segments_in(tmp_path))
    )
    assert lines[0].used >= lines[-1].used
    about = json.loads(next(tmp_path.rglob("store.json")).read_text())
    assert about["dtype"] == "fp32"
    cache.clear()
    assert cache.size() == 0
    assert cache.stores() == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [stranger]


def test_abandoned_files_are_swept(fake, words, tmp_path):
    run(fake(), words(10), tmp_path)
    folder = segments_in(tmp_path)[0].parent
    dead, dead_description, alive = folder / ".writing-a", folder.parent / ".writing-b", folder / ".writing-c"
    for path in (dead, dead_description, alive):
        path.write_bytes(b"half")
    age(dead, 7200)
    age(dead_description, 7200)
    FeatureCache(tmp_path).prune(10**9)
    assert [path.exists() for path in (dead, dead_description, alive)] == [False, False, True]
    assert len(segments_in(tmp_path)) == 1


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FROZENPROBE_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("FROZENPROBE_CACHE")
    assert default_cache_dir() == Path.home() / ".cache" / "frozenprobe"
