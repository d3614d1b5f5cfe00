"""GPT-2's architecture with nanoGPT's parameter names, so that weights pass between onecard, nanoGPT and transformers.

>>> model = GPT(RunConfig(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=65))
>>> logits, loss = model(torch.zeros(1, 16, dtype=torch.long), targets=torch.zeros(1, 16, dtype=torch.long))
>>> sum(p.numel() for p in model.parameters())
27328
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from onecard.config import RunConfig
from onecard.model import lean
from onecard.model.chunked_loss import Weigh, chunked_cross_entropy, count_of, weigh_at_once
from onecard.model.fp8 import Fp8Linear
from onecard.model.lean import gelu
from onecard.model.run_blocks import Runner, block_runner, forward_runner, plainly

# GPT-2's; the projections back into the residual stream get it over sqrt(2 · n_layer)
INIT_STD = 0.02


@dataclass
class Cache:
    """The keys and values of the tokens so far: (batch, heads, block_size, head width) in every layer."""

    keys: list[Tensor]
    values: list[Tensor]
    length: int = 0


def linear(config: RunConfig, inputs: int, outputs: int) -> nn.Linear:
    """A matrix of a layer, multiplied as the config says."""
    return (Fp8Linear if config.fp8 else nn.Linear)(inputs, outputs, bias=config.bias)


class LayerNorm(nn.Module):
    """LayerNorm whose bias can be left out, which torch's own allows but names differently."""

    def __init__(self, width: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, config: RunConfig):
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.flash = config.attention != "math"
        self.c_attn = linear(config, config.n_embd, 3 * config.n_embd)
        self.c_proj = linear(config, config.n_embd, config.n_embd)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: Cache | None = None, layer: int = 0
    ) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.n_head, width // self.n_head)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        if cache is not None:
            k, v = remember(cache, layer, k, v)
        y = attend(q, k, v, mask, self.dropout if self.training else 0.0, self.flash)
        y = self.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(y, self.dropout, self.training) if self.dropout else y


