"""A card that the driver shows and torch cannot see is reported, with what to do."""

import pytest

torch = pytest.importorskip("torch")

from onecard.facts.here import Seen  # noqa: E402
from onecard.model import machine  # noqa: E402


def test_a_card_that_torch_cannot_see(monkeypatch):
    monkeypatch.setattr(
        machine, "seen_cards", lambda: [Seen("NVIDIA GeForce RTX 4070", 12 << 30, 0)]
    )
    sentence = machine.unseen_card(torch.device("cpu"), "auto")
    assert "RTX 4070" in sentence
    assert "pytorch.org" in sentence
    assert machine.unseen_card(torch.device("cpu"), "cpu") is None


def test_no_card_nothing_said(monkeypatch):
    monkeypatch.setattr(machine, "seen_cards", lambda: [])
    assert machine.unseen_card(torch.device("cpu"), "auto") is None
