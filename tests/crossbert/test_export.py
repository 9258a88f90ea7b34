"""Exported folders load elsewhere, and give what the trained model gives (C15)."""

import argparse
import json
import subprocess
import sys

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

import crossbert.modeling_crossbert as local
from crossbert.commands import export as command
from crossbert.export import export
from frozenprobe.errors import EncoderError, FrozenprobeError, SettingsError
from frozenprobe.settings import EncoderSettings
from tests.crossbert import tiny
from tests.crossbert.checkpoints import write_checkpoint

OBJECTIVES = ["crossbert", "bert", "electra"]
TEXTS = ["the fox", "a quick encoder jumps over a lazy probe", "Whether"]


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """The trained model and its exported folder, by objective."""
    made = {}
    for objective in OBJECTIVES:
        run = tmp_path_factory.mktemp("run") / objective
        made[objective] = (write_checkpoint(run, objective=objective), run.parent / "exported")
        assert export(run, run.parent / "exported") == run / "step-1"
    return made


@pytest.fixture(params=OBJECTIVES)
def exported(request, exports):
    return exports[request.param]


def hidden_states(model, out):
    """The trained model's own hidden states, one text at a time, without any padding."""
    tokenizer = AutoTokenizer.from_pretrained(out)
    rows = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt", truncation=True)["input_ids"]
        with torch.no_grad():
            rows.append(model.encoder.encode(model.encoder.embedding(ids), torch.arange(ids.shape[1])[None])[0])
    return rows


def test_automodel_gives_the_trained_hidden_states(exported):
    model, out = exported
    loaded = AutoModel.from_pretrained(out).eval()
    assert isinstance(loaded, local.CrossBertModel)
    batch = AutoTokenizer.from_pretrained(out)(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        output = loaded(**batch, output_hidden_states=True)
    for row, mask, expected in zip(
        output.last_hidden_state, batch["attention_mask"].bool(), hidden_states(model, out), strict=True
    ):
        assert torch.allclose(row[mask], expected, atol=1e-5)
    assert len(output.hidden_states) == 3
    assert torch.equal(output.hidden_states[0], loaded.get_input_embeddings()(batch["input_ids"]))


def test_the_masked_lm_loss_is_the_trained_models(exported):
    model, out = exported
    if model.config.objective == "electra":
        with pytest.raises(ValueError, match="AutoModel"):
            AutoModelForMaskedLM.from_pretrained(out)
        return
    ids, permutations = tiny.batch()
    tokenizer = AutoTokenizer.from_pretrained(out)
    ids[ids == tokenizer.mask_token_id] = 7
    with torch.no_grad():
        prediction = model.predict(ids, permutations)
        loaded = AutoModelForMaskedLM.from_pretrained(out).eval()
        visible = model.config.visible
        views = [(permutations[:, visible:], slice(None))]
        if model.config.objective == "crossbert":
            views = [(permutations[:, visible:], slice(0, None, 2)), (permutations[:, :visible], slice(1, None, 2))]
        for hidden, rows in views:
            labels = torch.full_like(ids, -100).scatter(1, hidden, ids.gather(1, hidden))
            masked = torch.where(labels == -100, ids, tokenizer.mask_token_id)
            expected = torch.nn.functional.cross_entropy(
                prediction.logits[rows].flatten(0, 1), prediction.targets[rows].flatten()
            )
            assert abs(loaded(masked, labels=labels).loss - expected) < 1e-5 * expected
            padded = torch.nn.functional.pad(masked, (0, 3), value=1)
            present = torch.nn.functional.pad(torch.ones_like(masked), (0, 3))
            logits = (
                loaded(padded, attention_mask=present)
                .logits[:, :-3]
                .gather(1, hidden[..., None].expand(-1, -1, tiny.VOCABULARY))
            )
            assert torch.allclose(logits, prediction.logits[rows], atol=1e-4)
        nothing_visible = torch.full((1, 5), tokenizer.mask_token_id)
        assert torch.isfinite(loaded(nothing_visible).logits).all()


ELSEWHERE = """
import json, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('crossbert', 'frozenprobe', 'jaxtyping'):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForMaskedLM, AutoTokenizer
folders, texts = json.loads(sys.argv[1])
result = {}
for objective, folder in folders.items():
    vectors = SentenceTransformer(folder, trust_remote_code=True, device='cpu').encode(texts)
    result[objective] = {"vectors": vectors.tolist()}
    if objective != 'electra':
        model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        batch = tokenizer(['the quick <mask> fox <mask> over'], return_tensors='pt')
        result[objective]["loss"] = model(**batch, labels=batch['input_ids'] * 0 + 5).loss.item()
print(json.dumps(result))
"""


def save_again(out, again):
    """Loads an export by this package's own classes, and saves it as whoever finetuned it would."""
    objective = json.loads((out / "config.json").read_text())["objective"]
    auto = AutoModel if objective == "electra" else AutoModelForMaskedLM
    auto.from_pretrained(out).save_pretrained(again)
    AutoTokenizer.from_pretrained(out).save_pretrained(again)
    return again


def test_saving_again_writes_the_source_too(exported, tmp_path):
    _, out = exported
    again = save_again(out, tmp_path / "again")
    source = out / "modeling_crossbert.py"
    assert (again / source.name).read_text() == source.read_text()
    first, second = (json.loads((folder / "config.json").read_text())["auto_map"] for folder in (out, again))
    assert first == second
    encoder = tmp_path / "encoder"
    AutoModel.from_config(AutoModel.from_pretrained(out).config).save_pretrained(encoder)
    assert (encoder / source.name).exists()


@pytest.mark.slow  # two new processes import transformers and sentence-transformers
@pytest.mark.parametrize("times", ["once", "again"])
def test_it_loads_where_this_package_is_not_installed(exports, times, tmp_path):
    folders = {objective: str(out) for objective, (_, out) in exports.items()}
    if times == "again":
        folders = {name: str(save_again(out, tmp_path / name)) for name, (_, out) in exports.items()}
    arguments = [sys.executable, "-c", ELSEWHERE, json.dumps([folders, TEXTS])]
    process = subprocess.run(arguments, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout.splitlines()[-1])
    for objective, (model, out) in exports.items():
        expected = torch.stack([row.mean(dim=0) for row in hidden_states(model, out)])
        assert torch.allclose(torch.tensor(result[objective]["vectors"]), expected, atol=1e-5)
        if objective != "electra":
            batch = AutoTokenizer.from_pretrained(out)(["the quick <mask> fox <mask> over"], return_tensors="pt")
            with torch.no_grad():
                here = AutoModelForMaskedLM.from_pretrained(out).eval()(**batch, labels=batch["input_ids"] * 0 + 5)
            assert abs(result[objective]["loss"] - here.loss) < 1e-5 * here.loss


def test_sentence_transformers_takes_it_after_import_crossbert(exported):
    model, out = exported
    vectors = SentenceTransformer(str(out), device="cpu").encode(TEXTS)
    expected = torch.stack([row.mean(dim=0) for row in hidden_states(model, out)])
    assert torch.allclose(torch.from_numpy(vectors), expected, atol=1e-5)


def test_frozenprobe_measures_it_as_any_other_folder(exported):
    from frozenprobe.encoders.contract import check_padding
    from frozenprobe.encoders.registry import load_encoder

    model, out = exported
    encoder = load_encoder(EncoderSettings(ckpt=f"hf:{out}"))
    assert encoder.info.architecture == "CrossBertModel"
    assert (encoder.info.layers, encoder.info.hidden_size, encoder.info.max_length) == (2, 32, tiny.LENGTH)
    assert encoder.info.parameters == sum(p.numel() for p in model.encoder.parameters())
    check_padding(encoder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import crossbert; from transformers import PreTrainedModel, AutoConfig",
        "from transformers import AutoConfig; import crossbert",
        "from crossbert.model import build_model; from transformers import AutoConfig",
    ],
)
def test_auto_classes_know_it_in_any_order_of_imports(code):
    subprocess.run([sys.executable, "-c", f"{code}; AutoConfig.for_model('crossbert')"], check=True)


