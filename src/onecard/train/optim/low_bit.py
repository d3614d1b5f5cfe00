"""Moments in 8 or 4 bits: blocks of numbers with one scale each, rounded stochastically.

A level is the square (8-bit second moments: the fourth power) of its number, so that small values keep some digits. The
second moment has no level at zero: an update is divided by its root. Means are right (see rounding.py), so that moving
averages move although a level is wider than what one step adds.

>>> moment = LowBit.zeros(1000, 8, signed=True, device=torch.device("cpu"))
>>> moment.write(torch.linspace(-1, 1, 1000), 0, key=7)
>>> (moment.read(0, 1000) - torch.linspace(-1, 1, 1000)).abs().max().item() < 0.02
True
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from onecard.config.model_rules import STATE_BLOCK
from onecard.model.host import copied, on_card
from onecard.train.optim.rounding import uniform


@dataclass(frozen=True)
class LowBit:
    codes: Tensor  # uint8; two numbers a byte in 4 bits
    scales: Tensor  # fp32, the largest of each block
    count: int
    bits: int
    signed: bool

    @classmethod
    def zeros(cls, count: int, bits: int, signed: bool, device: torch.device) -> "LowBit":
        blocks = -(-count // STATE_BLOCK[bits])
        codes = torch.zeros(
            blocks * STATE_BLOCK[bits] * bits // 8, dtype=torch.uint8, device=device
        )
        return cls(codes, torch.zeros(blocks, device=device), count, bits, signed)

    @property
    def _levels(self) -> int:
        """Levels above zero."""
        return 2 ** (self.bits - 1) - 1 if self.signed else 2**self.bits

    @property
    def _power(self) -> int:
        return 4 if self.bits == 8 and not self.signed else 2

    def _span(self, first: int, count: int) -> tuple[slice, slice, int]:
        """The bytes and scales of whole blocks from `first` on, and how many numbers these are."""
        block = STATE_BLOCK[self.bits]
        assert first % block == 0, "slices begin at a block"
        blocks = slice(first // block, -(-(first + count) // block))
        numbers = (blocks.stop - blocks.start) * block
        start = first * self.bits // 8
        return slice(start, start + numbers * self.bits // 8), blocks, numbers

    def read(self, first: int, count: int, device: torch.device | None = None) -> Tensor:
        """The numbers from `first` on, in fp32; on another device than they are kept on, where one is named."""
        where, blocks, _ = self._span(first, count)
        codes, scales = self.codes[where], self.scales[blocks]
        if device is not None:
            codes, scales = on_card(codes, device), on_card(scales, device)
        if self.bits == 4:
            codes = torch.stack((codes & 15, codes >> 4), dim=1).flatten()
        values = codes.float()
        if self.signed:
            values.sub_(self._levels).div_(self._levels)
            values.mul_(values.abs())
        else:
            values.add_(1).div_(self._levels)
            values.mul_(values)
            if self._power == 4:
                values.mul_(values)
        return values.view(-1, STATE_BLOCK[self.bits]).mul_(scales[:, None]).flatten()[:count]

    def write(self, values: Tensor, first: int, key: int, offset: int = 0) -> None:
        """Take fp32 numbers, which are overwritten. `offset`: elements of the whole tensor before these moments'."""
        where, blocks, numbers = self._span(first, values.numel())
        if numbers > values.numel():
            values = torch.nn.functional.pad(values, (0, numbers - values.numel()))
        tiles = values.view(-1, STATE_BLOCK[self.bits])
        scale = tiles.abs().amax(dim=1, keepdim=True)
        copied(self.scales[blocks], scale.flatten())
        tiles.div_(scale.clamp_min_(1e-38))
        negative = values < 0 if self.signed else None
        codes = self._rounded(values.abs_(), uniform(numbers, offset + first, key, values.device))
        if negative is not None:
            codes = torch.where(negative, self._levels - codes, self._levels + codes)
        codes = codes.to(torch.uint8)
        if self.bits == 4:
            pairs = codes.view(-1, 2)
            codes = pairs[:, 0] | (pairs[:, 1] << 4)
        copied(self.codes[where], codes)

    def _rounded(self, shares: Tensor, chance: Tensor) -> Tensor:
        """Codes of numbers from 0 to 1: the level below, or the one above as often as makes the mean right."""
        levels, power = self._levels, self._power
        offset = 0 if self.signed else 1  # without a level at zero, code 0 is the first above it
        root = shares.sqrt().sqrt_() if power == 4 else shares.sqrt()
        below = root.mul_(levels).floor_().clamp_(offset, levels - 1)
        low, high = (below / levels) ** power, ((below + 1) / levels) ** power
        up = shares.sub_(low).div_(high.sub_(low)) > chance
        return below.add_(up).sub_(offset)
