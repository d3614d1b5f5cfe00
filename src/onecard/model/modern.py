"""The modern recipe's model: same matrices as GPT-2's blocks, other parts between them. docs/LOG.md has the measurements.
On a CPU without the compiler some parts have forms of their own (lean_cpu.py).

| piece | source |
|---|---|
| rotary positions instead of a table | RoFormer, Su et al., 2021 |
| RMSNorm without weights, also on queries and keys | Zhang and Sennrich, 2019; Henry et al., 2020 |
| ReLU² | Primer, So et al., 2021 |
| projections back into the stream and the head begin at zero | muP, Yang et al., 2022; modded-nanogpt, 2024 |
| a head of its own, logits softly capped | Gemma 2, 2024 |
| each norm's output mixed with the three positions before | Canon layers, Allen-Zhu, 2025 (short_convolution.py) |

>>> model = ModernGPT(RunConfig(recipe="modern", n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=65, tied=False))
>>> _, loss = model(torch.zeros(1, 16, dtype=torch.long), targets=torch.zeros(1, 16, dtype=torch.long))
>>> round(loss.item(), 4)  # the head begins at zero: every token is as likely, log 65
4.1744
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from onecard.config import RunConfig
from onecard.model import gpt2, lean, lean_cpu
from onecard.model.gpt2 import (
    GPT,
    INIT_STD,
    Cache,
    attend,
    linear,
    looked_up,
    remember,
    same_document,
)
from onecard.model.lean import rms_norm, rotate, squared_relu
from onecard.model.short_convolution import TAPS, mix_last, mix_of_norms, mix_recent

ROTARY_BASE = 10_000.0  # RoFormer's
SOFT_CAP = 15.0  # logits stay within ±15; modded-nanogpt's value


@dataclass
class ModernCache(Cache):
    """Also the last inputs of every short convolution, oldest first; zeros stand before the first token."""

    recent: list[Tensor] = field(default_factory=list)


@dataclass
class Around:
    """What a block needs beside its input: the positions' turn, who may look at whom, and the cache when decoding."""

    turn: tuple[Tensor, Tensor]
    mask: Tensor | None = None
    documents: Tensor | None = None
    cache: ModernCache | None = None


class Recent(nn.Module):
    """A norm and the taps of the short convolution after it; a module for its name in the state dict."""

    def __init__(self, width: int):
        super().__init__()
        self.taps = nn.Parameter(torch.zeros(TAPS, width))

    def forward(self, x: Tensor, around: Around, place: int) -> Tensor:
        cache = around.cache
        if cache is None and around.documents is None:
            if torch.compiler.is_compiling() and not lean.on_cpu(x):
                return mix_of_norms(x, self.taps)
            if lean_cpu.serves(x):
                return lean_cpu.normed_mix(x, self.taps)
        x = rms_norm(x)
        if cache is None:
            return mix_recent(x, self.taps, around.documents)
        seen = torch.cat((cache.recent[place], x), dim=1)
        cache.recent[place] = seen[:, 1 - TAPS :]
        return mix_recent(x, self.taps) if cache.length == 0 else mix_last(seen, self.taps)


