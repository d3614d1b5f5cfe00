"""`onecard eval` against transformers: the same bits per byte, the same answers on real items, whatever the packing."""

import json
import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from onecard.cli import main
from onecard.data import gpt2
from onecard.evals.scoring import Question, _batches, _Row, score_all, truncated
from onecard.evals.tasks import TASKS
from onecard.model.machine import Precision
from onecard.model.opening import open_model
from onecard.runs.eval_results import Result, interval, keep, kept

FP32 = Precision("float32", False, "")
HELLASWAG = [
    {
        "activity_label": "Roof shingle removal",
        "ctx_a": "A man is sitting on a roof.",
        "ctx_b": "he",
        "endings": [
            "is using wrap to wrap a pair of skis.",
            "is ripping level tiles off.",
            "is holding a rubik's cube.",
            "starts pulling up roofing on a roof.",
        ],
        "label": 3,
    },
    {
        "activity_label": "Health",
        "ctx_a": "[header] How to rest [title] Lie down. [step] Find a place.",
        "ctx_b": "",
        "endings": ["Sleep [substeps] well.", "Run.", "Eat a very large meal first.", "Stand."],
        "label": "0",
    },
]
LAMBADA = [
    {"text": "In my palm is a clear stone, and inside it is a small ivory statuette"},
    {"context": "She opened the door and saw her old", "continuation": "friend"},
]


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A GPT-2 of random weights, as transformers saves it."""
    torch.manual_seed(0)
    shape = GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=64, vocab_size=50257)
    model = GPT2LMHeadModel(shape).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far enough from uniform that answers differ
            parameter.add_(0.05 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(folder)
    return folder, model


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    folder = tmp_path_factory.mktemp("items")
    for name, rows in (("hellaswag", HELLASWAG), ("lambada", LAMBADA)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def direct(model, context, ending):
    """The log-probability of an ending by one plain pass of transformers."""
    ids = torch.tensor([[*context, *ending][:-1]])
    with torch.no_grad():
        chances = model(ids).logits[0].log_softmax(-1)
    places = range(len(context) - 1, ids.shape[1])
    return sum(chances[place, token].item() for place, token in zip(places, ending, strict=True))


def test_shared_contexts_score_as_single_rows(released):
    folder, theirs = released
    ours = open_model(str(folder), "cpu").model
    encode = gpt2().encode
    task = TASKS["hellaswag"]
    questions = [task.question(task.parse(row), encode, 50256) for row in HELLASWAG]
    questions.append(Question([50256], [[262], [11, 257, 31]]))
    for budget in (1, 64, 8192):  # one row a batch, some, all
        for question, scores in zip(
            questions, score_all(ours, questions, FP32, row_tokens=budget), strict=True
        ):
            for ending, score in zip(question.endings, scores, strict=True):
                expected = direct(theirs, question.context, ending)
                assert score.log_probability == pytest.approx(expected, abs=1e-3)


def test_half_precision_reaches_the_head(released, monkeypatch):
    from onecard.evals import scoring

    ours = open_model(str(released[0]), "cpu").model
    halves = []

    def seen(*given):
        halves.append(torch.is_autocast_enabled("cpu"))
        return scoring_likelihoods(*given)

    scoring_likelihoods = scoring.likelihoods
    monkeypatch.setattr(scoring, "likelihoods", seen)
    question = Question([50256, 262], [[262], [11, 257, 31]])
    (half,) = score_all(ours, [question], Precision("bfloat16", False, ""))
    (whole,) = score_all(ours, [question], FP32)
    assert halves == [True, False]
    for one, other in zip(half, whole, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, rel=0.02)


def test_a_long_context_is_cut_on_the_left(released):
    folder, theirs = released
    ours = open_model(str(folder), "cpu").model
    context, endings = list(range(100, 180)), [[5, 6], [7, 8, 9]]
    (scores,) = score_all(ours, [Question(context, endings)], FP32)
    for ending, score in zip(endings, scores, strict=True):
        expected = direct(theirs, context[-(65 - len(ending)) :], ending)
        assert score.log_probability == pytest.approx(expected, abs=1e-3)


def test_an_ending_that_is_longer_than_the_context_of_the_model_follows_its_own_beginning(released):
    folder, theirs = released
    ending = list(range(200, 270))
    ((score,),) = score_all(
        open_model(str(folder), "cpu").model, [Question([5, 6], [ending])], FP32
    )
    expected = direct(theirs, ending[5:6], ending[6:])
    assert score.log_probability == pytest.approx(expected, abs=1e-3)


def test_the_requests_are_the_harness_own():
    encode = gpt2().encode
    item = TASKS["hellaswag"].parse(HELLASWAG[1])
    assert item.context == "Health:  How to rest.  Lie down.  Find a place.".replace("  ", " ")
    assert item.endings[0] == " Sleep well."
    assert item.right == 0
    question = TASKS["lambada"].question(TASKS["lambada"].parse(LAMBADA[0]), encode, 50256)
    assert gpt2().decode(question.endings[0]) == " statuette"
    assert gpt2().decode([*question.context, *question.endings[0]]) == LAMBADA[0]["text"]


def test_bits_per_byte_of_every_byte_once(released, tmp_path, capsys):
    folder, theirs = released
    text = "The cat sat on the mat. नमस्ते! " * 12
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    command = ["eval", str(folder), "--text", str(tmp_path / "text.txt"), "--json", "--device=cpu"]
    assert main([*command, "--stride", "16"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    found = {figure["name"]: figure["value"] for figure in answer["figures"]}
    ids = [50256, *gpt2().encode(text)]
    assert answer["items"] == len(text.encode())
    nats, scored = 0.0, 1
    while scored < len(ids):
        end = min(65 if scored == 1 else scored + 16, len(ids))
        start = max(end - 65, 0)
        nats -= direct(theirs, ids[start:scored], ids[scored:end])
        scored = end
    assert found["bits_per_byte"] == pytest.approx(
        nats / math.log(2) / len(text.encode()), rel=1e-4
    )
    assert found["loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-4)


def test_tasks_from_the_command_line(released, items, capsys):
    folder, theirs = released
    words = [
        "--hellaswag",
        str(items / "hellaswag.jsonl"),
        "--lambada",
        str(items / "lambada.jsonl"),
    ]
    assert main(["eval", str(folder), *words, "--json", "--device=cpu"]) == 0
    hellaswag, lambada = json.loads(capsys.readouterr().out)
    task, encode = TASKS["hellaswag"], gpt2().encode
    right = 0
    for row in HELLASWAG:
        question = task.question(task.parse(row), encode, 50256)
        chances = [direct(theirs, question.context, ending) for ending in question.endings]
        right += chances.index(max(chances)) == int(row["label"])
    assert hellaswag["figures"][0]["value"] == right / 2
    assert hellaswag["figures"][0]["low"] == pytest.approx(interval(right / 2, 2)[0])
    assert {figure["name"] for figure in lambada["figures"]} == {"acc", "perplexity"}
    assert main(["eval", str(folder), *words, "--limit", "1", "--device=cpu"]) == 0
    shown = capsys.readouterr().out
    assert "95%" in shown
    assert "GPT-2 124M" in shown
    assert "1 of 10,042 items" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "nothing to evaluate on"),
        (["--hellaswag", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--lambada", "HELLASWAG"], "line 1: not an item of lambada"),
        (["--text", "EMPTY"], "the text is empty"),
        (["--text", "EMPTY", "--limit", "0"], "--limit cannot be 0"),
    ],
)
def test_mistakes(released, items, tmp_path, capsys, words, sentence):
    (tmp_path / "empty.txt").write_text("")
    places = {"HELLASWAG": str(items / "hellaswag.jsonl"), "EMPTY": str(tmp_path / "empty.txt")}
    command = ["eval", str(released[0]), *(places.get(word, word) for word in words)]
    assert main([*command, "--device=cpu"]) == 2
    assert sentence in capsys.readouterr().err


def test_what_was_measured_before_a_mistake_is_shown(released, tmp_path, capsys):
    for name, text in (("good", "The cat sat on the mat."), ("empty", "")):
        (tmp_path / f"{name}.txt").write_text(text)
    texts = [
        word for name in ("good", "empty") for word in ("--text", str(tmp_path / f"{name}.txt"))
    ]
    assert main(["eval", str(released[0]), *texts, "--device=cpu", "--json"]) == 2
    shown = capsys.readouterr()
    assert [result["task"] for result in json.loads(shown.out)] == ["text good.txt"]
    assert "the text is empty" in shown.err


def test_a_model_that_is_not_there(capsys, tmp_path):
    assert main(["eval", str(tmp_path / "no"), "--text", "x.txt"]) == 2
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert main(["eval", str(tmp_path), "--text", "x.txt"]) == 2
    assert "model of type 'llama'" in capsys.readouterr().err


def test_results_are_kept_and_damage_is_passed_over(tmp_path):
    task = TASKS["lambada"]
    result = Result("m", 5, "lambada", task.protocol, 2, 0, (), 1.0)
    keep(result, tmp_path)
    (tmp_path / "evals" / "x.json").write_text('{"schema": "onecard.eval/2", "figures": [3]}')
    assert kept(tmp_path) == [result]


def test_a_gpt2_with_other_arithmetic_is_refused(released, tmp_path, capsys):
    settings = json.loads((released[0] / "config.json").read_text())
    for change, word in (({"activation_function": "relu"}, "relu"), ({"n_inner": 7}, "n_inner")):
        (tmp_path / "config.json").write_text(json.dumps({**settings, **change}))
        assert main(["eval", str(tmp_path), "--text", "x.txt"]) == 2
        assert word in capsys.readouterr().err


def test_a_vocabulary_smaller_than_the_texts_tokens(tmp_path, capsys, items):
    """A tokeniser with more tokens than the model has rows is one sentence, never an index error."""
    shape = GPT2Config(n_layer=1, n_head=1, n_embd=16, n_positions=64, vocab_size=1000)
    GPT2LMHeadModel(shape).save_pretrained(tmp_path)
    from onecard.export.tokenizer_files import write_tokenizer

    write_tokenizer(tmp_path, gpt2(), 64)
    (tmp_path / "t.txt").write_text("A statuette of an astronaut.")
    for words in (["--text", str(tmp_path / "t.txt")], ["--lambada", str(items / "lambada.jsonl")]):
        assert main(["eval", str(tmp_path), *words, "--device=cpu"]) == 2
        assert "the model has 1,000 tokens" in capsys.readouterr().err


def test_a_second_model_that_is_not_there_does_not_hide_the_first(
    released, items, capsys, tmp_path
):
    words = ["--lambada", str(items / "lambada.jsonl"), "--device=cpu", "--json"]
    assert main(["eval", str(released[0]), str(tmp_path / "no"), *words]) == 2
    shown = capsys.readouterr()
    assert [result["task"] for result in json.loads(shown.out)] == ["lambada"]
    assert "there is no model" in shown.err


def test_a_context_that_fills_the_block_is_not_cut():
    """The last token of an ending is predicted, never read."""
    assert not truncated(Question([1] * 6, [[1], [1, 2, 3]]), 8)
    assert truncated(Question([1] * 7, [[1], [1, 2, 3]]), 8)


def test_batches_stay_within_their_tokens():
    rows = [_Row(n, [0] * length, [], []) for n, length in enumerate([8, 8, 8, 8, 3, 3])]
    batches = list(_batches(rows, 24))
    assert [len(batch) for batch in batches] == [3, 1, 2]
    assert all(len(batch[0].ids) * len(batch) <= 24 for batch in batches)
