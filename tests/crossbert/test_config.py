import pytest

from crossbert.config import ModelConfig
from frozenprobe.errors import SettingsError
from frozenprobe.settings import parse


def test_defaults_are_the_papers_choices_of_each_objective():
    crossbert = parse(ModelConfig, {})
    assert (crossbert.width, crossbert.layers, crossbert.vocabulary) == (768, 28, 50265)
    assert (crossbert.mask_ratio, crossbert.complementary, crossbert.predictor_width) == (0.5, True, 768)
    assert (crossbert.predictor_layers, crossbert.predictor_heads, crossbert.generator_layers) == (7, 12, 0)
    bert = parse(ModelConfig, {"objective": "bert"})
    assert (bert.mask_ratio, bert.complementary, bert.predictor_layers) == (0.2, False, 0)
    electra = parse(ModelConfig, {"objective": "electra"})
    assert (electra.mask_ratio, electra.generator_layers, electra.generator_width) == (0.15, 3, 768)
    assert electra.replaced_token_weight == 50
    assert bert.replaced_token_weight == 0


def test_a_narrow_predictor_keeps_the_encoders_head_width():
    assert parse(ModelConfig, {"predictor_width": 192}).predictor_heads == 3


@pytest.mark.parametrize("objective", ["crossbert", "bert", "electra"])
def test_what_a_checkpoint_stores_reads_back_without_defaults(objective):
    config = parse(ModelConfig, {"objective": objective})
    assert set(config.model_dump()) == set(ModelConfig.model_fields)
    assert parse(ModelConfig, config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("length", "ratio", "masked"), [(512, 0.5, 256), (512, 0.2, 102), (512, 0.15, 76), (100, 0.29, 29), (10, 0.3, 3)]
)
def test_the_masked_count_is_the_floor_of_s_times_r(length, ratio, masked):
    config = parse(ModelConfig, {"sequence_length": length, "mask_ratio": ratio})
    assert (config.masked, config.visible) == (masked, length - masked)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"objective": "gpt"}, "'crossbert', 'bert' or 'electra'"),
        ({"width": "wide"}, "width: should be a valid integer"),
        ({"width": -4}, "width: should be greater"),
        ({"heads": 5}, "width 768 over heads 5"),
        ({"predictor_width": 100, "predictor_heads": 3}, "predictor_width 100 over predictor_heads 3"),
        ({"predictor_layers": 0}, "at least 1"),
        ({"mask_ratio": 1.0}, "mask_ratio: should be less than 1"),
        ({"mask_ratio": 0.001}, "predicts 0 positions"),
        ({"mask_ratio": float("nan")}, "mask_ratio"),
        ({"objective": "bert", "complementary": True}, "complementary belongs to objective crossbert"),
        ({"objective": "bert", "predictor_layers": 2}, "predictor_layers belongs to objective crossbert"),
        ({"generator_layers": 2}, "generator_layers belongs to objective electra"),
        ({"logits_everywhere": True}, "logits_everywhere belongs to objective bert"),
        ({"depth": 3}, "unknown setting depth; allowed are objective"),
    ],
)
def test_an_impossible_value_is_one_line(values, message):
    with pytest.raises(SettingsError, match=message):
        parse(ModelConfig, values)
