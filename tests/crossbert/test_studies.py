"""Which runs a sweep is made of."""

import re
import tomllib
from pathlib import Path

import pytest

import crossbert
from crossbert.cli import main
from crossbert.scaling import NAMED, count_parameters
from crossbert.settings import SweepSettings
from crossbert.studies import STUDIES, as_axes, flat, members, read_axes
from crossbert.sweep import plan
from frozenprobe.errors import SettingsError
from frozenprobe.settings import parse

PAPER = {"table1": "bert-239m", "table6": "bert-239m"}


@pytest.fixture
def of_paper(tiny_data):
    """A study at the paper's own scale, by the printed values of its axes."""

    def read(study):
        found = members(study, PAPER.get(study, "crossbert-279m"), {"data.folder": str(tiny_data)}, {})
        return {", ".join(member.axes.values()): member for member in found}

    return read


def test_several_values_are_an_axis_and_one_is_not():
    fixed, axes = read_axes(["steps=10", "a=1,2.5", "b=x,y z", 'c=["p","q"]', 'd="u,v"', "e=true,false"])
    assert fixed == {"steps": 10, "c": ["p", "q"], "d": "u,v"}
    assert axes == {
        "a": {"1": {"a": 1}, "2.5": {"a": 2.5}},
        "b": {"x": {"b": "x"}, "y z": {"b": "y z"}},
        "e": {"true": {"e": True}, "false": {"e": False}},
    }
    for wrong, message in ((["a=1", "a=2"], "twice"), (["a"], "key=value"), (["a="], "no value")):
        with pytest.raises(SettingsError, match=message):
            read_axes(wrong)


def test_axes_of_a_file_are_lists_or_named_values():
    axes = as_axes(
        {"model": {"mask_ratio": [0.2, 0.5]}, "lr": {"no": {}, "low": {"optimiser": {"learning_rate": 1e-4}}}}
    )
    assert axes["model.mask_ratio"] == {"0.2": {"model.mask_ratio": 0.2}, "0.5": {"model.mask_ratio": 0.5}}
    assert axes["lr"] == {"no": {}, "low": {"optimiser.learning_rate": 1e-4}}
    assert flat({"a": {"b": {"c": 1}}, "d": {}}) == {"a.b.c": 1, "d": {}}
    for wrong in ({"a": 3}, {"a": []}, {"a": {"b": 3}}):
        with pytest.raises(SettingsError, match=r"axes\.a"):
            as_axes(wrong)


def test_every_combination_is_a_run(tiny_config):
    fixed, axes = read_axes(["steps=9", "optimiser.learning_rate=1e-3,2e-3", "data.batch=4,8", "seed=3"])
    found = members(None, str(tiny_config), fixed, axes)
    assert [member.name for member in found] == [
        f"learning_rate={rate},batch={batch}" for rate in (0.001, 0.002) for batch in (4, 8)
    ]
    assert [(m.settings.optimiser.learning_rate, m.settings.data.batch) for m in found] == [
        (rate, batch) for rate in (1e-3, 2e-3) for batch in (4, 8)
    ]
    assert {(m.settings.steps, m.settings.seed) for m in found} == {(9, 3)}


def test_what_only_one_objective_has_is_for_its_runs_alone(tiny_config):
    fixed, axes = read_axes(["model.objective=bert,crossbert", "model.predictor_layers=2"])
    flat_one, crossed = (member.settings.model for member in members(None, str(tiny_config), fixed, axes))
    assert (flat_one.predictor_layers, crossed.predictor_layers) == (0, 2)
    assert (flat_one.mask_ratio, crossed.mask_ratio) == (0.2, 0.5)


def test_whole_configurations_are_an_axis_too(tiny_config, tiny_data):
    fixed, axes = read_axes([f"data.folder={tiny_data}", "config=bert-77m,crossbert-62m"])
    found = members(None, None, fixed, axes)
    assert [member.name for member in found] == ["config=bert-77m", "config=crossbert-62m"]
    assert [member.settings.model.width for member in found] == [576, 640]
    scaling = members("scaling", None, {"data.folder": str(tiny_data)}, {})
    assert len(scaling) == 17
    assert {member.config for member in scaling} < set(NAMED)


