"""The modern recipe: what it counts, that its cache and savers change nothing, that Muon does what it says."""

import pytest
import torch

from onecard.config import RunConfig, load
from onecard.model import lean
from onecard.model.build import make_model
from onecard.model.generate import Sampling, generate
from onecard.model.modern import SOFT_CAP, ModernGPT
from onecard.planner.params import params
from onecard.train.optim import make_optimizer, optimizer_tensors, restore_optimizer
from onecard.train.optim.muon import orthogonal

TINY = load(
    None, ["recipe=modern", "n_layer=2", "n_head=2", "n_embd=32", "block_size=16", "vocab_size=65"]
)


def rows(seed=1):
    return torch.randint(65, (3, 17), generator=torch.Generator().manual_seed(seed))


def trained(config=TINY, steps=5):
    """A model far enough from its zeros that every path carries something."""
    torch.manual_seed(0)
    model = make_model(config)
    optimizer = make_optimizer(config, model)
    for seed in range(steps):
        step(model, optimizer, seed)
    return model, optimizer


def step(model, optimizer, seed):
    batch = rows(seed)
    optimizer.zero_grad(set_to_none=True)
    _, loss = model(batch[:, :-1], batch[:, 1:])
    loss.backward()
    optimizer.step()
    return loss.item()


def gradients(model, doc_mask=None):
    batch = rows(9)
    model.zero_grad(set_to_none=True)
    _, loss = model(batch[:, :-1], batch[:, 1:], doc_mask)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_planner_counts_the_parameters_that_are_there(bias, tied):
    config = TINY.replace(bias=bias, tied=tied)
    with torch.device("meta"):
        model = make_model(config)
    assert sum(p.numel() for p in model.parameters()) == params(config.shape).total


def test_as_many_parameters_as_gpt2_outside_the_embeddings():
    modern = params(TINY.replace(n_layer=4, n_embd=128).shape).parts
    plain = params(
        RunConfig(n_layer=4, n_head=4, n_embd=128, block_size=16, vocab_size=65).shape
    ).parts
    inside = ("attention", "mlp", "norms")
    assert sum(modern[k] for k in inside) == pytest.approx(sum(plain[k] for k in inside), rel=0.05)


@pytest.mark.parametrize(
    "saver",
    [{"chunked_loss": True}, {"recompute": "cheap"}, {"recompute": "block"}, {"attention": "math"}],
)
@pytest.mark.parametrize("masked", [False, True])
def test_a_memory_saver_changes_no_gradient(saver, masked):
    documents = (torch.arange(16) > 6).long().expand(3, 16) if masked else None
    plain, _ = trained()
    lean = make_model(TINY.replace(**saver))
    lean.load_state_dict(plain.state_dict())
    loss, wanted = gradients(plain, documents)
    found_loss, found = gradients(lean, documents)
    torch.testing.assert_close(found_loss, loss)
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.filterwarnings("ignore")  # torch's own, about its insides
@pytest.mark.parametrize("card", [True, False])
def test_what_is_compiled_is_what_is_run(card, monkeypatch):
    """The forms for a card's compiler, and for a CPU's, against those that run without; no machine code is made."""
    if card:
        monkeypatch.setattr(lean, "on_cpu", lambda x: False)
    plain, _ = trained(TINY.replace(n_layer=1))
    loss, wanted = gradients(plain)
    torch._dynamo.reset()
    plain.compile(backend="aot_eager", dynamic=False)
    found_loss, found = gradients(plain)
    torch.testing.assert_close(found_loss, loss)
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6, msg=name)


def test_a_document_does_not_see_the_one_before():
    model, _ = trained()
    model.eval()
    batch = rows()[:, :16]
    documents = (torch.arange(16) > 6).long().expand(3, 16)
    with torch.no_grad():
        plain, _ = model(batch, doc_mask=documents)
        other = batch.clone()
        other[:, :7] = (other[:, :7] + 1) % 65
        changed, _ = model(other, doc_mask=documents)
    torch.testing.assert_close(changed[:, 7:], plain[:, 7:])
    assert not torch.allclose(changed[:, :7], plain[:, :7])