def test_importing_crossbert_is_cheap():
    code = "import sys, crossbert; assert not {'torch', 'transformers', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_takes_the_newest_complete_step_and_overwrites_nothing(tmp_path, capsys):
    for step in (9, 10, 11):
        write_checkpoint(tmp_path / "run", step)
    (tmp_path / "run/step-11/COMPLETE").unlink()
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(["--ckpt", str(tmp_path / "run"), "--out", str(tmp_path / "out/x")])
    command.run(arguments)
    assert "step-10" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["x"]
    with pytest.raises(SettingsError, match="not an empty folder"):
        command.run(arguments)
    with pytest.raises(EncoderError, match="not complete"):
        export(tmp_path / "run/step-11", tmp_path / "y")


def test_what_is_damaged_is_refused_and_leaves_nothing(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    with pytest.raises(EncoderError, match="no training checkpoint"):
        export(run, out)
    model = write_checkpoint(run)
    folder = run / "step-1"
    weights = (folder / "model.safetensors").read_bytes()

    def refuse(match):
        with pytest.raises(FrozenprobeError, match=match):
            export(run, out)
        assert not out.exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]

    (folder / "model.safetensors").write_bytes(weights[:1000])
    refuse("cannot be read")
    from safetensors.torch import save_file

    state = model.state_dict()
    save_file(state | {"encoder.norm.weight": torch.full((32,), torch.nan)}, folder / "model.safetensors")
    refuse("encoder.norm.weight is not finite")
    save_file(state | {"encoder.norm.weight": torch.ones(16)}, folder / "model.safetensors")
    refuse("the settings say")
    save_file({name: value for name, value in state.items() if name != "predictor.mask"}, folder / "model.safetensors")
    refuse("lacks weight predictor.mask")
    (folder / "model.safetensors").write_bytes(weights)
    for part in ("model.safetensors", "config.json", "tokenizer/tokenizer.json"):
        (folder / "COMPLETE").write_text(json.dumps({part: 1}))
        refuse(f"{part} is damaged: its checksum")
    (folder / "COMPLETE").write_text("")
    (folder / "config.json").write_text("{")
    refuse("damaged")


