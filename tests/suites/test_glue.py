"""What a run refuses, so that no stale, mixed or mislabelled number is ever shown."""

import json
import shutil

import numpy as np
import pytest
import torch

import frozenprobe
from frozenprobe.errors import DataError, EncoderError, RecordError, SettingsError
from frozenprobe.records.reading import read_run
from frozenprobe.records.store import RunStore
from frozenprobe.suites import glue
from tests.encoders import tiny

QUICK = {"max_train": 200, "regimes": (), "draws": 1, "bootstrap": 20}


def evaluate(ckpt, out=None, **settings):
    settings.setdefault("probes", QUICK)
    settings.setdefault("features", {"cache": False})
    return frozenprobe.evaluate_glue(ckpt, out=out, **settings)


@pytest.fixture
def own_task(tmp_path):
    """Writes a task of 40 rows; returns its description."""

    def write(name="things", title=None, word="good"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for split in ("train", "dev"):
            rows = [f"{label} {split} {i},{label}" for i in range(20) for label in (word, "bad")]
            (folder / f"{split}.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
        description = folder / "task.toml"
        description.write_text(
            f'name = "{name}"\ntrain = "train.csv"\nevaluation = "dev.csv"\ncolumns = ["text"]\n'
            'label_column = "label"\nlabel_type = "classification"\n' + (f'title = "{title}"\n' if title else "")
        )
        return description

    return write


def test_changed_data_is_never_answered_by_an_old_score(tiny_bert, own_task, tmp_path):
    task = own_task()
    evaluate(tiny_bert, tmp_path / "run", task_files=(task,))
    own_task(word="great")
    with pytest.raises(RecordError, match="scored on other rows than its data has now"):
        evaluate(tiny_bert, tmp_path / "run", task_files=(task,))


def test_another_limit_is_another_run(tmp_path):
    model, tokenizer = tiny.make("bert")
    for length, expected in ((32, None), (6, "encoder.max_length was 32, is 6")):
        encoder = frozenprobe.ModuleEncoder(model, tokenizer, name="run", step=1, max_length=length)
        if expected is None:
            evaluate(encoder, tmp_path / "run", suite="builtin", tasks="builtin-sentiment")
        else:
            with pytest.raises(RecordError, match=expected):
                evaluate(encoder, tmp_path / "run", suite="builtin", tasks="builtin-sentiment")


def test_options_without_effect_on_a_loaded_encoder_are_refused():
    encoder = frozenprobe.ModuleEncoder(*tiny.make("bert"), name="run")
    with pytest.raises(SettingsError, match=r"encoder\.dtype has no effect"):
        evaluate(encoder, suite="builtin", encoder={"dtype": "bf16"})
    frame = evaluate(encoder, suite="builtin", tasks="builtin-sentiment", encoder={"name": "mine"})
    assert set(frame["task"]) == {"builtin-sentiment"}


@pytest.mark.parametrize(("ckpt", "encoder"), [(torch.nn.Linear(2, 2), {}), ("tiny", "fast"), (None, None)])
def test_what_is_no_encoder_is_one_line(ckpt, encoder):
    with pytest.raises(SettingsError, match=r"is no encoder|dictionary of options"):
        evaluate(ckpt, suite="builtin", encoder=encoder)


def test_two_tasks_of_one_name_or_title_are_refused(tiny_bert, own_task):
    with pytest.raises(DataError, match="two tasks are called 'Same'"):
        evaluate(tiny_bert, task_files=(own_task("a", "Same"), own_task("b", "Same")))
    with pytest.raises(DataError, match="two tasks are called 'a'"):
        evaluate(tiny_bert, task_files=(own_task("a"), own_task("a")))


def test_suites_are_never_averaged_together(tiny_bert, own_task):
    with pytest.raises(SettingsError, match="run them apart"):
        evaluate(tiny_bert, task_files=(own_task(),), tasks="cola")


def test_one_train_row_is_refused_before_any_encoding(tiny_bert):
    with pytest.raises(DataError, match="1 train rows used have one label; raise --max-train"):
        evaluate(tiny_bert, suite="builtin", tasks="builtin-sentiment", probes={**QUICK, "max_train": 1})


def test_a_checkpoint_with_more_blocks_than_its_config_says_is_refused(tiny_bert, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(tiny_bert, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(EncoderError, match=r"holds blocks that its config.json does not declare \(encoder.layer.1"):
        evaluate(folder, suite="builtin")


class Broken(torch.nn.Module):
    """Fails on long inputs, or returns what is not finite."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.embedding = torch.nn.Embedding(4096, 8)

    def forward(self, input_ids, attention_mask):
        if self.kind == "fails" and input_ids.shape[1] > 30:
            raise IndexError("index out of range in self")
        hidden = self.embedding(input_ids)
        return hidden / 0 if self.kind == "infinite" else hidden


@pytest.mark.parametrize(
    ("kind", "message"),
    [("infinite", "hidden states are not finite"), ("fails", r"the model fails on \d+ texts of up to \d+ tokens")],
)
def test_a_model_at_fault_is_one_line_that_says_so(kind, message):
    _, tokenizer = tiny.make("bert")
    encoder = frozenprobe.ModuleEncoder(Broken(kind), tokenizer, name="broken")
    with pytest.raises(EncoderError, match=message):
        evaluate(encoder, suite="builtin", tasks="builtin-sentiment")


def test_warnings_stay_with_the_record_and_the_frame(tmp_path):
    encoder = frozenprobe.ModuleEncoder(*tiny.make("bert"), name="run", max_length=4)
    frame = evaluate(encoder, tmp_path / "run", suite="builtin", tasks="builtin-sentiment")
    (line,) = [line for line in frame.attrs["warnings"] if "longer than 4 tokens" in line]
    assert line in read_run(tmp_path / "run").warnings()


def test_another_runs_scores_are_not_given_for_ones_own(tiny_bert, tmp_path, monkeypatch):
    def overwritten_before(folder):
        RunStore(folder, {"identity": {}, "encoder": {"name": "other", "revision": None}}, overwrite=True)
        return read_run(folder)

    monkeypatch.setattr(glue, "read_run", overwritten_before)
    with pytest.raises(RecordError, match="overwritten by another run meanwhile"):
        evaluate(tiny_bert, tmp_path, suite="builtin", tasks="builtin-sentiment")


def test_a_new_name_is_taken_on_resume(tiny_bert, tmp_path):
    for name in ("old", "new"):
        evaluate(tiny_bert, tmp_path, suite="builtin", tasks="builtin-sentiment", encoder={"name": name})
    assert read_run(tmp_path).name == "new"


def test_the_papers_interval_of_every_metric_follows_the_same_choice(tiny_bert):
    frame = evaluate(tiny_bert, suite="builtin", tasks="builtin-acceptability", probes={**QUICK, "bootstrap": 200})
    paper = frame[(frame["protocol"] == "paper") & (frame["probe"] == "ridge")]
    assert set(paper["metric"]) == {"matthews", "accuracy"}
    assert np.isfinite(paper[["low", "high"]].to_numpy(dtype=float)).all()