def test_the_data_may_be_an_axis(tiny_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the recipe's own folder is not
    (tmp_path / "copy").symlink_to(tiny_data)
    fixed, axes = read_axes([f"data.folder={tiny_data},copy"])
    assert [str(member.settings.data.folder) for member in members(None, "nano", fixed, axes)] == [
        str(tiny_data),
        "copy",
    ]
    fixed, axes = read_axes([f"data.folder={tiny_data},data/mine"])
    with pytest.raises(SettingsError, match=r"^folder=data_mine: data/mine is not prepared data"):
        members(None, "nano", fixed, axes)


def test_one_value_written_twice_is_refused():
    with pytest.raises(SettingsError, match=r"^steps: 1000\.0 and 1000 are the same value"):
        read_axes(["steps=1e3,1000"])
    with pytest.raises(SettingsError, match=r"^seed: 0 and 0 are the same value"):
        read_axes(["seed=0,1,0"])
    with pytest.raises(SettingsError, match=r"^seed: 0 and 0 are the same value"):
        as_axes({"seed": [0, 0]})


def test_an_impossible_run_is_named_before_anything_is_trained(tiny_config):
    fixed, axes = read_axes(["model.mask_ratio=0.5,1.5"])
    with pytest.raises(SettingsError, match=r"^mask_ratio=1\.5: model\.mask_ratio"):
        members(None, str(tiny_config), fixed, axes)
    with pytest.raises(SettingsError, match="no study 'table12'"):
        members("table12", str(tiny_config), {}, {})
    with pytest.raises(SettingsError, match="--config is required"):
        members("table2", None, {}, {})


def test_a_study_gives_the_papers_models_at_the_papers_scale(of_paper):
    base = NAMED["crossbert-279m"].model

    def models(study):
        return {title: member.settings.model for title, member in of_paper(study).items()}

    assert {title: model.mask_ratio for title, model in models("table2").items()} == {
        "20%": 0.2,
        "40%": 0.4,
        "50%": 0.5,
        "65%": 0.65,
    }
    assert not any(model.complementary for model in models("table2").values())
    assert [model.mask_ratio for model in models("table6").values()] == [0.2, 0.3, 0.4, 0.65]
    assert {model.objective for model in models("table6").values()} == {"bert"}
    shapes = models("table4")
    assert list(shapes) == ["192 x 12", "384 x 12", "576 x 12", "768 x 12", "768 x 6"]
    counted = [count_parameters(model).predictor / 1e6 for model in shapes.values()]
    assert [f"{millions:.2f}" for millions in counted] == ["7.96", "24.77", "50.43", "84.93", "42.47"]
    assert [model.predictor_heads for model in shapes.values()] == [3, 6, 9, 12, 12]
    words = {"vocabulary": 401}  # the data's
    assert shapes["768 x 6"] == models("table5")["yes"] == base.model_copy(update=words)
    assert models("table5")["no"].complementary is False
    same = {
        name: NAMED[name].model.model_copy(update=words) for name in ("bert-239m", "crossbert-279m", "electra-258m")
    }
    assert list(models("table3").values()) == [same["bert-239m"], same["crossbert-279m"], same["electra-258m"]]
    layers = of_paper("table1")[""].probe["features"]["layers"]
    assert layers == ("last", 27, 26, 25, 20)


def test_what_scales_follows_from_the_base(tiny_config):
    found = members("figure7", str(tiny_config), {"steps": 40, "optimiser.learning_rate": 0.01}, {})
    assert len(found) == 15
    assert {member.settings.steps * member.settings.data.batch for member in found} == {320}
    assert {member.settings.optimiser.learning_rate for member in found} == {0.0025, 0.005, 0.01, 0.02, 0.04}
    other = {m.axes["objective"]: m for m in members("table9", str(tiny_config), {}, {}) if m.name.endswith("yes")}
    assert {m.settings.optimiser.learning_rate for m in other.values()} == {0.005}
    assert {m.settings.seed for m in other.values()} == {1}


def test_an_axis_of_ones_own_takes_the_place_of_the_studys(tiny_config):
    found = members("table2", str(tiny_config), *read_axes(["model.mask_ratio=0.25,0.75"]))
    assert [member.settings.model.mask_ratio for member in found] == [0.25, 0.75]
    with pytest.raises(SettingsError, match=r"table2 decides model\.mask_ratio"):
        members("table2", str(tiny_config), {"model.mask_ratio": 0.3}, {})
    with pytest.raises(SettingsError, match=r"table2 decides model\.complementary"):
        members("table2", str(tiny_config), {"model.complementary": True}, {})


def test_every_study_fits_a_small_base(tiny_config):
    for study in set(STUDIES) - {"scaling"}:
        found = members(study, str(tiny_config), {"model.heads": 4, "model.layers": 4}, {})
        assert len({member.name for member in found}) == len(found) >= 1


PAGE = (Path(crossbert.__file__).parent.parent / "docs" / "pretraining.md").read_text()


def test_the_page_and_the_help_name_every_study(capsys):
    rows = re.findall(r"^\| (`[^|]*`) \|", PAGE.split("| study |")[1].split("\n\n")[0], re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(STUDIES)
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"a study of the paper ({', '.join(STUDIES)})" in shown


def test_the_file_of_the_page_is_a_sweep(tiny_data, tmp_path):
    block = PAGE.split('    config = "nano"\n')[1].split("\n\n")[0]
    text = 'config = "nano"\n' + "\n".join(line.removeprefix("    ") for line in block.splitlines())
    settings = parse(SweepSettings, tomllib.loads(text.replace("data/mine", str(tiny_data))))
    jobs = plan(settings, tmp_path)
    assert len(jobs) == 6
    assert jobs[0].member.name == "seed=0,size=narrow"
    assert [job.settings.model.width for job in jobs[:2]] == [64, 256]
    assert jobs[1].settings.optimiser.learning_rate == 1e-3
    assert jobs[0].probe == {"suite": "builtin"}
    assert jobs[0].settings.system.keep == 0  # all checkpoints are probed