def test_bf16_is_close(exported):
    model, out = exported
    loaded = AutoModel.from_pretrained(out, dtype=torch.bfloat16).eval()
    ids = AutoTokenizer.from_pretrained(out)(TEXTS[1], truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = loaded(**ids).last_hidden_state[0]
    assert states.dtype == torch.bfloat16
    assert (states.float() - hidden_states(model, out)[1]).norm() < 0.05 * states.float().norm()


def test_weights_can_be_written_in_bf16(exports, tmp_path, capsys):
    model, whole = exports["crossbert"]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(
        parser.parse_args(["--ckpt", str(whole.parent / "crossbert"), "--out", str(tmp_path / "x"), "--dtype", "bf16"])
    )
    small, large = ((folder / "model.safetensors").stat().st_size for folder in (tmp_path / "x", whole))
    assert small < 0.6 * large
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "x", dtype=torch.float32)
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.bfloat16().float())


def test_weights_too_large_for_a_dtype_are_refused(tmp_path):
    from safetensors.torch import save_file

    state = write_checkpoint(tmp_path / "run").state_dict()
    state["encoder.norm.weight"] = torch.full((32,), 1e5)
    save_file(state, tmp_path / "run/step-1/model.safetensors")
    with pytest.raises(EncoderError, match="too large for fp16"):
        export(tmp_path / "run", tmp_path / "out", "fp16")
    assert not (tmp_path / "out").exists()
    export(tmp_path / "run", tmp_path / "out", "bf16")


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    write_checkpoint(tmp_path / "run")
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); from crossbert.cli import main; main()"
    words = ["export", "--ckpt", tmp_path / "run", "--out", tmp_path / "out"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "out cannot be written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_unknown_attention_kernel_is_refused(exported):
    with pytest.raises(ValueError, match="attn_implementation sdpa"):
        AutoModel.from_pretrained(exported[1], attn_implementation="eager")


def masked_lm(exports, objective):
    """The exported masked LM, and ids without any mask in them."""
    out = exports[objective][1]
    loaded = AutoModelForMaskedLM.from_pretrained(out).eval()
    ids = tiny.batch()[0].clamp_min(10)
    ids[ids == loaded.config.mask_token_id] = 9
    return loaded, ids


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("objective", ["crossbert", "bert"])
def test_padding_moves_nothing_and_a_row_of_it_is_finite(exports, objective, gradients):
    loaded, ids = masked_lm(exports, objective)
    ids[0] = loaded.config.mask_token_id
    present = torch.ones_like(ids)
    present[:, 18:] = 0
    present[1] = 0
    with torch.set_grad_enabled(gradients):
        short = loaded(ids[:, :18], attention_mask=present[:, :18]).logits
        padded = [loaded(torch.where(present == 1, ids, pad), attention_mask=present).logits[:, :18] for pad in (1, 7)]
    rows = [0, 1, 2] if objective == "crossbert" else [0, 2]  # a row of padding still reads each token's own embedding
    for logits in padded:
        assert torch.isfinite(logits).all()
        assert torch.allclose(logits[rows], short[rows], atol=1e-5)
    if gradients:
        padded[0].sum().backward()
        assert all(torch.isfinite(weight.grad).all() for weight in loaded.parameters())


@pytest.mark.parametrize("objective", ["crossbert", "bert"])
def test_the_masked_lm_gives_what_it_is_asked_for(exports, objective):
    loaded, ids = masked_lm(exports, objective)
    with torch.no_grad():
        whole = loaded(ids, labels=ids, output_hidden_states=True)
        assert len(whole.hidden_states) == 3
        expected = loaded.encoder(ids, output_hidden_states=True).hidden_states  # nothing is masked
        assert all(map(torch.equal, whole.hidden_states, expected))
        assert loaded(ids).hidden_states is None
        shifted = torch.arange(ids.shape[1])[None] * 2
        assert torch.equal(loaded(ids, position_ids=shifted // 2).logits, whole.logits)
        assert not torch.allclose(loaded(ids, position_ids=shifted).logits, whole.logits, atol=1e-3)
        asked = loaded(ids, labels=ids, output_hidden_states=True, return_dict=False)
        loaded.config.return_dict = False
        for loss, logits, states in (asked, loaded(ids, labels=ids, output_hidden_states=True)):
            assert (loss, len(states)) == (whole.loss, 3)
            assert torch.equal(logits, whole.logits)
        (last,) = loaded.encoder(ids)
        assert torch.equal(last, expected[-1])
