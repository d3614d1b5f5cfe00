"""Conversations of many lengths into windows of one: each whole, as few windows as best-fit-decreasing finds.

>>> pack([5, 3, 2, 4, 2], room=8)
[[0, 1], [3, 2, 4]]
"""

from bisect import bisect_left, insort
from collections.abc import Sequence


def pack(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Which conversations share a window: the longest first, each where the least room stays over.

    Equal lengths keep their order, so the result depends on the lengths alone.
    """
    windows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, window), the fullest first
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        length = lengths[place]
        assert 0 < length <= room
        at = bisect_left(free, (length, -1))
        if at == len(free):
            left, window = room, len(windows)
            windows.append([])
        else:
            left, window = free.pop(at)
        windows[window].append(place)
        if left > length:
            insort(free, (left - length, window))
    return windows
