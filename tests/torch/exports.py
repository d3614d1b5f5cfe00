"""Exports of small runs, and what our own model says; for tests of what other programs read of them."""

import torch

from onecard.cli import main
from onecard.export.trained import load_trained
from onecard.model.generate import Sampling, generate

TEXT = "the cat sat on the mat, and the dog sat on the log. ÀÉ नमस्ते 🙂\n"


def exported(run, to, target, *words):
    assert main(["export", str(run), "--to", to, "--out", str(target), *words]) == 0
    return target


def our_logits(run, ids):
    trained = load_trained(run)
    with torch.no_grad():
        return trained.model(torch.tensor([ids]))[0][0, :, : trained.vocab_size]


def greedy(run, ids, count):
    trained = load_trained(run)
    drawn = generate(
        trained.model, [ids], count, Sampling(temperature=0), vocab_size=trained.vocab_size
    )
    return [row[0] for row in drawn]
