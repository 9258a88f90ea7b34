"""The three objectives against slow, independent ways to compute the same."""

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from crossbert.masking import draw_permutations
from crossbert.model import build_model, sample
from crossbert.modeling_crossbert import EVERYTHING, attend
from tests.crossbert import tiny

RATIOS = [0.5, 0.25, 0.65]
DOCUMENTS = torch.tensor([[0] * 9 + [1] * 14 + [2], [3] * 24, [4] * 2 + [5] * 22])


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_same(one, other, tolerance):
    for name, gradient in one.items():
        assert (gradient - other[name]).abs().max() <= tolerance * max(1, gradient.abs().max()), name


def isolating_mask(model, ids, permutations, documents=None):
    """CMS the slow way: both views of the whole sequence, unmasked tokens hidden by attention masks alone."""
    length, visible = ids.shape[1], model.config.visible
    positions = torch.arange(length)[None]
    total, count = 0.0, 0
    parts = [(permutations[:, :visible], permutations[:, visible:])]
    if model.config.complementary:
        parts.append(parts[0][::-1])
    for seen, _ in parts:
        sees = torch.zeros_like(ids, dtype=torch.bool).scatter(1, seen, True)
        mask = sees[:, None, None, :].expand(-1, 1, length, -1)
        counted = ~sees
        if documents is not None:
            mask = mask & (documents[:, :, None] == documents[:, None, :])[:, None]
            reachable = mask.any(dim=-1, keepdim=True)
            counted = counted & reachable[:, 0, :, 0]
            mask = mask | ~reachable  # rows that nothing is computed from
        hidden = model.encoder.encode(model.encoder.embedding(ids), positions, mask)
        readout = model.predictor(hidden, positions.expand_as(ids), positions, mask)
        losses = F.cross_entropy(model.logits(readout).transpose(1, 2), ids, reduction="none")
        total, count = total + losses[counted].sum(), count + int(counted.sum())
    return total / count, count


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("complementary", [True, False])
@pytest.mark.parametrize("document_mask", [False, True])
def test_gathering_equals_the_isolating_mask(ratio, complementary, document_mask):
    model = tiny.model(
        mask_ratio=ratio,
        complementary=complementary,
        document_mask=document_mask,
        predictor_width=16,
        predictor_layers=2,
        predictor_heads=2,
    )
    ids, permutations = tiny.batch()
    documents = DOCUMENTS if document_mask else None
    loss, predicted, _ = model(ids, permutations, documents)
    loss.backward()
    fast = gradients(model)
    model.zero_grad()
    expected, count = isolating_mask(model, ids, permutations, documents)
    expected.backward()
    assert abs(loss - expected) < 1e-6 * expected
    assert predicted == count
    assert_same(fast, gradients(model), 1e-5)


@pytest.mark.parametrize("ratio", RATIOS)
def test_views_are_disjoint_and_complete_and_predict_every_token_once(ratio):
    model = tiny.model(mask_ratio=ratio)
    ids, permutations = tiny.batch()
    _, targets, counted = model.predict(ids, permutations)
    assert counted is None
    assert targets.numel() == ids.numel()
    # What is predicted stays in its row, so the multiset of each row's words is the row.
    assert torch.equal(targets.reshape(len(ids), -1).sort(dim=1).values, ids.sort(dim=1).values)
    seen = permutations[:, : model.config.visible]
    predicted = permutations[:, model.config.visible :]
    assert torch.equal(torch.cat((seen, predicted), dim=1).sort(dim=1).values, torch.arange(24).expand(3, -1))


@pytest.mark.parametrize(
    "shape",
    [
        *({"mask_ratio": r, "complementary": c} for r in RATIOS for c in (True, False)),
        {"objective": "bert"},
        {"objective": "electra"},
    ],
)
def test_a_masked_tokens_content_moves_no_logit_of_its_own_view(shape):
    model = tiny.model(**shape).eval()
    ids, permutations = tiny.batch()
    visible = model.config.visible
    with torch.no_grad():
        before = model.predict(ids, permutations)
        hidden_word = ids.scatter(1, permutations[:, -1:], (ids.gather(1, permutations[:, -1:]) + 1) % tiny.VOCABULARY)
        after = model.predict(hidden_word, permutations)
        seen_word = ids.scatter(1, permutations[:, :1], (ids.gather(1, permutations[:, :1]) + 1) % tiny.VOCABULARY)
        moved = model.predict(seen_word, permutations)
    slots = slice(visible, None) if shape.get("complementary") and 2 * visible != tiny.LENGTH else slice(None)
    rows = slice(None, None, 2) if shape.get("complementary") and 2 * visible == tiny.LENGTH else slice(None)
    assert torch.equal(before.logits[rows, slots], after.logits[rows, slots])
    assert not torch.isclose(before.logits[rows, slots], moved.logits[rows, slots]).all()
    if shape.get("complementary"):  # the other view does see it
        assert not torch.equal(before.logits, after.logits)


