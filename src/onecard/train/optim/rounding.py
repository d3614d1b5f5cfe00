"""Random numbers for stochastic rounding: up or down with the chance that makes the mean right, so that small changes
are not lost.

The number of an element is a pure function of (seed, step, name, element): no generator has a state that a resume must
restore, and it does not matter how tensors are cut or spread.

>>> numbers = uniform(4, 0, key_of(seed=1, step=2, name="w"), torch.device("cpu"))
>>> torch.equal(numbers[2:], uniform(2, 2, key_of(seed=1, step=2, name="w"), torch.device("cpu")))
True
"""

import zlib

import torch
from torch import Tensor

_BITS = 0xFFFFFFFF
_NAN = 0x7FC00000


def key_of(seed: int, step: int, name: str, use: int = 0) -> int:
    """32 bits that stand for one use of random numbers: whose, in which step, for what."""
    key = zlib.crc32(name.encode(), (seed ^ (use * 0x9E3779B9)) & _BITS)
    return _mixed((key + 0x9E3779B9 * (step + 1)) & _BITS)


def _mixed(x: int) -> int:
    """Wellons' lowbias32, on a whole number."""
    x ^= x >> 16
    x = (x * 0x7FEB352D) & _BITS
    x ^= x >> 15
    x = (x * 0x846CA68B) & _BITS
    return x ^ (x >> 16)


def _signed(x: int) -> int:
    """The same 32 bits as torch's int32 has them."""
    return x - 2**32 if x >= 2**31 else x


def random_bits(count: int, first: int, key: int, device: torch.device) -> Tensor:
    """32 random bits for the elements from `first` on. Multiplications of int32 wrap round, on every device."""
    factor, offset = beginning(key)
    x = torch.arange(first, first + count, dtype=torch.int32, device=device)
    return scrambled(x.mul_(factor).add_(offset))


def beginning(key: int) -> tuple[int, int]:
    """What the number of an element is multiplied with, and what is added, before it is scrambled."""
    return _signed(_mixed(key) | 1), _signed(key)


def scrambled(x: Tensor) -> Tensor:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None)):
        x ^= (x >> shift) & ((1 << (32 - shift)) - 1)
        if factor is not None:
            x.mul_(_signed(factor))
    return x


def stochastic_bf16(values: Tensor, first: int, key: int) -> Tensor:
    """fp32 numbers, which are overwritten, in bf16: the number below or above, by chance, so that the mean is right.

    >>> drawn = [stochastic_bf16(torch.full((1,), 1.001), 0, key_of(1, step, "w")) for step in range(4000)]
    >>> round(torch.stack(drawn).float().mean().item(), 3)
    1.001
    """
    bits = bits_of(values)
    bits += random_bits(values.numel(), first, key, values.device).bitwise_and_(0xFFFF)
    bits &= -0x10000  # what bf16 has no place for
    return values.bfloat16()


def bits_of(values: Tensor) -> Tensor:
    """fp32 numbers as int32, in the same memory. A card's NaN is 0x7FFFFFFF, and anything added to that would make it a
    zero: all get the bits that a CPU gives them."""
    return values.view(torch.int32).masked_fill_(values.isnan(), _NAN)


def uniform(count: int, first: int, key: int, device: torch.device) -> Tensor:
    """Random numbers from 0 up to 1."""
    return ((random_bits(count, first, key, device) >> 8) & 0xFFFFFF).float().mul_(2.0**-24)
