"""Sampling: the cache and the sliding window give nanoGPT's tokens; nothing outside the vocabulary is drawn."""

import json

import pytest
import torch
from runs_in_tests import TINY

from onecard.cli import main
from onecard.model.generate import draw, generate, load_run
from onecard.model.gpt2 import GPT
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
    """nanoGPT's generate at top_k=1: the whole window anew for every token."""
    idx = torch.tensor(ids)
    with torch.no_grad():
        for _ in range(count):
            logits, _ = model(idx[:, -model.config.block_size :])
            idx = torch.cat((idx, logits[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    return idx[:, len(ids[0]) :].tolist()


@pytest.mark.parametrize("prompt", [[[5]], [[1, 2, 3], [7, 8, 9]], [list(range(40))]])
def test_greedy_is_nanogpts_also_past_the_block(model, prompt):
    model.eval()
    drawn = list(generate(model, prompt, 45, temperature=0))
    assert [list(row) for row in zip(*drawn, strict=True)] == nanogpt_greedy(model, prompt, 45)


def test_a_seed_is_a_text_and_training_goes_on_as_it_was(model):
    model.train()
    texts = [list(generate(model, [[1]], 20, temperature=1.0, seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert model.training


def test_ids_beyond_the_vocabulary_cannot_be_drawn(model):
    with torch.no_grad():
        model.lm_head.weight[50:] *= 50  # the padding would win nearly always
    drawn = [
        token
        for step in generate(model, [[1]] * 20, 30, temperature=2.0, vocab_size=50)
        for token in step
    ]
    assert max(drawn) < 50


def test_top_k_and_top_p_leave_what_they_should():
    chances = torch.tensor([0.5, 0.25, 0.15, 0.1])
    logits = chances.log().repeat(4000, 1)
    generator = torch.Generator().manual_seed(0)

    def seen(**how):
        drawn = draw(
            logits, generator=generator, **{"temperature": 1.0, "top_k": None, "top_p": None, **how}
        )
        return (torch.bincount(drawn.flatten(), minlength=4) / 4000).tolist()

    assert seen() == pytest.approx(chances.tolist(), abs=0.04)
    assert seen(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.04)
    assert seen(top_p=0.6) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.04)
    assert seen(top_p=0.5) == [1, 0, 0, 0]
    assert seen(top_k=3, top_p=0.8) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.04)
    assert seen(top_k=1) == [1, 0, 0, 0]
    assert seen(temperature=0) == [1, 0, 0, 0]


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


def test_a_checkpoint_can_be_named(config):
    from pathlib import Path

    train(config)
    assert load_run(Path(config.out_dir) / "checkpoints" / "step_00000008").step == 8
    assert load_run(Path(config.out_dir)).step == 10
