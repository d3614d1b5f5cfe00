"""Every leaner path against the plain one: the same loss and gradients to fp32 rounding."""

import pytest
import torch
from torch.nn import functional as F

from onecard.model import lean_cpu
from onecard.model.chunked_loss import chunked_cross_entropy, weigh_at_once
from onecard.model.lean import gelu, rms_norm, rotate, squared_relu, turned_heads
from onecard.model.short_convolution import TAPS, mix_last, mix_recent


def both(lean, plain, *inputs):
    """(outputs, gradients) of the two forms, for a random direction."""
    answers = []
    for form in (lean, plain):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = form(*leaves)
        direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
        answers.append((out.detach(), *torch.autograd.grad(out, leaves, direction)))
    return answers


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def plain_mix(x, taps):
    return x + sum(F.pad(x, (0, 0, k, 0))[:, : x.shape[1]] * taps[k] for k in range(len(taps)))


def mix_documents(x, taps):
    return mix_recent(x, taps, torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]]))


def mix_apart(x, taps):
    return torch.cat((plain_mix(x[:, :4], taps), plain_mix(x[:, 4:], taps)), dim=1)


def plain_rotate(x):
    angles = torch.arange(x.shape[1])[:, None, None] * 0.3
    half = x.shape[-1] // 2
    pair = torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.polar(
        torch.ones_like(angles), -angles
    )
    return torch.cat((pair.real, pair.imag, x[..., 2 * half :]), dim=-1)


def lean_rotate(x):
    angles = torch.arange(x.shape[1])[:, None, None] * 0.3
    return rotate(x, angles.cos(), angles.sin())


def looked_at(q, k, v):
    """What attention makes of them: products and values; pairs of channels may lie in another order."""
    return torch.cat(((q @ k.mT).flatten(), v.flatten()))


def heads_on_cpu(qkv):
    angles = torch.arange(qkv.shape[1])[:, None, None, None] * torch.tensor([0.3, 0.1])
    return looked_at(*lean_cpu.turned_heads(qkv, angles.cos(), angles.sin()))


def heads_on_card(qkv):
    angles = torch.arange(qkv.shape[1])[:, None, None, None] * torch.tensor([0.3, 0.1])
    return looked_at(*turned_heads(qkv, angles.cos(), angles.sin()))


def plain_heads(qkv):
    angles = torch.arange(qkv.shape[1])[:, None, None, None] * torch.tensor([0.3, 0.1])
    turned = rotate(F.rms_norm(qkv[:, :, :2], (4,)), angles.cos(), angles.sin())
    q, k = turned.unbind(2)
    return looked_at(*(part.transpose(1, 2) for part in (q, k, qkv[:, :, 2])))


def plain_normed_mix(x, taps):
    return plain_mix(F.rms_norm(x, (x.shape[-1],)), taps)


def cap_on_cpu(x):
    return lean_cpu.soft_capped(x * 1, 2.0)  # x * 1: it writes over what it is given


