"""Raw training checkpoints as frozenprobe encoders, and the predictor as a warm pooler."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_weights
from safetensors.torch import save_file

import frozenprobe
from crossbert.encoder import PredictorPooler
from crossbert.export import export
from crossbert.probe import adapter
from crossbert.scaling import flops_per_position
from frozenprobe.encoders.base import Encoder, Finetunable, HasWarmPooler
from frozenprobe.encoders.contract import check_padding
from frozenprobe.encoders.module import ModuleEncoder
from frozenprobe.encoders.registry import Adapter, claim, load_encoder
from frozenprobe.errors import EncoderError
from frozenprobe.settings import EncoderSettings
from tests.crossbert import tiny
from tests.crossbert.checkpoints import write_checkpoint
from tests.encoders.tiny import byte_bpe

TEXTS = ["the fox", "a quick encoder jumps over a lazy probe"]


def load(path, **options):
    return adapter.load(EncoderSettings(ckpt=str(path), **options), str(path))


def hidden(encoder, layers=("last",)):
    batch = encoder.collate(encoder.tokenize(TEXTS), np.arange(2))
    seen = {}
    encoder.forward(batch, layers, lambda layer, states: seen.update({layer: states.clone()}))
    return batch, {layer: states.clone() for layer, states in seen.items()}  # outside inference mode, for training


@pytest.mark.parametrize("objective", ["crossbert", "bert", "electra"])
def test_a_checkpoint_is_an_encoder_as_it_is(tmp_path, objective):
    model = write_checkpoint(tmp_path / "run", 20, objective=objective)
    encoder = load(tmp_path / "run/step-20")
    assert isinstance(encoder, Encoder)
    assert encoder.info.name == "run/step-20"
    assert encoder.info.kind == "crossbert"
    positions = 20 * 8 * tiny.LENGTH * (2 if objective == "crossbert" else 1)
    assert encoder.info.training_flops == pytest.approx(positions * flops_per_position(model.config, "paper"))
    assert (encoder.info.layers, encoder.info.hidden_size, encoder.info.max_length) == (2, 32, tiny.LENGTH)
    assert encoder.info.parameters == sum(p.numel() for p in model.encoder.parameters())
    assert isinstance(encoder, HasWarmPooler) == (objective == "crossbert")
    check_padding(encoder)
    batch, seen = hidden(encoder, (0, 1, 2, "last"))
    ids = batch.ids[:1, batch.mask[0]]
    with torch.no_grad():
        embedded = model.encoder.embedding(ids)
        expected = model.encoder.encode(embedded, torch.arange(ids.shape[1])[None])
    assert torch.allclose(seen["last"][0, batch.mask[0]], expected[0], atol=1e-5)
    assert torch.equal(seen[0][0, batch.mask[0]], embedded[0])
    assert torch.allclose(model.encoder.norm(seen[2]), seen["last"], atol=1e-5)


def test_the_encoder_of_a_model_in_training_is_measured_where_it_is(tmp_path):
    model = write_checkpoint(tmp_path / "run", 7).train()
    live = ModuleEncoder(model.encoder, byte_bpe(max_length=tiny.LENGTH), name="run", step=7)
    _, expected = hidden(load(tmp_path / "run"), (0, 1, 2, "last"))
    _, seen = hidden(live, (0, 1, 2, "last"))
    for layer, states in expected.items():
        assert torch.allclose(seen[layer], states, atol=1e-6)
    assert model.encoder.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_run_is_its_newest_complete_step(tmp_path):
    for step in (9, 100, 20):
        write_checkpoint(tmp_path / "run", step)
    assert load(tmp_path / "run").info.name == "run/step-100"
    (tmp_path / "run/step-100/COMPLETE").unlink()
    assert load(tmp_path / "run").info.name == "run/step-20"
    with pytest.raises(EncoderError, match="step-100 is not complete"):
        load(tmp_path / "run/step-100")


def test_who_claims_it(tmp_path):
    from frozenprobe.encoders.huggingface import adapter as hf

    write_checkpoint(tmp_path / "run", 3)
    adapters = {"hf": hf, "crossbert": adapter}
    assert isinstance(adapter, Adapter)
    assert claim(str(tmp_path / "run"), adapters, {})[0] is adapter
    assert claim(str(tmp_path / "run/step-3"), adapters, {})[0] is adapter
    (tmp_path / "run/step-3/COMPLETE").unlink()
    assert claim(str(tmp_path / "run/step-3"), adapters, {})[0] is adapter  # to say that it is incomplete
    assert adapter.sniff(str(tmp_path)) == 0
    assert adapter.sniff("owner/name") == 0


@pytest.mark.parametrize("objective", ["crossbert", "bert", "electra"])
def test_an_exported_folder_keeps_its_predictor(tmp_path, objective):
    write_checkpoint(tmp_path / "run", objective=objective)
    export(tmp_path / "run", tmp_path / "exported")
    assert adapter.sniff(str(tmp_path / "exported")) == 30
    raw, exported = load(tmp_path / "run"), load(tmp_path / "exported")
    assert (exported.info.name, exported.info.kind) == ("exported", "crossbert")
    assert exported.info.parameters == raw.info.parameters
    assert exported.info.training_flops == raw.info.training_flops > 0
    batch, seen = hidden(raw)
    _, again = hidden(exported)
    assert torch.allclose(again["last"], seen["last"], atol=1e-6)
    assert isinstance(exported, HasWarmPooler) == (objective == "crossbert")
    if objective == "crossbert":
        vectors = raw.warm_pooler()(seen["last"], batch.mask)
        assert torch.allclose(exported.warm_pooler()(seen["last"], batch.mask), vectors, atol=1e-6)
        floor, same = (load(tmp_path / "exported", random_init=True).warm_pooler() for _ in range(2))
        assert torch.equal(floor.predictor.mask, same.predictor.mask)
        assert not torch.allclose(floor(seen["last"], batch.mask), vectors, atol=1e-2)
        weights = load_weights((tmp_path / "exported/model.safetensors").read_bytes())
        del weights["predictor.mask"]
        save_file(weights, tmp_path / "exported/model.safetensors", {"format": "pt"})
        with pytest.raises(EncoderError, match=r"lacks 1 weights of the predictor \(predictor.mask"):
            load(tmp_path / "exported")


def test_finding_and_sniffing_import_nothing_heavy():
    code = "import sys; from crossbert.probe import adapter; adapter.sniff('.'); "
    code += "assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_options_change_what_they_say(tmp_path):
    write_checkpoint(tmp_path / "run")
    plain = load(tmp_path / "run")
    assert load(tmp_path / "run", max_length=8).info.max_length == 8
    assert load(tmp_path / "run", dtype="bf16").info.dtype == "bf16"
    floor, again, other = (load(tmp_path / "run", random_init=True, init_seed=seed) for seed in (5, 5, 6))
    assert "random" in floor.info.name
    assert floor.info.training_flops is None
    assert floor.fingerprint() == again.fingerprint()
    assert len({plain.fingerprint(), floor.fingerprint(), other.fingerprint()}) == 3
    for options, message in (
        ({"attn": "eager"}, "--attn eager"),
        ({"revision": "main"}, "--revision main"),
        ({"max_length": 2}, "leaves no room"),
    ):
        with pytest.raises(EncoderError, match=message):
            load(tmp_path / "run", **options)


@pytest.mark.parametrize("name", ["nothing", "Nano"])
def test_a_name_that_ships_not_with_the_package_is_refused_without_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("crossbert.encoder.load_exported", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(EncoderError, match=f"--ckpt crossbert:{name}: .*ships with the package: crossbert:nano"):
        load_encoder(f"crossbert:{name}")


def test_a_tokenizer_with_more_words_than_the_model_is_refused(tmp_path):
    write_checkpoint(tmp_path / "run", vocabulary=200)
    with pytest.raises(EncoderError, match="300 words, but the model has 200"):
        load(tmp_path / "run")


@pytest.mark.parametrize("width", [32, 16])
def test_the_warm_pooler_is_one_mask_query_at_position_zero(tmp_path, width):
    model = write_checkpoint(tmp_path / "run", predictor_width=width, predictor_layers=2, predictor_heads=2)
    encoder = load(tmp_path / "run")
    batch, seen = hidden(encoder)
    pooler = encoder.warm_pooler()
    vectors = pooler(seen["last"], batch.mask)
    assert vectors.shape == (2, width)
    for row in range(2):  # by the trained model itself: the readout at position 0 of a text without padding
        context = seen["last"][row : row + 1, batch.mask[row]]
        zero, positions = torch.zeros(1, 1), torch.arange(context.shape[1])[None]
        expected = model.predictor.read(context, zero, positions)[0, 0]
        assert torch.allclose(vectors[row], expected, atol=1e-5)
    turned = pooler(seen["last"].flip(1), batch.mask.flip(1))
    assert not torch.allclose(turned[1], vectors[1], atol=1e-3)  # the order of tokens matters
    left = torch.cat((torch.zeros(2, 3, 32), seen["last"]), dim=1), torch.nn.functional.pad(batch.mask, (3, 0))
    assert torch.allclose(pooler(*left), vectors, atol=1e-5)  # padding on the left does not


def test_the_warm_pooler_is_a_trainable_copy(tmp_path):
    write_checkpoint(tmp_path / "run", predictor_width=16, predictor_heads=2)
    encoder = load(tmp_path / "run", dtype="bf16")
    batch, seen = hidden(encoder)
    pooler, untouched = encoder.warm_pooler(), encoder.warm_pooler()
    assert isinstance(pooler, PredictorPooler)
    pooler(seen["last"].float(), batch.mask).square().sum().backward()
    assert all(p.dtype == torch.float32 and p.grad is not None for p in pooler.parameters())
    with torch.no_grad():
        for parameter in pooler.parameters():
            parameter.zero_()
    assert untouched.predictor.mask.abs().sum() > 0
    assert encoder.warm_pooler().predictor.mask.abs().sum() > 0


@pytest.mark.parametrize("objective", ["crossbert", "bert"])
def test_steps_and_exported_folders_are_finetuned(tmp_path, objective):
    write_checkpoint(tmp_path / "run", objective=objective)
    export(tmp_path / "run", tmp_path / "exported")
    for ckpt, dtype in ((tmp_path / "run/step-1", "bf16"), (tmp_path / "exported", "fp32")):
        frame = frozenprobe.evaluate_glue(
            ckpt,
            suite="builtin",
            tasks="builtin-paraphrase",
            unfrozen=True,
            encoder={"dtype": dtype},
            probes={"bootstrap": 20, "max_evaluated": 40},
            finetune={"seeds": (0,), "epochs": 1, "max_train": 32},
        )
        assert set(frame["training"]) == {"finetuned"}
        assert frame["value"].notna().all()


def test_a_finetuned_copy_learns_and_the_encoder_stays(tmp_path):
    write_checkpoint(tmp_path / "run")
    encoder = load(tmp_path / "run")
    assert isinstance(encoder, Finetunable)
    before = encoder.fingerprint()
    batch, seen = hidden(encoder)
    copied = encoder.trainable()
    assert torch.allclose(copied(batch.ids, batch.mask, batch.types)[batch.mask], seen["last"][batch.mask], atol=1e-5)
    copied(batch.ids, batch.mask).square().sum().backward()
    assert all(parameter.grad is not None for parameter in copied.parameters())
    torch.optim.SGD(copied.parameters(), 0.1).step()
    assert encoder.fingerprint() == before
