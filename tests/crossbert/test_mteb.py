"""A CrossBERT on MTEB: its predictor is what a warm start begins with, alone and taken from its folder again."""

import json

import pytest

from frozenprobe.cli.main import main
from frozenprobe.records.reading import read_run
from tests.contrastive.conftest import make_rows
from tests.crossbert.checkpoints import write_checkpoint
from tests.suites.mteb import rows


def mteb(*argv):
    with pytest.raises(SystemExit) as exit_:
        main(["mteb", *map(str, argv)])
    return exit_.value.code


def test_a_warm_start_from_the_predictor_is_trained_scored_and_loaded_again(tmp_path, capsys):
    write_checkpoint(tmp_path / "run")
    triples = tmp_path / "triples.jsonl"
    triples.write_text("".join(json.dumps(row) + "\n" for row in make_rows(40)))
    common = ["--ckpt", tmp_path / "run/step-1", "--data-dir", rows.write(tmp_path / "copies"), "--tasks", "BIOSSES"]
    common += ["--no-cache"]
    training = ["--train-data", triples, "--batch-size", "16", "--lr", "1e-3", "--held-out", "4"]
    out = tmp_path / "warm"
    assert mteb(*common, "--frozen", "--warm-start", *training, "--out", out) == 0
    output = capsys.readouterr()
    assert "held-out nDCG@10" in output.out.replace("\n", " ")
    assert "is not exported: the adapter 'crossbert' has no transformer to save" in output.err
    warm = read_run(out)
    assert warm.manifest["encoder"]["name"] == "run/step-1"
    config = json.loads((out / "pooler/poolers/pooler/config.json").read_text())
    assert config["settings"]["warm_start"] is True
    assert mteb(*common, "--pooler", out / "pooler/poolers/pooler", "--out", tmp_path / "again", "--quiet") == 0
    values = [[row["value"] for row in read_run(folder).units[0].rows] for folder in (out, tmp_path / "again")]
    assert values[0] == values[1]
