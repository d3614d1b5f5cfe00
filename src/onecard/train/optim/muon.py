"""Muon for the matrices inside the blocks, AdamW for everything else, in one optimizer.

Muon (Jordan et al., 2024) takes the momentum of a matrix's gradient, replaces it by the nearest orthogonal matrix (five
Newton–Schulz steps) and walks along that. Every direction of a matrix then moves equally far, which is why one step
size serves at every width. Here matrices of a shape are orthogonalised together: two batched calls a step for a small
model, more for a large one (stacked_matrices), so that what they need for a moment stays small.

>>> update = orthogonal(torch.randn(3, 8, 16))
>>> bool((torch.linalg.svdvals(update) > 0.5).all())
True
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from onecard.config import RunConfig
from onecard.config.model_rules import LONG_MATRIX, stacked_matrices
from onecard.config.recipes import MUON_RATE
from onecard.model.machine import fast_low_dtype
from onecard.train.optim.sharded_rows import Slices, move_slices

FUSED = ("cpu", "cuda", "mps")  # devices with a fused AdamW

# part of a parameter, its update lying wide, whether it was turned
Wide = tuple[Tensor, Tensor, bool]

# a·X + b·X³ + c·X⁵ of each step, from Jordan's Muon: drives singular values into about [0.7, 1.2], fast rather than exact
_QUINTIC = (3.4445, -4.7750, 2.0315)
_STEPS = 5
# Warmed up as in modded-nanogpt and nanochat: early gradients change too fast for a long memory of them.
MOMENTUM_FIRST, MOMENTUM, MOMENTUM_STEPS = 0.85, 0.95, 300

# Step sizes of AdamW's part, as multiples of learning_rate. The embedding's does not depend on the width; the head's falls
# with its square root, as in nanochat, whose ratios these are (0.2 and 0.004 beside Muon's 0.02). Measured in docs/LOG.md.
EMBEDDING_SCALE = 10.0
HEAD_SCALE = 5.5  # over sqrt(n_embd): 0.49 at a width of 128, 0.2 at 768
VECTOR_SCALE = 0.5
ADAM_EPSILON = 1e-10  # the head begins at zero with tiny gradients


def momentum_at(step: int) -> float:
    """Muon's momentum at a step of the run, 0 the first; from the step alone, so that a resume need not keep it.

    >>> [round(momentum_at(step), 3) for step in (0, 150, 300, 10_000)]
    [0.85, 0.9, 0.95, 0.95]
    """
    return MOMENTUM_FIRST + (MOMENTUM - MOMENTUM_FIRST) * min(step / MOMENTUM_STEPS, 1.0)


def orthogonal(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The nearest (half-)orthogonal matrix of each in a batch, roughly, computed in that dtype.

    Three forms of one iteration, equal except for rounding (tests/torch/test_modern.py)."""
    # scaled before it is rounded: gradients of 1e-8 are nothing in fp16, and their direction is all that matters
    x = matrices.float() if dtype == torch.float16 else matrices.to(dtype)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = (x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)).to(dtype)
    if dtype.itemsize < 4:
        x = _newton_schulz(x)
    elif x.shape[-1] > LONG_MATRIX * x.shape[-2]:
        x = _by_gram_matrix(x)
    else:
        x = _in_place(x)
    return (x.mT if tall else x).to(matrices.dtype)


def _newton_schulz(x: Tensor) -> Tensor:
    a, b, c = _QUINTIC
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _in_place(x: Tensor) -> Tensor:
    """The same in three buffers: on a CPU fresh memory and a copy of x cost as much as a product of small matrices."""
    gram, other = x.new_empty(*x.shape[:-1], x.shape[-2]), torch.empty_like(x)
    factor: Tensor | None = None
    for _ in range(_STEPS):
        factor = _factor(torch.bmm(x, x.mT, out=gram), factor)
        x, other = torch.bmm(factor, x, out=other), x
    return x


def _by_gram_matrix(x: Tensor) -> Tensor:
    """The same for matrices much longer than high (LONG_MATRIX): every step multiplies x from the left by a polynomial of
    its Gram matrix, so the steps are taken on that, and x is multiplied once. 4·m²·n + 34·m³ operations in place of
    20·m²·n + 10·m³: 0.55 of them for an MLP's. In bf16 the roundings of so many products would not be small."""
    gram = x @ x.mT
    product, spare = torch.empty_like(gram), torch.empty_like(gram)
    factor: Tensor | None = None
    for step in range(_STEPS):
        factor = _factor(gram, factor)
        if step == 0:
            product.copy_(factor)
        else:
            product, spare = torch.bmm(factor, product, out=spare), product
        if step < _STEPS - 1:
            torch.bmm(torch.bmm(factor, gram, out=spare), factor, out=gram)
    del gram, factor, spare  # before there are two of x
    return product @ x