class Attention(nn.Module):
    def __init__(self, config: RunConfig):
        super().__init__()
        width = config.n_embd
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.flash = config.attention != "math"
        self.c_attn = linear(config, width, 3 * width)
        self.c_proj = linear(config, width, width)

    def forward(self, x: Tensor, around: Around, layer: int) -> Tensor:
        batch, length, width = x.shape
        qkv = self.c_attn(x).view(batch, length, 3, self.n_head, width // self.n_head)
        alone = around.cache is None and qkv.shape[-1] % 2 == 0
        if alone and lean_cpu.serves(x):
            q, k, v = lean_cpu.turned_heads(qkv, *around.turn)
        elif alone and torch.compiler.is_compiling() and not lean.on_cpu(x):
            q, k, v = lean.turned_heads(qkv, *around.turn)
        else:
            qk = rotate(rms_norm(qkv[:, :, :2]), *around.turn)
            q, k = (part.transpose(1, 2) for part in qk.unbind(2))
            v = qkv[:, :, 2].transpose(1, 2)
        if around.cache is not None:
            k, v = remember(around.cache, layer, k, v)
        y = attend(q, k, v, around.mask, self.dropout if self.training else 0.0, self.flash)
        y = self.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(y, self.dropout, self.training) if self.dropout else y


def activation(x: Tensor) -> Tensor:
    return lean_cpu.squared_relu(x) if lean_cpu.serves(x) else squared_relu(x)


class MLP(gpt2.MLP):
    activation = staticmethod(activation)


class Block(nn.Module):
    def __init__(self, config: RunConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.recent_1 = Recent(config.n_embd)
        self.attn = Attention(config)
        self.recent_2 = Recent(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, around: Around) -> Tensor:
        # its number is for the cache alone: looked at, it would make a compiled graph one layer's
        layer = 0 if around.cache is None else self.layer
        x = x + self.attn(self.recent_1(x, around, 2 * layer), around, layer)
        return x + self.mlp(self.recent_2(x, around, 2 * layer + 1))


class ModernTransformer(nn.Module):
    """Everything below the head, by nanoGPT's names where there is such a part."""

    def __init__(self, config: RunConfig):
        super().__init__()
        self.wte = nn.Embedding(config.shape.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))


class ModernGPT(GPT):
    """GPT with the parts in the table above; `forward`, `new_cache` and `decode` are called the same way."""

    soft_cap = SOFT_CAP
    # handed out of a compiled graph and used by nobody, their gradient would be a table of zeros in fp32
    returns_logits = False

    def _make_transformer(self) -> nn.Module:
        return ModernTransformer(self.config)

    def _init_weights(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("wte.weight"):
                # as an embedding its scale is gone after the first norm; as a head it must begin small
                nn.init.normal_(parameter, std=INIT_STD if self.config.tied else 1.0)
            elif name.endswith(("c_attn.weight", "c_fc.weight")):
                nn.init.uniform_(
                    parameter, -((3 / self.config.n_embd) ** 0.5), (3 / self.config.n_embd) ** 0.5
                )
            else:
                nn.init.zeros_(parameter)  # projections into the stream, the head, taps, biases

    def head(self, x: Tensor) -> Tensor:
        logits = self.lm_head(x).float()
        if lean_cpu.serves(logits):
            return lean_cpu.soft_capped(logits, self.soft_cap)
        return self.soft_cap * torch.tanh(logits / self.soft_cap)

    def hidden(self, idx: Tensor, doc_mask: Tensor | None = None) -> Tensor:
        mask = None if doc_mask is None else same_document(doc_mask)
        around = Around(self._turn(0, idx.shape[1]), mask, doc_mask)
        x = rms_norm(looked_up(self.transformer.wte, idx))
        if self.config.dropout:
            x = F.dropout(x, self.config.dropout, self.training)
        for block in self.transformer.h:
            x = self._run_block(block, x, around)
        return rms_norm(x)

    def packed_hidden(self, idx: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        raise NotImplementedError("the short convolutions look at neighbours in the row")

    def _turn(self, start: int, length: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position's angles, (length, 1, 1, half a head's width)."""
        half = self.config.n_embd // self.config.n_head // 2
        device = self.lm_head.weight.device
        frequencies = ROTARY_BASE ** -(
            torch.arange(half, device=device, dtype=torch.float32) / max(half, 1)
        )
        angles = torch.arange(start, start + length, device=device, dtype=torch.float32)
        angles = angles[:, None, None, None] * frequencies
        return angles.cos(), angles.sin()

    def new_cache(self, batch: int) -> ModernCache:
        plain, weight = super().new_cache(batch), self.lm_head.weight
        return ModernCache(plain.keys, plain.values, recent=self._nothing_recent(batch, weight))

    def _nothing_recent(self, batch: int, like: Tensor) -> list[Tensor]:
        c = self.config
        return [like.new_zeros(batch, TAPS - 1, c.n_embd) for _ in range(2 * c.n_layer)]

    def decode(self, idx: Tensor, cache: Cache) -> Tensor:
        length = idx.shape[1]
        assert isinstance(cache, ModernCache)
        assert length == 1 or cache.length == 0, "a prompt goes into an empty cache"
        if cache.length == 0:  # also when a full window slides and is computed again
            cache.recent = self._nothing_recent(len(idx), self.lm_head.weight)
        around = Around(self._turn(cache.length, length), cache=cache)
        x = rms_norm(self.transformer.wte(idx).float())
        for block in self.transformer.h:
            x = block(x, around)
        cache.length += length
        return self.head(rms_norm(x[:, -1]))
