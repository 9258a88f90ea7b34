"""Text becomes tokens once, completely, in the same way each time, and a kill loses nothing."""

import gzip
import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crossbert import prepare as module
from crossbert import prepared as prepared_module
from crossbert.data import PreparedData
from crossbert.prepare import prepare
from crossbert.prepared import digest_of
from crossbert.settings import PrepareSettings
from crossbert.text import builtin_documents, local_documents
from crossbert.tokenizer import load_tokenizer
from frozenprobe.errors import DataError, RecordError, SettingsError
from frozenprobe.settings import parse
from frozenprobe.tasks.builtin import BUILTIN, load_builtin


def settings(**values):
    return parse(PrepareSettings, values)


def tokens_of(folder, split):
    manifest = json.loads((folder / "manifest.json").read_text())
    return np.concatenate([np.fromfile(folder / shard["file"], "<u2") for shard in manifest["shards"][split]])


def documents_of(folder, split):
    """The documents of a split, decoded."""
    tokenizer = load_tokenizer(folder / "tokenizer")
    tokens = tokens_of(folder, split)
    starts = np.flatnonzero(tokens == tokenizer.start)
    rows = np.split(tokens, starts)[1:]
    assert all(row[-1] == tokenizer.end for row in rows)
    return [tokenizer.tokenizer.decode(row[1:-1].tolist()) for row in rows]


@pytest.fixture(scope="module")
def texts():
    return [*builtin_documents(150, seed=3), "Größe, 東京 and a literal <mask> or </s>.", "   \n", ""]


