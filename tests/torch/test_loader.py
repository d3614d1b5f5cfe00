"""The order of the data: every window once an epoch, the same whatever the batch is cut into."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.errors import UserError
from onecard.train.io.loader import Loader
from onecard.train.io.row_names import documents_of
from onecard.train.io.window_order import WindowOrder


class Stream:
    """Tokens that say where they are."""

    def __init__(self, ids):
        self.ids = np.asarray(ids, dtype=np.uint16)
        self.tokens = len(self.ids)

    def read(self, start, count):
        return self.ids[start : start + count]


@given(
    windows=st.integers(1, 3000), seed=st.integers(-(2**63), 2**63 - 1), epoch=st.integers(0, 10**6)
)
@settings(max_examples=60, deadline=None)
def test_an_epoch_is_a_permutation(windows, seed, epoch):
    order = WindowOrder(windows, seed)
    assert np.array_equal(
        np.sort(order.windows_at(range(epoch * windows, (epoch + 1) * windows))), np.arange(windows)
    )


def test_epochs_and_seeds_differ_and_look_shuffled():
    def epoch(seed, number, windows=5000):
        return WindowOrder(windows, seed).windows_at(
            range(number * windows, (number + 1) * windows)
        )

    orders = [epoch(1, 0), epoch(1, 1), epoch(2, 0)]
    for index, a in enumerate(orders):
        assert abs(np.corrcoef(a, np.arange(len(a)))[0, 1]) < 0.05
        assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.05
        for b in orders[index + 1 :]:
            assert (a == b).mean() < 0.01


def test_places_can_be_asked_for_in_any_order():
    order = WindowOrder(1_000_000_007, 5)
    places = [3, 10**12, 0, 999]
    assert order.windows_at(places).tolist() == [order.windows_at([place])[0] for place in places]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_rows_depend_on_seed_and_step_alone(processes):
    stream = Stream(np.arange(50 * 8 + 1))
    whole = Loader(stream, 8, 12, seed=3)
    parts = [Loader(stream, 8, 12, seed=3, share=(rank, processes)) for rank in range(processes)]
    for step in (7, 0, 1, 2, 1):  # forward, back and again: no memory of what came before
        rows = torch.cat([part.rows(step) for part in parts])
        assert torch.equal(rows, whole.rows(step))
        assert (rows[:, 1:] == rows[:, :-1] + 1).all()
        assert (rows[:, 0] % 8 == 0).all()
    for loader in (whole, *parts):
        loader.close()


def test_an_epoch_covers_all_the_data():
    stream = Stream(np.arange(24 * 8 + 1))
    loader = Loader(stream, 8, 6, seed=3)
    first = torch.cat([loader.rows(step)[:, 0] for step in range(4)])
    assert sorted(first.tolist()) == [8 * window for window in range(24)]
    assert loader.epoch(4) == 1.0
    loader.close()


def test_a_changed_batch_goes_on_from_the_place_reached():
    stream = Stream(np.arange(40 * 8 + 1))
    before = Loader(stream, 8, 4, seed=3)
    after = Loader(stream, 8, 8, seed=3, first=(5, before.place(5)))
    assert after.windows(5).tolist() == [*before.windows(5), *before.windows(6)]
    assert after.windows(6)[:4].tolist() == before.windows(7).tolist()
    before.close()
    after.close()


@pytest.mark.parametrize("per_step", [1, 12, 5000])
def test_windows_are_the_order_s_at_any_step(per_step):
    loader = Loader(Stream(np.arange(30 * 8 + 1)), 8, per_step, seed=3)
    for step in (
        0,
        1,
        340,
        341,
        342,
        3,
        0,
        999,
    ):  # forward, over the end of what was looked up, and back
        places = range(step * per_step, (step + 1) * per_step)
        assert loader.windows(step).tolist() == loader.order.windows_at(places).tolist()
    loader.close()


def test_too_short_a_split_is_said():
    with pytest.raises(UserError, match="less than one window"):
        Loader(Stream(np.arange(8)), 8, 1, seed=0)


def test_documents_are_counted_by_their_separators():
    #             0  0  0  1  1  2  2  2  2  3  3  3
    stream = Stream([5, 5, 9, 5, 9, 5, 5, 5, 9, 5, 5, 5])
    assert documents_of(stream, 3, np.array([0]), eot=9) == [0]
    assert documents_of(stream, 3, np.array([1]), eot=9) == [1, 2]
    assert documents_of(stream, 3, np.array([3, 1]), eot=9) == [1, 2, 3]
