"""The model against transformers' GPT-2, and its memory savers against the plain form."""

import pytest
import torch
from torch.nn import functional as F

from onecard.config import RunConfig
from onecard.model.chunked_loss import IGNORED, chunked_cross_entropy
from onecard.model.gpt2 import GPT

TINY = RunConfig(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=65, bias=True)


def batch(config, rows=3):
    generator = torch.Generator().manual_seed(1)
    shape = (rows, config.block_size)
    return tuple(
        torch.randint(config.shape.vocab_size, shape, generator=generator) for _ in range(2)
    )


def gradients(config, doc_mask=None):
    torch.manual_seed(0)
    model = GPT(config)
    idx, targets = batch(config)
    _, loss = model(idx, targets, doc_mask)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def test_logits_and_loss_equal_transformers():
    import transformers

    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=65,
            n_positions=16,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()
    ours = GPT(TINY).eval()
    with torch.no_grad():
        for name, tensor in theirs.state_dict().items():
            transposed = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
            # far from the initial state, or biases and norms would be untested
            tensor.add_(torch.randn_like(tensor) * 0.1)
            ours.get_parameter(
                name.replace("lm_head", "transformer.wte") if "lm_head" in name else name
            ).copy_(tensor.T if transposed else tensor)
        idx, _ = batch(TINY)
        logits, loss = ours(idx[:, :-1], idx[:, 1:])
        answer = theirs(idx, labels=idx)
    torch.testing.assert_close(logits, answer.logits[:, :-1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss, answer.loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "saver",
    [{"chunked_loss": True}, {"recompute": "cheap"}, {"recompute": "block"}, {"attention": "math"}],
)
@pytest.mark.parametrize("masked", [False, True])
def test_a_memory_saver_changes_no_gradient(saver, masked):
    documents = (torch.arange(16) > 6).long().expand(3, 16) if masked else None
    loss, plain = gradients(TINY, documents)
    saved_loss, saved = gradients(TINY.replace(**saver), documents)
    torch.testing.assert_close(saved_loss, loss, rtol=1e-6, atol=1e-6)
    for name in plain:
        torch.testing.assert_close(saved[name], plain[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 4, 7, 100])
def test_chunked_loss_at_any_slice(rows):
    generator = torch.Generator().manual_seed(3)
    hidden, weight = (
        torch.randn(10, 8, generator=generator),
        torch.randn(33, 8, generator=generator),
    )
    targets = torch.randint(33, (10,), generator=generator)
    answers = []
    for chunked in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = (
            chunked_cross_entropy(h, w, targets, rows)
            if chunked
            else F.cross_entropy(h @ w.T, targets)
        )
        (3 * loss).backward()
        answers.append((loss.detach(), h.grad, w.grad))
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(
            chunked_cross_entropy(hidden, weight, targets, rows), answers[1][0]
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_slice_of_the_loss_in_which_nothing_counts(dtype):
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(12, 8, generator=generator)
    weight = torch.randn(33, 8, generator=generator)
    targets = torch.randint(33, (12,), generator=generator)
    targets[4:8] = IGNORED
    answers = []
    for chunked in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = (
                chunked_cross_entropy(h, w, targets, 4, some_ignored=True)
                if chunked
                else F.cross_entropy((h @ w.T).float(), targets)
            )
        loss.backward()
        answers.append((loss.detach(), h.grad, w.grad))
    exact = dtype == torch.float32
    torch.testing.assert_close(*answers, rtol=1e-5 if exact else 2e-2, atol=1e-6 if exact else 5e-3)


@pytest.mark.parametrize("soft_cap", [None, 15.0])
def test_many_alike_rows_of_a_small_vocabulary_stay_in_float16s_range(soft_cap):
    """40,000 times 3 is beyond it, in one slice of a vocabulary of 65."""
    hidden, weight = torch.full((40_000, 4), 3.0), torch.zeros(65, 4)
    targets = torch.arange(40_000) % 32
    w = weight.clone().requires_grad_()
    with torch.autocast("cpu", torch.float16):
        chunked_cross_entropy(hidden, w, targets, soft_cap=soft_cap).backward()
    wanted = 3 / 65 - 3 / 32 * (torch.arange(65) < 32)  # every logit is zero
    torch.testing.assert_close(w.grad, wanted[:, None].expand(65, 4), rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("chunked", [True, False])
def test_rows_in_which_nothing_counts_teach_nothing(chunked):
    model = GPT(TINY.replace(learn_from="answers", chunked_loss=chunked))
    idx, targets = batch(TINY, rows=2)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(idx, torch.full_like(targets, IGNORED))[1]
    loss.backward()
    assert loss == 0
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_a_document_is_blind_to_the_one_before():
    model = GPT(TINY).eval()
    idx, _ = batch(TINY, rows=1)
    documents = (torch.arange(16) > 6).long()[None]
    changed = idx.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 65
    with torch.no_grad():
        masked = [model(i, None, documents)[0][0, 7:] for i in (idx, changed)]
        unmasked = [model(i)[0][0, 7:] for i in (idx, changed)]
    torch.testing.assert_close(masked[0], masked[1], rtol=0, atol=0)
    assert not torch.equal(unmasked[0], unmasked[1])


def test_decoding_with_the_cache_gives_the_logits_of_the_whole():
    model = GPT(TINY).eval()
    idx, _ = batch(TINY)
    cache = model.new_cache(3)
    with torch.no_grad():
        whole, _ = model(idx)
        logits = model.decode(idx[:, :5], cache)
        torch.testing.assert_close(logits, whole[:, 4])
        for position in range(5, 16):
            logits = model.decode(idx[:, position : position + 1], cache)
            torch.testing.assert_close(logits, whole[:, position])


def test_initial_spread_follows_gpt2():
    torch.manual_seed(0)
    model = GPT(RunConfig(n_layer=8, n_head=2, n_embd=128, block_size=64, vocab_size=512))
    parameters = dict(model.named_parameters())
    assert parameters["transformer.h.0.attn.c_attn.weight"].std().item() == pytest.approx(
        0.02, rel=0.05
    )
    assert parameters["transformer.h.3.mlp.c_proj.weight"].std().item() == pytest.approx(
        0.02 / 4, rel=0.05
    )
    assert parameters["transformer.wte.weight"] is model.lm_head.weight
