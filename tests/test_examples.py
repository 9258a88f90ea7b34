"""The examples run as they stand, in seconds."""

from examples import hf_trainer_mlm, plain_loop, sentence_transformers_trainer


def test_hf_trainer_mlm(tmp_path, capsys):
    trainer = hf_trainer_mlm.main(tmp_path)
    assert trainer.state.best_model_checkpoint is not None
    printed = capsys.readouterr().out
    assert all(f"step {step}: eval_frozen" in printed for step in (0, 20, 40, 60))
    assert f"best by frozen_mean_ridge: {trainer.state.best_model_checkpoint}" in printed


def test_plain_loop(tmp_path, capsys):
    plain_loop.main(tmp_path / "run")
    printed = capsys.readouterr().out
    assert all(f"step {step}: frozen_" in printed for step in (20, 40, 60))
    assert len(list((tmp_path / "run").glob("step-*"))) == 3


def test_sentence_transformers_trainer(tmp_path, capsys):
    sentence_transformers_trainer.main(tmp_path)
    assert capsys.readouterr().out.count("linear 0.") == 3