def _factor(gram: Tensor, out: Tensor | None) -> Tensor:
    """a + b·G + c·G², which a step multiplies by."""
    a, b, c = _QUINTIC
    out = torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=out)
    out.diagonal(dim1=-2, dim2=-1).add_(a)
    return out


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon moves it: the matrices inside the blocks, neither embeddings nor head."""
    outside = name.endswith(("wte.weight", "wpe.weight")) or name.startswith("lm_head")
    return parameter.dim() == 2 and name.endswith(".weight") and not outside


def muon_groups(config: RunConfig, model: nn.Module) -> list[dict[str, Any]]:
    """The groups of a model with nanoGPT's names: block matrices to Muon, embeddings, head and vectors to AdamW."""
    groups: dict[str, list[Tensor]] = {"matrices": [], "embeddings": [], "head": [], "vectors": []}
    for name, parameter in model.named_parameters():
        if config.tied and name.endswith("wte.weight"):
            groups["head"].append(parameter)
        elif name.endswith(("wte.weight", "wpe.weight")):
            groups["embeddings"].append(parameter)
        elif name.startswith("lm_head"):
            groups["head"].append(parameter)
        elif is_matrix(name, parameter):
            groups["matrices"].append(parameter)
        else:
            groups["vectors"].append(parameter)
    scales = {
        "matrices": 1.0,
        "embeddings": EMBEDDING_SCALE,
        "head": HEAD_SCALE / math.sqrt(config.n_embd),
        "vectors": VECTOR_SCALE,
    }
    product_dtype = fast_low_dtype(next(model.parameters()).device, config.matmul_dtype)
    return [
        {
            "params": parameters,
            "muon": kind == "matrices",
            "product_dtype": product_dtype,
            "lr_scale": scales[kind],
            "lr": config.learning_rate * scales[kind],
            "weight_decay": config.weight_decay if kind == "matrices" else 0.0,
        }
        for kind, parameters in groups.items()
        if parameters
    ]


class Muon(torch.optim.Optimizer):
    """Groups with `muon` true hold matrices, out × in; a matrix of three times as many rows as columns is q, k and v."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        betas: tuple[float, float],
        names: Mapping[Tensor, str] | None = None,
        slices: Slices | None = None,
    ):
        super().__init__(
            groups,
            {
                "lr": MUON_RATE,
                "betas": betas,
                "momentum": MOMENTUM,
                "weight_decay": 0.0,
                "muon": False,
                "product_dtype": torch.float32,
            },
        )
        self._names, self._slices = dict(names or {}), slices or Slices()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "the training loop computes its own gradients"
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters and group["muon"]:
                self._muon(parameters, group)
            elif parameters:
                self._adamw(parameters, group)

    def _muon(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        grads = _gradients(parameters)
        kept = [self.state[p]["momentum"] for p in parameters]
        torch._foreach_lerp_(kept, grads, 1 - group["momentum"])
        # Nesterov's: where the momentum will be; in place of the gradients, which nothing reads any more
        torch._foreach_lerp_(grads, kept, group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        if self._slices.count > 1:
            whole = [self._slices.of[self._names[p]].shape for p in parameters]
            rule = partial(moved, lr=group["lr"], product_dtype=group["product_dtype"])
            return move_slices(parameters, grads, whole, self._slices, rule)
        for shape, pairs in _by_shape(parameters, grads).items():
            together = stacked_matrices(*shape)
            for start in range(0, len(pairs), together):
                _move(pairs[start : start + together], shape, group["lr"], group["product_dtype"])

    def _adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            if not self.state[p]:
                self.state[p].update(
                    exp_avg=torch.zeros_like(p),
                    exp_avg_sq=torch.zeros_like(p),
                    # as torch's own: fused kernels read it beside the parameter (Metal's too), others on the host
                    step=torch.zeros(
                        (),
                        dtype=torch.float32,
                        device=p.device if p.device.type in FUSED else "cpu",
                    ),
                )
        states = [self.state[p] for p in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            _gradients(parameters),
            [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states],
            [],
            [s["step"] for s in states],
            fused=parameters[0].device.type in FUSED,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=ADAM_EPSILON,
            maximize=False,
        )


def moved(parameter: Tensor, ahead: Tensor, lr: float, product_dtype: torch.dtype) -> None:
    """One matrix moved along its orthogonalised momentum."""
    for shape, pairs in _by_shape([parameter], [ahead]).items():
        for pair in pairs:
            _move([pair], shape, lr, product_dtype)


def _move(pairs: list[Wide], shape: tuple[int, int], lr: float, product_dtype: torch.dtype) -> None:
    """Matrices of one shape moved along their orthogonalised momenta."""
    rows, columns = shape
    wide = [wide for _, wide, _ in pairs]
    together = torch.stack(wide) if len(wide) > 1 else wide[0][None]  # one needs no copy
    updates = orthogonal(together, product_dtype)
    # a matrix with more outputs than inputs takes longer strides, by sqrt(out / in), as in Jordan's Muon
    for turned, stride in ((False, 1.0), (True, (columns / rows) ** 0.5)):
        chosen = [
            (pair[0], update.mT if turned else update)
            for pair, update in zip(pairs, updates, strict=True)
            if pair[2] == turned
        ]
        if chosen:
            targets, moves = map(list, zip(*chosen, strict=True))
            torch._foreach_add_(targets, moves, alpha=-lr * stride)


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def _by_shape(
    parameters: list[Tensor], updates: Sequence[Tensor]
) -> dict[tuple[int, int], list[Wide]]:
    """By rows and columns, never tall."""
    batches: dict[tuple[int, int], list[Wide]] = {}
    for parameter, update in zip(parameters, updates, strict=True):
        rows, columns = parameter.shape
        parts = 3 if rows == 3 * columns else 1
        for target, part in zip(parameter.chunk(parts), update.chunk(parts), strict=True):
            turned = target.shape[0] > target.shape[1]
            wide = part.mT if turned else part
            batches.setdefault((wide.shape[0], wide.shape[1]), []).append((target, wide, turned))
    return batches