class MLP(nn.Module):
    # the tanh form is GPT-2's own (and transformers' gelu_new); nanoGPT's erf differs by up to 5e-4
    activation = staticmethod(gelu)

    def __init__(self, config: RunConfig):
        super().__init__()
        self.dropout = config.dropout
        self.c_fc = linear(config, config.n_embd, 4 * config.n_embd)
        self.c_proj = linear(config, 4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        x = self.c_proj(self.activation(self.c_fc(x)))
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Block(nn.Module):
    def __init__(self, config: RunConfig):
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, config.bias)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config.n_embd, config.bias)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: Cache | None = None, layer: int = 0
    ) -> Tensor:
        x = x + self.attn(self.ln_1(x), mask, cache, layer)
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Everything below the head; a module of its own only for the names in the state dict."""

    def __init__(self, config: RunConfig):
        super().__init__()
        shape = config.shape
        self.wte = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.wpe = nn.Embedding(shape.block_size, shape.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(shape.n_layer))
        self.ln_f = LayerNorm(shape.n_embd, shape.bias)


class GPT(nn.Module):
    """The model of a RunConfig. `forward` gives (logits, loss)."""

    transformer: Any  # Transformer, or the modern recipe's
    soft_cap: float | None = None  # the modern recipe's: logits bent into ±soft_cap
    returns_logits = True  # beside a loss that trains

    def __init__(self, config: RunConfig):
        super().__init__()
        shape = config.shape
        self.config = config
        self.transformer = self._make_transformer()
        self.lm_head = nn.Linear(shape.n_embd, shape.vocab_size, bias=False)
        if shape.tied:
            self.lm_head.weight = self.transformer.wte.weight
        self._train_block, self._read_block = block_runner(config), plainly
        self._chunked_loss: Callable[..., Tensor] = chunked_cross_entropy
        self._init_weights()

    def _make_transformer(self) -> nn.Module:
        return Transformer(self.config)

    def _init_weights(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                residual = name.endswith("c_proj.weight")
                nn.init.normal_(
                    parameter,
                    std=INIT_STD / math.sqrt(2 * self.config.n_layer) if residual else INIT_STD,
                )
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def keep_loss_out_of_graphs(self) -> None:
        """Before the whole model is compiled: Inductor would unroll the loop over slices and make all of them at once, twice the
        memory that they save. Not a decorator, which would import torch's compiler where nothing is compiled."""
        loss = self._chunked_loss
        self._chunked_loss = torch.compiler.disable(lambda *inputs, **more: loss(*inputs, **more))

    def compile_loss(self, compiled: Callable[[Weigh], Weigh] | None) -> None:
        """For a card: compile what the chunked loss does with a slice of logits; None: as it is."""
        weigh = compiled(weigh_at_once) if compiled else None
        self._chunked_loss = partial(chunked_cross_entropy, weigh=weigh)

    def compile_inside_blocks(self, compiled: Callable[[Runner], Runner]) -> None:
        """Compile what each layer does, but not what is hooked to its call: FSDP2's exchanges."""
        run = forward_runner(self.config, compiled)
        for block in self.transformer.h:
            block.forward = partial(run, block)
        if self.config.recompute == "cheap":  # which is inside
            self._train_block = plainly

    def compile_blocks(self, compiled: Callable[[Runner], Runner] | None) -> None:
        """Run each layer compiled; None: as they are."""
        for block in self.transformer.h:
            block.__dict__.pop("forward", None)  # compile_inside_blocks'
        self._train_block = block_runner(self.config, compiled)
        self._read_block = compiled(plainly) if compiled else plainly

    @property
    def _run_block(self) -> Runner:
        return self._train_block if torch.is_grad_enabled() else self._read_block

    def forward(
        self, idx: Tensor, targets: Tensor | None = None, doc_mask: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Logits of every position (None with chunked_loss, or as `returns_logits` says), and the mean loss in fp32 when
        targets are given. doc_mask holds each position's document number: attention then stays inside a document."""
        x = self.hidden(idx, doc_mask)
        if targets is None:
            return self.head(x), None
        some_ignored = self.config.learn_from == "answers"
        if self.config.chunked_loss:
            return None, self._chunked_loss(
                x.flatten(0, 1),
                self.lm_head.weight,
                targets.flatten(),
                self.config.chunk_rows,
                soft_cap=self.soft_cap,
                some_ignored=some_ignored,
            )
        logits = self.head(x)
        ids, reduction = targets.flatten(), "sum" if some_ignored else "mean"
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids, reduction=reduction)
        loss = loss / count_of(ids) if some_ignored else loss
        return logits if self.returns_logits or not torch.is_grad_enabled() else None, loss

    def head(self, x: Tensor) -> Tensor:
        """Logits of hidden states."""
        return self.lm_head(x)

    def hidden(self, idx: Tensor, doc_mask: Tensor | None = None) -> Tensor:
        """What the head reads: the last layer's output after its norm, (batch, length, width)."""
        parts = self.transformer
        mask = None if doc_mask is None else same_document(doc_mask)
        if mask is not None and self.config.learn_from == "answers":
            # each conversation from position 0, where it will be when the model is asked
            positions = looked_up(parts.wpe, mask.sum(dim=-1)[:, 0] - 1)
        else:
            positions = parts.wpe.weight[: idx.shape[1]]
        x = looked_up(parts.wte, idx) + positions
        if self.config.dropout:
            x = F.dropout(x, self.config.dropout, self.training)
        for block in parts.h:
            x = self._run_block(block, x, mask)
        return parts.ln_f(x)

    def packed_hidden(self, idx: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """`hidden` of rows that hold several texts: their positions, and who may look at whom."""
        parts = self.transformer
        x = parts.wte(idx).float() + parts.wpe(positions)
        for block in parts.h:
            x = block(x, mask)
        return parts.ln_f(x)

    def new_cache(self, batch: int) -> Cache:
        c, weight = self.config, self.lm_head.weight
        room = (batch, c.n_head, c.block_size, c.n_embd // c.n_head)
        keys = [
            torch.empty(room, device=weight.device, dtype=weight.dtype) for _ in range(c.n_layer)
        ]
        return Cache(keys, [torch.empty_like(key) for key in keys])

    def decode(self, idx: Tensor, cache: Cache) -> Tensor:
        """Logits of the last position after `idx` is appended to what the cache holds: a whole prompt or one token."""
        length = idx.shape[1]
        assert length == 1 or cache.length == 0, "a prompt goes into an empty cache"
        parts = self.transformer
        x = parts.wte(idx).float() + parts.wpe.weight[cache.length : cache.length + length]
        for layer, block in enumerate(parts.h):
            x = block(x, None, cache, layer)
        cache.length += length
        return self.lm_head(parts.ln_f(x[:, -1]))


def looked_up(table: nn.Embedding, ids: Tensor) -> Tensor:
    """Rows of a table in fp32: the stream is exact also where the tables are bf16."""
    if lean.on_cpu(ids) and torch.is_grad_enabled():
        # there torch adds up a row's gradients in the table's dtype: bf16 stands still after a few hundred
        return F.embedding(ids, table.weight.float())
    rows: Tensor = table(ids)
    return rows.float()


def same_document(documents: Tensor) -> Tensor:
    """The attention mask (batch, 1, length, length): earlier positions of one's own document."""
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]


def remember(cache: Cache, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    end = cache.length + k.shape[2]
    cache.keys[layer][:, :, cache.length : end] = k
    cache.values[layer][:, :, cache.length : end] = v
    return cache.keys[layer][:, :, :end], cache.values[layer][:, :, :end]


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, flash: bool
) -> Tensor:
    """Causal attention of (batch, heads, length, head width); a mask, if given, takes the place of causality."""
    if not flash:
        return _attention_by_hand(q, k, v, mask, dropout)
    # a single new token may look at everything cached: no mask at all, and the fastest kernel
    causal = mask is None and q.shape[2] > 1
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal
    )


def _attention_by_hand(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """The formula written out: holds length² scores, for cards and backends without a fused kernel, and for checks."""
    length, total = q.shape[2], k.shape[2]
    if mask is None:
        mask = torch.ones(length, total, dtype=torch.bool, device=q.device).tril(total - length)
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    weights = F.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)
    return (F.dropout(weights, dropout) if dropout else weights) @ v