@pytest.fixture(scope="module")
def jsonl(texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def prepared(jsonl, tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DOCUMENTS_AT_ONCE", 16)  # so that there are several shards
        manifest = prepare(settings(text=str(jsonl), train_tokenizer=400, validation_share=0.1, shard_tokens=4000), out)
    return out, manifest


def test_every_document_comes_back_once_and_the_counts_say_so(prepared, texts):
    out, manifest = prepared
    train, validation = documents_of(out, "train"), documents_of(out, "validation")
    kept = [text for text in texts if text.strip()]
    assert sorted(train + validation) == sorted(kept)
    assert not set(train) & set(validation)
    assert train == [text for text in kept if text in set(train)]  # in order
    assert manifest["documents"] == {"train": len(train), "validation": len(validation)}
    assert manifest["empty_documents"] == 2
    assert manifest["characters"] == sum(map(len, kept))
    assert manifest["tokens"]["train"] == len(tokens_of(out, "train"))
    assert len(manifest["shards"]["train"]) > 1


def test_the_tokenizer_is_a_hugging_face_one_that_frames_a_text(prepared):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepared[0] / "tokenizer")
    assert len(tokenizer) == 400
    ids = tokenizer("a word")["input_ids"]
    assert tokenizer.convert_ids_to_tokens([ids[0], ids[-1]]) == ["<s>", "</s>"]
    assert tokenizer.convert_ids_to_tokens(range(4)) == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.mask_token_id == 4
    assert tokenizer("a <mask>")["input_ids"][-2] == 4


def test_special_tokens_written_in_a_text_stay_text(prepared):
    tokens = np.concatenate([tokens_of(prepared[0], split) for split in ("train", "validation")])
    assert 4 not in tokens
    assert (tokens == 0).sum() == (tokens == 2).sum() == sum(prepared[1]["documents"].values())


def kill_in_the_middle(asked, out, monkeypatch, step=15):
    """Leaves what a killed preparation leaves; returns its folder."""
    append, calls = module._append, []

    def dies(*arguments):
        calls.append(1)
        if len(calls) == step:
            raise KeyboardInterrupt
        append(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_append", dies)
        with pytest.raises(KeyboardInterrupt):
            prepare(asked, out)
    assert not out.exists()
    return out.parent / f".{out.name}.preparing"


def contents_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Notes(module.Display):
    """What a preparation says."""

    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


def test_a_killed_preparation_goes_on_to_the_same_bytes(prepared, jsonl, tmp_path, monkeypatch):
    out, whole = prepared
    same = settings(text=str(jsonl), train_tokenizer=400, validation_share=0.1, shard_tokens=4000)
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", 16)
    kill_in_the_middle(same, tmp_path / "again", monkeypatch)
    display = Notes()
    notes = display.lines
    prepare(same, tmp_path / "again", display)
    assert any("going on" in note for note in notes)
    assert not any("training a tokenizer" in note for note in notes)
    for split in ("train", "validation"):
        np.testing.assert_array_equal(tokens_of(tmp_path / "again", split), tokens_of(out, split))
    again = json.loads((tmp_path / "again" / "manifest.json").read_text())
    assert {key: again[key] for key in ("documents", "tokens", "characters", "empty_documents")} == {
        key: whole[key] for key in ("documents", "tokens", "characters", "empty_documents")
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again"]


def test_the_same_command_again_is_done_and_another_is_refused(prepared, jsonl):
    out, _ = prepared
    same = settings(text=str(jsonl), train_tokenizer=400, validation_share=0.1, shard_tokens=4000)
    assert prepare(same, out) == json.loads((out / "manifest.json").read_text())
    with pytest.raises(DataError, match="other settings"):
        prepare(settings(text=str(jsonl), train_tokenizer=500), out)


def test_another_request_does_not_touch_what_a_killed_one_left(prepared, jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", 16)
    same = {"text": str(jsonl), "train_tokenizer": 400, "validation_share": 0.1, "shard_tokens": 4000}
    partial = kill_in_the_middle(settings(**same), tmp_path / "x", monkeypatch)
    left = contents_of(partial)
    with pytest.raises(DataError, match=r"unfinished.*max_documents was None, is 1\); delete it to start anew"):
        prepare(settings(**same, max_documents=1), tmp_path / "x")
    assert contents_of(partial) == left
    display = Notes()
    prepare(settings(**same), tmp_path / "x", display)
    assert any("going on" in line for line in display.lines)
    np.testing.assert_array_equal(tokens_of(tmp_path / "x", "train"), tokens_of(prepared[0], "train"))


def test_what_is_held_out_as_a_whole_is_gone_on_with_too(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", 8)
    asked = settings(builtin=60, tokenizer=str(tiny_data / "tokenizer"), validation_share=1, shard_tokens=1000)
    kill_in_the_middle(asked, tmp_path / "x", monkeypatch, step=9)
    display = Notes()
    manifest = prepare(asked, tmp_path / "x", display)
    assert any("going on" in line for line in display.lines)
    assert len(manifest["shards"]["validation"]) > 1
    assert documents_of(tmp_path / "x", "validation") == list(builtin_documents(60, seed=0))


def test_a_preparation_that_lacks_only_its_name_is_finished(tiny_data, tmp_path, monkeypatch):
    asked = settings(builtin=40, tokenizer=str(tiny_data / "tokenizer"), validation_share=0.3)

    rename = module.os.rename

    def dies(old, new):
        if new == tmp_path / "x":
            raise KeyboardInterrupt
        rename(old, new)

    def never(*_):
        raise AssertionError("all was done before")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            prepare(asked, tmp_path / "x")
    with pytest.raises(DataError, match=r"unfinished.*seed was 0, is 1"):
        prepare(asked.model_copy(update={"seed": 1}), tmp_path / "x")
    monkeypatch.setattr(module, "_write_shards", never)
    manifest = prepare(asked, tmp_path / "x")
    PreparedData.open(tmp_path / "x").verify()
    assert sum(manifest["documents"].values()) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_where_nothing_was_done_yet_another_request_begins(tiny_data, tmp_path):
    (tmp_path / ".x.preparing").mkdir()
    (tmp_path / ".x.preparing" / "identity.json").write_text("{}")  # all that a kill in the first second leaves
    manifest = prepare(
        settings(builtin=40, tokenizer=str(tiny_data / "tokenizer"), validation_share=0.3), tmp_path / "x"
    )
    assert manifest["identity"]["settings"]["builtin"] == 40


def test_files_of_no_known_preparation_are_left_alone(tiny_data, tmp_path):
    (tmp_path / ".x.preparing").mkdir()
    (tmp_path / ".x.preparing" / "thesis.tex").write_text("all of it")
    with pytest.raises(DataError, match="files of no known preparation; delete it"):
        prepare(settings(builtin=40, tokenizer=str(tiny_data / "tokenizer")), tmp_path / "x")
    assert (tmp_path / ".x.preparing" / "thesis.tex").read_text() == "all of it"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("train-00000.bin", lambda path: path.write_bytes(path.read_bytes()[:-2])),
        ("train-00000.bin", lambda path: path.unlink()),
        ("progress.json", lambda path: path.write_text("{")),
        ("progress.json", lambda path: path.write_text('{"shards": {"train": [{}]}}')),
        ("identity.json", lambda path: path.write_text("{}")),
    ],
)
def test_damage_to_what_a_killed_preparation_left_is_one_line(name, change, jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", 16)
    same = settings(text=str(jsonl), train_tokenizer=400, validation_share=0.1, shard_tokens=4000)
    change(kill_in_the_middle(same, tmp_path / "x", monkeypatch) / name)
    with pytest.raises(DataError, match=rf"{name} is (damaged|missing or cut short); delete .*x\.preparing to start"):
        prepare(same, tmp_path / "x")


def test_a_request_that_is_refused_for_its_input_leaves_nothing(prepared, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": 5}\n')
    asked = settings(text=str(tmp_path / "a.jsonl"), tokenizer=str(prepared[0] / "tokenizer"), validation_share=0.5)
    with pytest.raises(DataError, match="not text but int"):
        prepare(asked, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def written(path, text):
    path.write_text("\n".join(text))
    return path


@pytest.fixture
def lines(prepared, texts, tmp_path):
    """Text of a document a line, and a request for it."""
    path = written(tmp_path / "a.txt", texts[:60])
    return path, settings(
        text=str(path),
        text_unit="line",
        tokenizer=str(prepared[0] / "tokenizer"),
        validation_share=0.2,
        shard_tokens=999,
    )


def test_changed_text_of_the_same_size_is_another(lines, texts, tmp_path):
    path, asked = lines
    manifest = prepare(asked, tmp_path / "x")
    written(path, reversed(texts[:60]))
    with pytest.raises(DataError, match=rf"other text.*\(content\.{re.escape(str(path))} was \w+, is \w+\)"):
        prepare(asked, tmp_path / "x")
    written(path, texts[:60])  # the same content, written later
    assert prepare(asked, tmp_path / "x") == manifest
    written(tmp_path / "b.txt", texts[:60])
    with pytest.raises(DataError, match=r"settings\.text was"):
        prepare(asked.model_copy(update={"text": (path, tmp_path / "b.txt")}), tmp_path / "x")


def test_text_that_changed_after_a_kill_is_not_mixed_in(lines, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", 8)
    path, asked = lines
    left = contents_of(kill_in_the_middle(asked, tmp_path / "x", monkeypatch, step=9))
    written(path, reversed(texts[:60]))
    with pytest.raises(DataError, match=r"unfinished preparation of other text.*content.* was \w+, is \w+"):
        prepare(asked, tmp_path / "x")
    assert contents_of(tmp_path / ".x.preparing") == left


def test_a_changed_tokenizer_of_the_same_name_is_another(lines, prepared, tiny_data, tmp_path):
    _, asked = lines
    own = shutil.copytree(prepared[0] / "tokenizer", tmp_path / "own")
    asked = asked.model_copy(update={"tokenizer": str(own)})
    prepare(asked, tmp_path / "x")
    (own / "model.safetensors").write_bytes(b"weights beside it")
    prepare(asked, tmp_path / "x")
    shutil.copytree(tiny_data / "tokenizer", own, dirs_exist_ok=True)
    with pytest.raises(DataError, match=r"tokenizer\.tokenizer\.json was \w+, is \w+"):
        prepare(asked, tmp_path / "x")


def test_of_an_earlier_versions_folder_names_and_sizes_are_compared(lines, texts, tmp_path):
    path, asked = lines
    prepare(asked, tmp_path / "x")
    manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
    identity = {key: manifest["identity"][key] for key in ("format", "settings")}
    identity["files"] = [[str(path), path.stat().st_size]]
    del manifest["tokenizer_files"]
    (tmp_path / "x" / "manifest.json").write_text(json.dumps(manifest | {"identity": identity}))
    assert prepare(asked, tmp_path / "x")["identity"] == identity
    written(path, texts[:61])
    with pytest.raises(DataError, match=r"files\..*a\.txt was \d+, is \d+\)"):
        prepare(asked, tmp_path / "x")


def test_a_large_file_is_known_by_pieces_from_its_beginning_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared_module, "PIECE", 16)
    monkeypatch.setattr(prepared_module, "PIECES", 4)
    path = tmp_path / "a.txt"

    def seen(size):
        """How many bytes make a difference, and whether the first and the last are among them."""
        path.write_bytes(bytes(size))
        before, differ = digest_of(path), []
        for place in range(size):
            path.write_bytes(bytes(place) + b"x" + bytes(size - place - 1))
            differ.append(digest_of(path) != before)
        return sum(differ), differ[0] and differ[-1]

    for size in (1, 15, 16, 17, 63, 64):
        assert seen(size) == (size, True)
    for size in (65, 100, 999):
        few, ends = seen(size)
        assert ends
        assert 60 <= few <= 64
    path.write_bytes(b"")
    empty = digest_of(path)
    path.write_bytes(bytes(1))
    assert digest_of(path) != empty


def test_a_damaged_folder_is_named_and_the_advice_helps(prepared, jsonl, tmp_path):
    same = settings(text=str(jsonl), train_tokenizer=400, validation_share=0.1, shard_tokens=4000)
    out = shutil.copytree(prepared[0], tmp_path / "x")
    prepare(same, out)
    shard = bytearray((out / "train-00000.bin").read_bytes())
    shard[100] ^= 1
    (out / "train-00000.bin").write_bytes(shard)
    with pytest.raises(DataError, match=rf"train-00000\.bin is damaged.*delete {re.escape(str(out))} and prepare it"):
        prepare(same, out)
    shutil.rmtree(out)
    prepare(same, out)
    PreparedData.open(out).verify()
    shutil.rmtree(out / "tokenizer")
    with pytest.raises(DataError, match="tokenizer is missing; delete"):
        prepare(same, out)


def test_two_preparations_of_one_folder_do_not_meet(jsonl, tmp_path):
    import fcntl

    (tmp_path / ".x.preparing").mkdir()
    with (tmp_path / ".x.preparing" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RecordError, match="another process"):
            prepare(settings(text=str(jsonl), train_tokenizer=400), tmp_path / "x")


def test_a_prepared_tokenizer_serves_other_text(prepared, texts, tmp_path):
    (tmp_path / "b.txt").write_text("\n\n".join(text for text in texts if text.strip()))
    manifest = prepare(
        settings(
            text=str(tmp_path / "b.txt"),
            text_unit="paragraph",
            tokenizer=str(prepared[0] / "tokenizer"),
            validation_share=0.1,
        ),
        tmp_path / "b",
    )
    assert manifest["tokenizer"] == prepared[1]["tokenizer"]
    assert manifest["documents"] == prepared[1]["documents"]  # by content: the same texts are held out


def test_a_large_vocabulary_is_stored_in_32_bits():
    assert module.dtype_of(65536) == np.uint16
    assert module.dtype_of(65537) == np.uint32


def test_limits_stop_the_preparation(jsonl, texts, tmp_path, monkeypatch):
    few = prepare(
        settings(text=str(jsonl), train_tokenizer=400, max_documents=60, validation_share=0.2), tmp_path / "a"
    )
    assert sum(few["documents"].values()) == 60
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", 16)
    short = prepare(
        settings(text=str(jsonl), train_tokenizer=400, max_tokens=3000, validation_share=0.2), tmp_path / "b"
    )
    rows = documents_of(tmp_path / "b", "train") + documents_of(tmp_path / "b", "validation")
    tokenizer = load_tokenizer(tmp_path / "b" / "tokenizer")
    longest = max(map(len, tokenizer.encode(rows)))
    assert 3000 <= sum(short["tokens"].values()) < 3000 + longest
    read = [text for text in texts if text.strip()][: len(rows)]
    assert sorted(rows) == sorted(read)
    before = sum(map(len, tokenizer.encode(read[:-1])))
    assert before < 3000  # the last document is the one that reached it


def test_the_limit_counts_what_is_held_out_too(tiny_data, tmp_path):
    asked = settings(
        builtin=5000, tokenizer=str(tiny_data / "tokenizer"), validation_share=1, max_tokens=100, shard_tokens=40
    )
    manifest = prepare(asked, tmp_path / "x")
    assert manifest["documents"]["validation"] <= 2
    assert 100 <= manifest["tokens"]["validation"] < 1000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train_tokenizer": 400, "tokenizer": "own"}, "tokenizer and train_tokenizer exclude each other"),
        ({"hub_config": "en"}, "hub_config changes nothing without hub"),
        ({"hub_split": "test"}, "hub_split changes nothing without hub"),
        ({"revision": "main"}, "revision changes nothing without hub"),
        ({"text_unit": "line"}, "text_unit changes nothing without text"),
        ({"text_column": "body"}, "text_column changes nothing without text or hub"),
        ({"tokenizer_documents": 5}, "tokenizer_documents changes nothing without train_tokenizer"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(values, message):
    with pytest.raises(SettingsError, match=message):
        settings(builtin=5, **values)


def test_an_option_for_another_kind_of_file_is_refused(lines, jsonl, tmp_path):
    path, _ = lines
    with pytest.raises(SettingsError, match=r"--text-unit changes nothing: there is no \.txt file"):
        prepare(settings(text=str(jsonl), train_tokenizer=400, text_unit="line"), tmp_path / "x")
    with pytest.raises(SettingsError, match=r"--text-column changes nothing: there is no \.jsonl or \.parquet file"):
        prepare(settings(text=str(path), train_tokenizer=400, text_column="body"), tmp_path / "x")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet", "txt", "lines"])
def test_all_kinds_of_files_give_the_same_documents(kind, tmp_path):
    texts = ["one\ntwo", "three", "fo\u2028ur"]
    if kind == "jsonl.gz":
        with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n\n" for text in texts))
    elif kind == "parquet":
        pq.write_table(pa.table({"id": [1, 2, 3], "text": texts}), tmp_path / "a.parquet")
    elif kind == "txt":
        for number, text in enumerate(texts):
            (tmp_path / f"{number}.txt").write_text(text)
    else:
        texts = ["three", "fo\u2028ur"]
        (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    assert list(local_documents([tmp_path], "text", "line" if kind == "lines" else "file")) == texts


def damaged_gzip():
    """A compressed text whose header is whole."""
    content = bytearray(gzip.compress(b"a text of some length " * 50))
    content[12:20] = b"\xff" * 8
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": 5}\n', "line 2: the field text is not text but int"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "line 2 is not valid JSON"),
        ("a.jsonl", b'{"body": "x"}\n', "line 1 has no field text; it has body"),
        ("a.txt", b"\xff\xfe\x00", "not valid UTF-8"),
        ("a.parquet", b"PAR1 and no more", "cannot be read"),
        ("a.txt.gz", b"no gzip", "cannot be read"),
        ("a.txt.gz", damaged_gzip(), "cannot be read"),
        ("a.jsonl", b'{"text": "x"}\n' + b"[" * 200_000, "line 2 is not valid JSON"),
        ("a.pdf", b"x", "unknown kind of file"),
        ("a.txt", b" \n", "no document for train"),
    ],
)
def test_bad_text_is_one_line(name, content, message, prepared, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare(
            settings(text=str(tmp_path / name), tokenizer=str(prepared[0] / "tokenizer"), validation_share=0.4),
            tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("trained", [True, False])
def test_half_a_surrogate_pair_becomes_the_replacement_character(trained, prepared, texts, tmp_path):
    odd = ["half \ud800 a pair", "the \udc00 other", "whole \U0001f600"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*odd, *texts[:40]]))
    tokenizer = {"train_tokenizer": 300} if trained else {"tokenizer": str(prepared[0] / "tokenizer")}
    prepare(settings(text=str(tmp_path / "a.jsonl"), validation_share=0.2, **tokenizer), tmp_path / "x")
    back = documents_of(tmp_path / "x", "train") + documents_of(tmp_path / "x", "validation")
    assert {"half \ufffd a pair", "the \ufffd other", "whole \U0001f600"} <= set(back)


def test_seeds_are_bounded(tiny_data, tmp_path):
    with pytest.raises(SettingsError, match="seed"):
        settings(builtin=5, seed=1 << 63)
    largest = settings(builtin=40, seed=(1 << 63) - 1, tokenizer=str(tiny_data / "tokenizer"), validation_share=0.5)
    assert sum(prepare(largest, tmp_path / "x")["documents"].values()) == 40


def test_wrong_requests_are_one_line(tmp_path, tiny_bert, jsonl):
    with pytest.raises(SettingsError, match="exactly one of"):
        settings(text="a.txt", builtin=5)
    with pytest.raises(DataError, match="no such file"):
        prepare(settings(text=str(tmp_path / "absent.txt")), tmp_path / "out")
    with pytest.raises(DataError, match="cannot load the tokenizer"):
        prepare(settings(text=str(jsonl), tokenizer=str(tmp_path / "absent")), tmp_path / "out")
    with pytest.raises(SettingsError, match="the text yields only"):
        prepare(settings(text=str(jsonl), train_tokenizer=50_000), tmp_path / "out")


def test_a_full_disk_is_one_line(prepared, jsonl, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_append", full)
    with pytest.raises(DataError, match="No space left"):
        prepare(settings(text=str(jsonl), tokenizer=str(prepared[0] / "tokenizer")), tmp_path / "out")


def test_builtin_text_is_a_function_of_seed_and_number():
    texts = list(builtin_documents(40, seed=1))
    assert list(builtin_documents(40, seed=1, skip=30)) == texts[30:]
    assert not set(texts) & set(builtin_documents(40, seed=2))
    assert len(set(texts)) == 40


def test_builtin_text_holds_no_validation_sentence_of_the_builtin_suite():
    text = "\n".join(builtin_documents(300, seed=0))
    for name in BUILTIN:
        for split in load_builtin(name).evaluations:
            assert not any(sentence in text for sentence in (*split.texts, *(split.pairs or ())) if len(sentence) > 60)


def test_a_hub_set_is_streamed_and_goes_on_where_it_broke_off(monkeypatch):
    import datasets

    from crossbert.text import hub_documents

    asked = []

    def load(name, config, **options):
        asked.append((name, config, options))
        rows = [{"text": f"row {number}"} for number in range(6)]
        return datasets.Dataset.from_list(rows).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(hub_documents("owner/name", "en", "train", "abc", "text", skip=4)) == ["row 4", "row 5"]
    assert asked == [("owner/name", "en", {"split": "train", "revision": "abc", "streaming": True})]
    with pytest.raises(DataError, match="no field body"):
        list(hub_documents("owner/name", None, "train", None, "body"))


def test_real_text_comes_back_whole(real_data, tmp_path):
    file = real_data / "local" / "english-text" / "books" / "validation.parquet"
    if not file.exists():
        pytest.skip("the data folder holds no local/english-text")
    texts = pq.read_table(file).column("text").to_pylist()
    manifest = prepare(settings(text=str(file), train_tokenizer=1000, validation_share=0.1), tmp_path / "books")
    assert sum(manifest["documents"].values()) == len(texts)
    assert manifest["characters"] == sum(map(len, texts))
    assert 2 < manifest["characters_per_token"] < 5
    back = documents_of(tmp_path / "books", "train") + documents_of(tmp_path / "books", "validation")
    assert sorted(back) == sorted(texts)


def test_a_set_may_be_held_out_as_a_whole_and_is_then_no_training_data(tiny_data, tmp_path):
    whole = settings(builtin=30, tokenizer=str(tiny_data / "tokenizer"), validation_share=1)
    manifest = prepare(whole, tmp_path / "held")
    assert manifest["documents"] == {"train": 0, "validation": 30}
    data = PreparedData.open(tmp_path / "held")
    data.verify()
    assert len(data.split("validation", 32)) == manifest["tokens"]["validation"] // 32
    with pytest.raises(DataError, match=r"train split \(0 tokens\) holds no whole sequence"):
        data.split("train", 32)
    assert prepare(whole, tmp_path / "held") == manifest
