"""Rows and sentences of reports that depend on what is known: there where it is, and left out or named where it is not."""

import re

from onecard.cli import main


def markdown(capsys, *words):
    assert main([*words, "--markdown"]) == 0
    return capsys.readouterr().out


def test_epochs_are_counted_where_the_data_is_known(capsys):
    text = markdown(capsys, "plan", "fineweb-41M-12gb", "--gpu", "RTX 4070", "--full")
    assert re.search(r"\| Epochs \| \*\*1\.05\*\* \| over the 9\.95 B tokens", text)
    text = markdown(capsys, "plan", "gpt2", "--dataset=mine", "--gpu", "RTX 4070", "--full")
    assert re.search(r"\| Epochs \| \*\*unknown\*\*", text)


def test_cards_side_by_side_have_one_loss(capsys):
    cards = ("--gpu", "RTX 4070", "--gpu", "RTX 4090")
    known = markdown(capsys, "plan", "fineweb-41M-12gb", *cards)
    assert re.search(r"The loss does not depend on the card: 3\.\d\d\.", known)
    unknown = markdown(capsys, "plan", "train_shakespeare_char", *cards)
    assert "The loss does not depend" not in unknown
