"""The hash that everything in a preparation is keyed by: places in the shuffle, who is for validation, near copies.

>>> hex(int(mix(np.array([1], np.uint64))[0]))
'0x910a2dec89025cc1'
"""

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

# Any constant; changing it changes every validation split.
_VAL_SALT = np.uint64(0x6F6E656361726421)


def mix(value: U64) -> U64:
    """splitmix64's finaliser: every input bit reaches every output bit (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def shuffle_keys(hash0: U64, places: U64, seed: int) -> U64:
    """The position of each document in the shuffle: seeded, from its text and its place, and from nothing else."""
    salt = mix(np.array([seed & (2**64 - 1)], np.uint64))
    return mix(mix(hash0 ^ salt) ^ places)


def in_validation(hash0: U64, fraction: float) -> npt.NDArray[np.bool_]:
    """Whether each document is for validation: its text alone decides, so copies never sit on both sides."""
    return mix(hash0 ^ _VAL_SALT) < np.uint64(min(int(fraction * 2**64), 2**64 - 1))