@pytest.mark.parametrize(
    ("lean", "plain", "inputs"),
    [
        (lean_cpu.normed_mix, plain_normed_mix, (random(2, 9, 24), random(TAPS, 24))),
        (lean_cpu.normed_mix, plain_normed_mix, (random(2, 2, 24), random(TAPS, 24))),
        (heads_on_cpu, plain_heads, (random(2, 5, 3, 2, 4),)),
        (heads_on_card, plain_heads, (random(2, 5, 3, 2, 4),)),
        (cap_on_cpu, lambda x: 2 * torch.tanh(x / 2), (random(3, 700, 64) * 4,)),
        (lean_cpu.squared_relu, lambda x: F.relu(x).square(), (random(3, 700, 64),)),
        (rms_norm, lambda x: F.rms_norm(x, (x.shape[-1],)), (random(2, 5, 24),)),
        (
            gelu,
            lambda x: F.gelu(x, approximate="tanh"),
            (random(3, 700, 64) * 4,),
        ),  # more than one block
        (squared_relu, lambda x: F.relu(x).square(), (random(2, 5, 24),)),
        (mix_recent, plain_mix, (random(2, 9, 24), random(TAPS, 24))),
        (
            mix_recent,
            plain_mix,
            (random(2, 2, 24), random(TAPS, 24)),
        ),  # shorter than the taps reach
        (mix_documents, mix_apart, (random(2, 9, 24), random(TAPS, 24))),
        (lean_rotate, plain_rotate, (random(2, 5, 3, 8),)),
        (lean_rotate, plain_rotate, (random(2, 5, 3, 7),)),  # an odd head keeps its last channel
    ],
    ids=[
        "norm and mix on a CPU",
        "norm and mix on a CPU, short",
        "heads on a CPU",
        "heads on a card",
        "soft cap on a CPU",
        "squared_relu on a CPU",
        "rms_norm",
        "gelu",
        "squared_relu",
        "mix",
        "mix short",
        "mix documents",
        "rotate",
        "rotate odd",
    ],
)
def test_a_hand_written_gradient_is_autograds(lean, plain, inputs):
    for ours, theirs in zip(*both(lean, plain, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


def test_the_last_position_alone_is_mixed_the_same():
    x, taps = random(2, 9, 24), random(TAPS, 24)
    torch.testing.assert_close(mix_last(x[:, -TAPS:], taps), mix_recent(x, taps)[:, -1:])


WEIGHED = pytest.mark.parametrize("weigh", [None, weigh_at_once], ids=["in passes", "at once"])


@WEIGHED
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("rows", [3, 100])
def test_chunked_loss_is_the_plain_one(soft_cap, rows, weigh):
    hidden, weight = random(11, 8) * 3, random(37, 8)
    targets = torch.arange(11) * 3
    targets[1] = targets[0]  # two rows of one target add up

    def plain(h, w):
        logits = h @ w.T
        return F.cross_entropy(
            logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap), targets
        )

    def lean(h, w):
        return chunked_cross_entropy(h, w, targets, rows, soft_cap, weigh=weigh)

    for ours, theirs in zip(*both(lean, plain, hidden, weight), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)
    with torch.no_grad():
        torch.testing.assert_close(lean(hidden, weight), plain(hidden, weight))


@WEIGHED
def test_chunked_loss_holds_with_huge_logits(weigh):
    """exp(1000) is no number; the largest logit is taken off first."""
    hidden, weight = random(4, 8) * 1000, random(9, 8)
    for ours, theirs in zip(
        *both(
            lambda h, w: chunked_cross_entropy(h, w, torch.arange(4), weigh=weigh),
            lambda h, w: F.cross_entropy(h @ w.T, torch.arange(4)),
            hidden,
            weight,
        ),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-3)


@WEIGHED
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("soft_cap", [None, 15.0])
def test_chunked_loss_in_half_precision(soft_cap, dtype, weigh):
    """Also where no logit is near the cap: in fp16 exp(-15) times anything would be nothing."""
    targets = torch.arange(40) % 37

    def loss(h, w, dtype=dtype, weigh=weigh):
        return chunked_cross_entropy(h.to(dtype), w.to(dtype), targets, 16, soft_cap, weigh=weigh)

    def exact(h, w):
        return loss(h, w, torch.float32, None)

    for ours, theirs in zip(*both(loss, exact, random(40, 8) * 0.1, random(37, 8)), strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.filterwarnings("ignore")  # torch's own, about its insides
@pytest.mark.parametrize("soft_cap", [None, 15.0])
def test_chunked_loss_in_half_precision_compiled(soft_cap):
    torch._dynamo.reset()
    compiled, targets = torch.compile(weigh_at_once, dynamic=False), torch.arange(40) % 37

    def loss(h, w, weigh=compiled):
        h, w = h.bfloat16(), w.bfloat16()
        return chunked_cross_entropy(h, w, targets, 20, soft_cap, weigh=weigh)

    def plain(h, w):
        return loss(h, w, None)

    for ours, theirs in zip(*both(loss, plain, random(40, 8) * 3, random(37, 8)), strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_gelu_without_gradients_is_the_same():
    x = random(3, 64) * 4
    with torch.no_grad():
        torch.testing.assert_close(gelu(x), F.gelu(x, approximate="tanh"), rtol=1e-5, atol=2e-6)