@pytest.mark.parametrize("shape", [{"mask_ratio": r} for r in RATIOS] + [{"objective": "bert"}])
def test_the_order_of_visible_and_of_predicted_tokens_does_not_matter(shape):
    model = tiny.model(**shape)
    ids, permutations = tiny.batch()
    visible = model.config.visible
    shuffled = torch.cat((permutations[:, :visible].flip(1), permutations[:, visible:].roll(1, dims=1)), dim=1)
    assert abs(model(ids, permutations).loss - model(ids, shuffled).loss) < 1e-5
    swapped = permutations.roll(1, dims=1)  # a token changes sides: now it must differ
    assert abs(model(ids, permutations).loss - model(ids, swapped).loss) > 1e-4


def test_predicted_positions_do_not_see_each_other():
    model = tiny.model().eval()
    ids, permutations = tiny.batch()
    context, queries = permutations[:, :12], permutations[:, 12:]
    with torch.no_grad():
        hidden = model.encoder.encode(model.encoder.embedding(ids.gather(1, context)), context)
        together = model.predictor(hidden, queries, context)
        alone = torch.cat([model.predictor(hidden, queries[:, i : i + 1], context) for i in range(12)], dim=1)
    assert torch.allclose(together, alone, atol=1e-5)


def rope_by_complex_numbers(states, positions, theta):
    """[t, head_width] in float64; dimension i and i + half are one complex number."""
    half = states.shape[-1] // 2
    angles = positions[:, None].double() * theta ** -(torch.arange(half).double() / half)
    turned = torch.complex(states[:, :half], states[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


def rms(states, norm):
    return states / (states.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()


def feed_forward(states, mlp):
    gate, up = (states @ mlp.gate_up.weight.double().T).chunk(2, dim=-1)
    return (gate / (1 + (-gate).exp()) * up) @ mlp.down.weight.double().T


def attention(queries, keys, values, heads, query_positions, key_positions, theta):
    outputs = []
    for q, k, v in zip(queries.chunk(heads, -1), keys.chunk(heads, -1), values.chunk(heads, -1), strict=True):
        scores = rope_by_complex_numbers(q, query_positions, theta) @ rope_by_complex_numbers(k, key_positions, theta).T
        outputs.append((scores / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v)
    return torch.cat(outputs, dim=-1)


def test_blocks_equal_the_textbook_in_float64():
    model = tiny.model(predictor_width=16, predictor_layers=2, predictor_heads=4, rope_theta=100.0).eval()
    ids, permutations = tiny.batch(rows=1)
    ids, permutations = ids[0], permutations[0]
    context, queries = permutations[:12], permutations[12:]
    with torch.no_grad():
        states = model.encoder.embedding.weight.double()[ids[context]]
        for block in model.encoder.blocks:
            q, k, v = (rms(states, block.attention_norm) @ block.attention.qkv.weight.double().T).chunk(3, dim=-1)
            attended = attention(q, k, v, 2, context, context, 100.0)
            states = states + attended @ block.attention.out.weight.double().T
            states = states + feed_forward(rms(states, block.mlp_norm), block.mlp)
        states = rms(states, model.encoder.norm)
        readout = model.predictor.mask.double().expand(12, -1)
        for block in model.predictor.blocks:
            q = rms(readout, block.attention_norm) @ block.attention.q.weight.double().T
            k, v = (states @ block.attention.kv.weight.double().T).chunk(2, dim=-1)
            attended = attention(q, k, v, 4, queries, context, 100.0)
            readout = readout + attended @ block.attention.out.weight.double().T
            readout = readout + feed_forward(rms(readout, block.mlp_norm), block.mlp)
        readout = rms(readout, model.predictor.norm) @ model.predictor.projection.weight.double().T
        logits = readout @ model.encoder.embedding.weight.double().T
        fast = model.predict(ids[None], permutations[None]).logits[0]
    assert torch.allclose(fast.double(), logits, atol=1e-4 * logits.abs().max())


def test_attention_is_the_same_with_and_without_gradients():
    """Training on a CPU spells attention out; everything else uses the fused kernel."""
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(2, 3, length, 8, generator=generator) for length in (5, 7, 7))
    seen = torch.rand(2, 1, 5, 7, generator=generator) > 0.3
    seen[..., 0] = True
    for mask in (None, seen, seen[:, :, :1]):
        spelled_out = attend(queries, keys, values, mask, EVERYTHING)
        with torch.no_grad():
            fused = attend(queries, keys, values, mask, EVERYTHING)
        torch.testing.assert_close(spelled_out, fused, rtol=1e-5, atol=1e-6)


def test_bert_equals_masking_in_place_and_logits_everywhere_change_nothing():
    model, everywhere = tiny.model(objective="bert"), tiny.model(objective="bert", logits_everywhere=True)
    ids, permutations = tiny.batch()
    masked = torch.zeros_like(ids, dtype=torch.bool).scatter(1, permutations[:, model.config.visible :], True)
    embedded = torch.where(masked[..., None], model.mask, model.encoder.embedding(ids))
    hidden = model.encoder.encode(embedded, torch.arange(24)[None])
    expected = F.cross_entropy(model.logits(hidden)[masked], ids[masked])
    loss, predicted, _ = model(ids, permutations)
    assert abs(loss - expected) < 1e-5
    assert predicted == 3 * math.floor(24 * 0.2)
    assert abs(everywhere(ids, permutations).loss - expected) < 1e-5


def test_electra_is_the_sum_of_its_terms():
    model = tiny.model(objective="electra", generator_width=16, generator_heads=1)
    ids, permutations = tiny.batch()
    noise = model.draw_noise(0, 0, range(3))
    visible = model.config.visible
    logits, targets, _ = model.predict(ids, permutations)
    replaced = ids.scatter(1, permutations[:, visible:], sample(logits, noise))
    hidden = model.encoder(replaced).last_hidden_state
    scores = model.discriminator(hidden)[..., 0]
    detection = F.binary_cross_entropy_with_logits(scores, (replaced != ids).float())
    masked_lm = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss, predicted, parts = model(ids, permutations, noise=noise)
    assert abs(loss - (masked_lm + 50 * detection)) < 1e-4
    assert predicted == 3 * math.floor(24 * 0.15)
    assert abs(parts["masked_lm"] - masked_lm) < 1e-5
    assert abs(parts["detection"] - detection) < 1e-5
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    with pytest.raises(ValueError, match="draw_noise"):
        model(ids, permutations)


def test_sampling_follows_the_distribution():
    logits = torch.tensor([0.0, 2.0, -torch.inf, 1.0]).expand(1, 40_000, 4)
    drawn = sample(logits, torch.rand(1, 40_000, generator=torch.Generator().manual_seed(0)))
    share = torch.bincount(drawn.flatten(), minlength=4) / 40_000
    assert (share - logits[0, 0].softmax(dim=0)).abs().max() < 0.01
    assert share[2] == 0
    edges = sample(logits[:, :2], torch.tensor([[0.0, 1 - 2**-24]]))
    assert edges.tolist() == [[0, 3]]


@pytest.mark.parametrize(
    "shape", [{"mask_ratio": r} for r in RATIOS] + [{"objective": "bert"}, {"objective": "electra"}]
)
def test_the_document_mask_isolates_documents_and_never_leaves_a_query_without_a_key(shape):
    model = tiny.model(document_mask=True, **shape).eval()
    ids, _ = tiny.batch()
    # Documents 0 and 1 have words on both sides in every objective; the one word of document 2 is hidden.
    last = [15, 5, 23]
    permutations = torch.tensor([p for p in [*range(0, 24, 2), *range(1, 24, 2)] if p not in last] + last).expand(3, -1)
    noise = model.draw_noise(0, 0, range(3))
    result = model(ids, permutations, DOCUMENTS, noise)
    assert torch.isfinite(result.loss)
    with torch.no_grad():
        before = model.predict(ids, permutations, DOCUMENTS)
        other = ids.clone()
        other[0, 9:] = (other[0, 9:] + 1) % tiny.VOCABULARY  # documents 1 and 2 change, document 0 does not
        after = model.predict(other, permutations, DOCUMENTS)
    assert before.counted is not None
    electra = model.config.objective == "electra"  # whose terms have denominators that no batch changes
    assert before.counted.sum() < before.counted.numel()
    assert result.predicted == (before.counted.numel() if electra else before.counted.sum())
    document = model.predict(DOCUMENTS, permutations, DOCUMENTS).targets  # the same layout, documents for words
    assert not before.counted[document == 2].any()
    first = (document == 0) & before.counted
    assert first.any()
    assert torch.equal(before.logits[first], after.logits[first])
    assert not torch.equal(before.logits[document == 1], after.logits[document == 1])
    with pytest.raises(ValueError, match="document"):
        model(ids, permutations, None, noise)


@pytest.mark.parametrize("objective", ["crossbert", "bert", "electra"])
def test_pieces_of_a_batch_make_the_loss_of_the_whole(objective):
    """Although under the document mask each of them predicts another number of words."""
    model = tiny.model(objective=objective, document_mask=True, mask_ratio=0.4)
    ids, permutations = tiny.batch(rows=4)
    documents = torch.stack([torch.arange(24) // length for length in (24, 4, 2, 1)])
    noise = model.draw_noise(0, 0, range(4))

    def loss(rows):
        return model(ids[rows], permutations[rows], documents[rows], None if noise is None else noise[rows])

    whole, *pieces = (loss(rows) for rows in (slice(0, 4), slice(0, 2), slice(2, 4)))
    assert sum(piece.predicted for piece in pieces) == whole.predicted
    total = sum(piece.loss * piece.predicted for piece in pieces)
    assert abs(total / whole.predicted - whole.loss) < 1e-5


def test_positions_are_relative_and_matter():
    model = tiny.model().encoder.eval()
    ids, _ = tiny.batch()
    with torch.no_grad():
        here, there, scaled = (
            model(ids, position_ids=positions).last_hidden_state
            for positions in (torch.arange(24)[None], torch.arange(24)[None] + 100, torch.arange(24)[None] * 2)
        )
    assert torch.allclose(here, there, atol=1e-4)
    assert not torch.allclose(here, scaled, atol=1e-1)


@pytest.mark.parametrize("objective", ["crossbert", "bert", "electra"])
def test_the_head_is_the_embedding_and_stays_it(objective):
    model = tiny.model(objective=objective)
    state = model.state_dict()
    assert [name for name, value in state.items() if tiny.VOCABULARY in value.shape] == ["encoder.embedding.weight"]
    other = tiny.model(objective=objective)
    other.init_weights(1)
    other.load_state_dict(state)
    with torch.no_grad():
        other.encoder.embedding.weight += 1
    assert torch.allclose(other.logits(torch.ones(32)), model.logits(torch.ones(32)) + 32, atol=1e-4)


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model = tiny.model(objective="electra", generator_width=16, generator_heads=1, init_std=0.05)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.device("meta"):
        empty = build_model(model.config)
    assert all(parameter.is_meta for parameter in empty.parameters())
    empty.to_empty(device="cpu").init_weights(0)
    for (name, one), other in zip(model.named_parameters(), empty.parameters(), strict=True):
        assert torch.equal(one, other), name
        if "norm" in name:
            assert (one == 1).all(), name
        else:
            assert abs(one.std() - 0.05) < 0.02, name
    empty.init_weights(1)
    assert not torch.equal(model.encoder.embedding.weight, empty.encoder.embedding.weight)
    assert dict(model.named_buffers()) == {}


def test_blocks_to_shard_are_all_blocks():
    model = tiny.model(predictor_layers=3)
    assert model.shardable() == [*model.encoder.blocks, *model.predictor.blocks]
    inside = {id(parameter) for block in model.shardable() for parameter in block.parameters()}
    outside = {name for name, parameter in model.named_parameters() if id(parameter) not in inside}
    assert outside == {"encoder.embedding.weight", "encoder.norm.weight", "predictor.mask", "predictor.norm.weight"}


@pytest.mark.parametrize("objective", ["crossbert", "bert", "electra"])
def test_bf16_autocast_is_close_and_the_loss_stays_float32(objective):
    model = tiny.model(objective=objective, init_std=0.05)
    ids, permutations = tiny.batch()
    noise = model.draw_noise(0, 0, range(3))
    exact = model(ids, permutations, None, noise).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ids, permutations, None, noise).loss
    assert loss.dtype == torch.float32
    assert abs(loss - exact) < 0.02 * exact


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "backend"),
    [
        ({}, "inductor"),
        ({"mask_ratio": 0.25}, "aot_eager"),
        ({"objective": "bert"}, "aot_eager"),
        ({"objective": "electra"}, "aot_eager"),
        ({"document_mask": True}, "aot_eager"),
    ],
)
def test_compile_gives_one_graph_for_all_masks(shape, backend):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model = tiny.model(**shape)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, dynamic=False, fullgraph=True, backend=counter)
    for step in range(3):
        ids, _ = tiny.batch(seed=step)
        permutations = draw_permutations(0, step, range(3), tiny.LENGTH)
        documents = DOCUMENTS if shape.get("document_mask") else None
        noise = model.draw_noise(0, step, range(3))
        model.zero_grad()
        loss = compiled(ids, permutations, documents, noise).loss
        loss.backward()
        fast = gradients(model)
        model.zero_grad()
        expected = model(ids, permutations, documents, noise).loss
        expected.backward()
        assert abs(loss - expected) < 1e-5 * expected
        assert_same(fast, gradients(model), 1e-4)
    assert counter.frame_count == 1