def test_decoding_with_the_cache_is_the_whole_window():
    model, _ = trained()
    model.eval()
    batch = rows()[:, :16]
    with torch.no_grad():
        whole, _ = model(batch)
        cache = model.new_cache(3)
        steps = [
            model.decode(batch[:, :5], cache),
            *(model.decode(batch[:, t : t + 1], cache) for t in range(5, 16)),
        ]
    torch.testing.assert_close(torch.stack(steps, dim=1), whole[:, 4:], rtol=1e-4, atol=1e-5)


def test_generation_goes_on_past_the_window():
    model, _ = trained(steps=20)
    tokens = [row[0] for row in generate(model, [[1, 2, 3]], 25, Sampling(temperature=0))]
    seen = [1, 2, 3]
    with torch.no_grad():
        for token in tokens:
            logits, _ = model(torch.tensor([seen[-16:]]))
            assert token == logits[0, -1].argmax().item()
            seen.append(token)


def test_logits_stay_within_the_cap():
    model, _ = trained()
    with torch.no_grad():
        model.lm_head.weight.mul_(1e4)
        logits, _ = model(rows()[:, :16])
    assert logits.abs().max() <= SOFT_CAP


def test_it_learns_faster_than_chance_and_than_adamw_on_the_same_blocks():
    batch = rows()

    def final(config):
        torch.manual_seed(0)
        model = make_model(config)
        optimizer = make_optimizer(config, model)
        for _ in range(30):
            optimizer.zero_grad(set_to_none=True)
            _, loss = model(batch[:, :-1], batch[:, 1:])
            loss.backward()
            optimizer.step()
        return loss.item()

    assert isinstance(make_model(TINY), ModernGPT)
    muon, adamw = final(TINY), final(TINY.replace(optimizer="adamw", learning_rate=1e-3))
    assert muon < 0.3 < adamw


@pytest.mark.parametrize("shape", [(8, 8), (8, 32), (32, 8)])
def test_orthogonal_moves_every_direction_about_equally(shape):
    update = orthogonal(torch.randn(5, *shape, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(update)
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(8, 8), (8, 11), (8, 32), (32, 8)])
def test_every_form_of_newton_schulz_is_the_textbooks(shape):
    """In place, and on the Gram matrix of long ones: in fp64 the difference is of rounding."""
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)).double()
    x = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + b * gram @ x + c * gram @ gram @ x
    torch.testing.assert_close(orthogonal(matrices, torch.float64), x, rtol=1e-9, atol=1e-11)


def test_batched_matrices_are_orthogonalised_one_by_one():
    matrices = torch.randn(3, 8, 32, generator=torch.Generator().manual_seed(0))
    alone = torch.stack([orthogonal(matrix[None])[0] for matrix in matrices])
    torch.testing.assert_close(orthogonal(matrices), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(32, 32), (32, 128)])
def test_in_bf16_matrices_move_almost_as_in_full_precision(shape):
    matrices = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    wanted = orthogonal(matrices)
    assert (orthogonal(matrices, torch.bfloat16) - wanted).norm() < 0.03 * wanted.norm()


def test_queries_keys_and_values_are_three_matrices_to_muon():
    model, optimizer = trained(steps=4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step(model, optimizer, 1)
    moved = (
        model.transformer.h[0].attn.c_attn.weight - before["transformer.h.0.attn.c_attn.weight"]
    ).detach()
    for part in moved.chunk(3):  # each of the three turned by learning_rate in all its directions
        assert torch.linalg.svdvals(part / TINY.learning_rate).max() == pytest.approx(1.0, abs=0.3)


def test_muons_memory_is_saved_and_restored():
    model, optimizer = trained()
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(model, optimizer).items()}
    assert "transformer.h.0.attn.c_attn.weight/momentum" in saved
    again = make_model(TINY)
    again.load_state_dict(model.state_dict())
    other = make_optimizer(TINY, again)
    restore_optimizer(again, other, saved)
    assert step(again, other, 7) == step(model, optimizer, 7)
    for a, b in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_only_the_heads_step_size_falls_with_the_width():
    def scales(config):
        with torch.device("meta"):
            return [
                group["lr_scale"]
                for group in make_optimizer(config, make_model(config)).param_groups
            ]

    matrices, embeddings, head, vectors = scales(TINY)
    assert scales(TINY.replace(n_embd=32 * 4)) == [matrices, embeddings, head / 2, vectors]


