"""Sampling: the cache and the sliding window give nanoGPT's tokens; nothing outside the vocabulary is drawn."""

import json

import pytest
import torch
from runs_in_tests import TINY

from onecard.cli import main
from onecard.data.tokenizers.kinds import BytesTokenizer
from onecard.model.generate import (
    Drawer,
    Generation,
    Sampler,
    Sampling,
    draw,
    generate,
    write_together,
)
from onecard.model.gpt2 import GPT
from onecard.model.modern import ModernGPT
from onecard.model.opening import load_run
from onecard.model.text_pieces import TextPieces, TextStream, stream_together
from onecard.train.run.loop import train


@pytest.fixture
def model():
    torch.manual_seed(3)
    model = GPT(TINY.replace(dropout=0.0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # far from flat, so that a wrong position changes the choice
    return model


def nanogpt_greedy(model, ids, count):
    """nanoGPT's generate at top_k=1: the whole window again for every token."""
    idx = torch.tensor(ids)
    with torch.no_grad():
        for _ in range(count):
            logits, _ = model(idx[:, -model.config.block_size :])
            idx = torch.cat((idx, logits[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    return idx[:, len(ids[0]) :].tolist()


@pytest.mark.parametrize("prompt", [[[5]], [[1, 2, 3], [7, 8, 9]], [list(range(40))]])
def test_greedy_is_nanogpts_also_past_the_block(model, prompt):
    model.eval()
    drawn = list(generate(model, prompt, 45, Sampling(temperature=0)))
    assert [list(row) for row in zip(*drawn, strict=True)] == nanogpt_greedy(model, prompt, 45)


def test_a_seed_is_a_text_and_training_goes_on_as_it_was(model):
    model.train()
    how = [Sampling(temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    texts = [list(generate(model, [[1]], 20, sampling)) for sampling in how]
    assert texts[0] == texts[1] != texts[2]
    assert model.training


def test_ids_beyond_the_vocabulary_cannot_be_drawn(model):
    with torch.no_grad():
        model.lm_head.weight[50:] *= 50  # the padding would win nearly always
    drawn = [
        token
        for step in generate(model, [[1]] * 20, 30, Sampling(temperature=2.0), vocab_size=50)
        for token in step
    ]
    assert max(drawn) < 50


def test_top_k_and_top_p_leave_what_they_should():
    chances = torch.tensor([0.5, 0.25, 0.15, 0.1])
    logits = chances.log().repeat(4000, 1)
    generator = torch.Generator().manual_seed(0)

    def seen(**how):
        drawn = draw(logits, Sampling(**{"temperature": 1.0, **how}), generator)
        return (torch.bincount(drawn.flatten(), minlength=4) / 4000).tolist()

    assert seen() == pytest.approx(chances.tolist(), abs=0.04)
    assert seen(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.04)
    assert seen(top_p=0.6) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.04)
    assert seen(top_p=0.5) == [1, 0, 0, 0]
    assert seen(top_k=3, top_p=0.8) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.04)
    assert seen(min_p=0.4) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.04)
    assert seen(top_k=1) == [1, 0, 0, 0]
    assert seen(temperature=0) == [1, 0, 0, 0]


def test_the_filters_are_transformers(model):
    """The same tokens remain, with the same chances, as after transformers' own processors."""
    from transformers.generation import logits_process as theirs

    logits = torch.randn(200, generator=torch.Generator().manual_seed(2)) * 3
    seen = [3, 5, 8, 190]
    how = Sampling(temperature=1.7, top_k=60, top_p=0.9, min_p=0.1, repetition_penalty=1.4)
    scores = logits[None].clone()
    for step in (
        theirs.RepetitionPenaltyLogitsProcessor(1.4),
        theirs.TemperatureLogitsWarper(1.7),
        theirs.TopKLogitsWarper(60),
        theirs.TopPLogitsWarper(0.9),
        theirs.MinPLogitsWarper(0.1),
    ):
        scores = step(torch.tensor([seen]), scores)
    wanted = scores.softmax(-1)[0]
    assert 5 < (wanted > 0).sum() < 60
    counts = torch.zeros(200)
    for seed in range(3000):
        drawer = Drawer(Sampling(**{**how.__dict__, "seed": seed}), seen)
        counts[drawer.draw(logits)] += 1
    assert set(counts.nonzero().flatten().tolist()) <= set(wanted.nonzero().flatten().tolist())
    assert (counts / 3000 - wanted).abs().max() < 0.03


@pytest.mark.parametrize("kind", [GPT, ModernGPT])
def test_texts_of_different_lengths_side_by_side_are_what_each_is_alone(kind):
    torch.manual_seed(3)
    config = TINY.replace(dropout=0.0, recipe="modern" if kind is ModernGPT else "gpt2")
    model = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1).mul_(2)

    def asked():
        return [
            Generation([5], Sampling(temperature=0), 30),  # past the block of 16
            Generation([1, 2, 3, 4, 5, 6], Sampling(temperature=1.0, seed=4), 7),
            Generation(list(range(9)), Sampling(repetition_penalty=1.5, seed=9), 4),
        ]

    together, alone = asked(), asked()
    for _ in write_together(model, together):
        pass
    for generation in alone:
        for _ in write_together(model, [generation]):
            pass
    assert [g.ids for g in together] == [g.ids for g in alone]
    assert [len(g.ids) for g in together] == [30, 7, 4]
    assert {g.ended for g in together} == {"length"}


def test_a_stop_token_and_a_cancel_end_one_text_and_not_the_others(model):
    warm = Sampling(temperature=1.5, seed=3)
    plain = Generation([1], warm, 20)
    for _ in write_together(model, [plain]):
        pass
    stop = next(t for t in plain.ids[3:] if t not in plain.ids[:3])
    at = plain.ids.index(stop)
    stopped = Generation([1], warm, 20, stop_tokens=[stop])
    cancelled, other = (Generation([1], warm, 20) for _ in range(2))
    for n, _ in enumerate(write_together(model, [stopped, cancelled, other])):
        if n == 4:
            cancelled.cancel()
    assert (stopped.ids, stopped.ended) == (plain.ids[:at], "stop")
    assert (cancelled.ids, cancelled.ended) == (plain.ids[:5], "cancelled")
    assert (other.ids, other.ended) == (plain.ids, "length")


def test_pieces_are_whole_characters_and_hold_nothing_of_a_stop_text():
    def given(text, stops, end=True):
        pieces = TextPieces(lambda token: bytes([token]), stops)
        parts = [pieces.push(value) for value in text.encode()]
        return [*filter(None, parts), *filter(None, [pieces.finish() if end else ""])]

    assert given("aé🙂", []) == ["a", "é", "🙂"]
    assert "".join(given("a\nUse\nUser: b", ["\nUser:"])) == "a\nUse"
    assert "".join(given("a STO", ["STOP"])) == "a STO"  # it did not come after all
    assert "".join(given("aab", ["ab"])) == "a"
    assert "".join(given("one STOP two HALT", ["HALT", "STOP"])) == "one "
    half = TextPieces(lambda token: bytes([token]))
    assert half.push(0xF0) == ""
    assert half.finish() == "\ufffd"


def test_streams_give_their_text_piece_by_piece(model):
    sampler = Sampler(model, BytesTokenizer(), step=0)
    stream = TextStream(sampler, [40], Sampling(temperature=1.0), most_tokens=12)
    pieces = list(stream)
    assert "".join(pieces) == stream.text == BytesTokenizer().decode(stream.ids)
    assert stream.ended == "length"
    assert len(stream.ids) == 12
    word = stream.text[4:6]
    assert word not in stream.text[:4]
    stopped, whole = (
        TextStream(sampler, [40], Sampling(temperature=1.0), most_tokens=12, stop_texts=stops)
        for stops in ([word], [])
    )
    columns = zip(*stream_together([stopped, whole]), strict=True)
    assert ["".join(column) for column in columns] == [stream.text[:4], stream.text]
    assert (stopped.ended, whole.ended) == ("stop", "length")


def test_the_command_streams_and_answers_in_json(config, capsys):
    train(config)
    assert main(["sample", config.out_dir, "0123", "--tokens", "12", "--seed", "5"]) == 0
    streamed = capsys.readouterr().out
    assert main(["sample", config.out_dir, "0123", "--tokens", "12", "--seed", "5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert streamed == "0123" + answer["texts"][0] + "\n"
    assert answer["step"] == 10
    assert len(answer["ids"][0]) == 12
    assert (
        main(
            [
                "sample",
                config.out_dir,
                "--n",
                "3",
                "--tokens",
                "5",
                "--top-k",
                "9",
                "--top-p",
                "0.9",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.count("---") >= 2


@pytest.mark.parametrize(
    "words",
    [["--temperature", "-1"], ["--top-p", "0"], ["--top-k", "0"], ["--tokens", "0"], ["--n", "0"]],
)
def test_impossible_wishes_are_answered(config, capsys, words):
    assert main(["sample", config.out_dir, *words]) == 2
    assert "for example" in capsys.readouterr().err


def test_a_folder_without_a_run_is_answered(tmp_path, capsys):
    assert main(["sample", str(tmp_path)]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "gone"), "--to", "hf"]) == 2
    assert "no folder" in capsys.readouterr().err


def test_a_checkpoint_can_be_named(config):
    from pathlib import Path

    train(config)
    assert load_run(Path(config.out_dir) / "checkpoints" / "step_00000008").step == 8
    assert load_run(Path(config.out_dir)).step == 10