# --- an independent reference: the recipe written once more in plain torch, part by part ---


def plain_rms_norm(x):
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + torch.finfo(torch.float32).eps)


def plain_rotary(x, positions):
    """RoFormer's equation as complex numbers: pair i of a head turns by position · 10000^(−i/pairs)."""
    pairs = x.shape[-1] // 2
    speed = torch.tensor([10_000.0 ** (-i / pairs) for i in range(pairs)], dtype=torch.float64)
    turn = torch.polar(
        torch.ones(len(positions), pairs, dtype=torch.float64), -positions[:, None] * speed
    )
    as_complex = torch.complex(x[..., :pairs].double(), x[..., pairs:].double())
    turned = as_complex * turn
    return torch.cat((turned.real, turned.imag), dim=-1).float()


def plain_short_convolution(x, taps):
    y = x.clone()
    for t in range(x.shape[1]):
        for back in range(min(len(taps), t + 1)):
            y[:, t] += taps[back] * x[:, t - back]
    return y


def plain_forward(model, ids):
    """Logits of the modern recipe, loops and formulas only."""
    weights = dict(model.named_parameters())
    heads = model.config.n_head
    width = model.config.n_embd
    positions = torch.arange(ids.shape[1], dtype=torch.float64)
    x = plain_rms_norm(weights["transformer.wte.weight"][ids])
    causal = torch.full((len(positions), len(positions)), -torch.inf).triu(1)
    for layer in range(model.config.n_layer):
        of = {
            name: weights[f"transformer.h.{layer}.{name}"]
            for name in ("recent_1.taps", "attn.c_attn.weight", "attn.c_proj.weight")
        }
        mixed = plain_short_convolution(plain_rms_norm(x), of["recent_1.taps"])
        q, k, v = (mixed @ of["attn.c_attn.weight"].T).split(width, dim=-1)
        outputs = []
        for head in range(heads):
            part = slice(head * width // heads, (head + 1) * width // heads)
            query, key = (plain_rotary(plain_rms_norm(a[..., part]), positions) for a in (q, k))
            scores = query @ key.transpose(-2, -1) / (width // heads) ** 0.5 + causal
            outputs.append(scores.softmax(-1) @ v[..., part])
        x = x + torch.cat(outputs, dim=-1) @ of["attn.c_proj.weight"].T
        taps, up, down = (
            weights[f"transformer.h.{layer}.{name}"]
            for name in ("recent_2.taps", "mlp.c_fc.weight", "mlp.c_proj.weight")
        )
        hidden = plain_short_convolution(plain_rms_norm(x), taps) @ up.T
        x = x + hidden.clamp_min(0).square() @ down.T
    logits = plain_rms_norm(x) @ weights["lm_head.weight"].T
    return 15.0 * torch.tanh(logits / 15.0)


def test_the_whole_model_is_the_plain_formulas():
    model, _ = trained(steps=8)
    model.eval()
    ids = rows(4)[:, :-1]
    with torch.no_grad():
        logits, _ = model(ids)
        assert logits.abs().max() > 0.1  # far from the zeros it began with
        torch.testing.assert_close(logits, plain_forward(model, ids), rtol=1e-4, atol=1e-4)


def test_rotary_positions_are_those_of_transformers():
    """GPT-NeoX's rotary code in transformers has the same halves and frequencies, turned the other way round."""
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb

    from onecard.model.lean import rotate

    model, _ = trained(steps=0)
    length, head_width = 16, 16
    cosine, sine = model._turn(0, length)
    x = torch.randn(2, length, 2, 2, head_width, generator=torch.Generator().manual_seed(0))
    mine = rotate(x, cosine, sine)
    doubled = [torch.cat((a, a), dim=-1)[:, 0, 0] for a in (cosine, -sine)]
    flat = x.flatten(2, 3).transpose(1, 2)
    theirs, _ = apply_rotary_pos_emb(flat, flat, doubled[0][None], doubled[1][None])
    torch.testing.assert_close(mine.flatten(2, 3).transpose(1, 2), theirs, rtol=1e-5, atol=1e-5)
    frequency = 10_000.0 ** (-torch.arange(head_width // 2) / (head_width // 2))
    torch.testing.assert_close(
        cosine[:, 0, 0], torch.cos(torch.arange(length)[:, None] * frequency)
    )
