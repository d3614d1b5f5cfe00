"""Evaluations of runs: kept, gone on with, shown by `runs`, `compare` and `explain`; runs that are whole without their data."""

import json
import shutil
from pathlib import Path

import pytest
from runs_in_tests import TINY

from onecard.cli import main
from onecard.data import prepare
from onecard.errors import UserError
from onecard.evals import evaluate
from onecard.evals.evaluation import Request, evaluate_model
from onecard.evals.in_training import parse_tasks, training_benchmark
from onecard.evals.prompts import Answer, Sheet, figures_of, read_prompts
from onecard.evals.tasks import TASKS
from onecard.evals.texts import documents
from onecard.messages import T
from onecard.report import show
from onecard.report.eval_view import eval_document, protocol_words
from onecard.runs.eval_results import Result, kept
from onecard.train.run.loop import train
from onecard.train.run.progress import StepClock

ITEMS = Path(__file__).parents[1] / "items"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two short runs, one with benchmarks in training; their data folder is gone afterwards."""
    place = tmp_path_factory.mktemp("runs")
    source = place / "text.txt"
    source.write_text("the cat sat on the mat, and the dog sat on the log. " * 400)
    prepare([str(source)], out=place / "data", tokenizer="bpe:300", val_fraction=0.1, workers=1)
    base = TINY.replace(vocab_size=None, dropout=0.0, max_iters=4, lr_decay_iters=4)
    base = base.replace(dataset=str(place / "data"), block_size=64, eval_interval=2)
    tasks = f"lambada={ITEMS / 'lambada.jsonl'}:5"
    first = base.replace(
        out_dir=str(place / "first"),
        eval_tasks=tasks,
        eval_tasks_interval=2,
        always_save_checkpoint=True,
    )
    train(first, benchmark=training_benchmark(first))
    train(base.replace(out_dir=str(place / "second")))
    shutil.copytree(place / "data", place / "kept-data")
    shutil.rmtree(place / "data")
    return place


def test_benchmarks_in_training_are_kept_and_their_time_is_apart(trained):
    assert [(r.task, r.step, r.items) for r in kept(trained / "first")][:2] == [
        ("lambada", 2, 5),
        ("lambada", 4, 5),
    ]
    lines = [
        json.loads(line) for line in (trained / "first" / "log.jsonl").read_text().splitlines()
    ]
    apart = [line for line in lines if line.get("event") == "tasks"]
    assert [line["step"] for line in apart] == [2, 4]
    assert all(line["seconds"] > 0 for line in apart)
    assert [line["task"] for line in lines if line["kind"] == "tasks"] == ["lambada", "lambada"]


def test_time_that_is_left_out_is_in_no_step_and_no_pace(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("onecard.train.run.progress.time.perf_counter", lambda: now[0])
    clock = StepClock()
    passed = []
    for step in range(4):
        clock.begin()
        now[0] += 1.0
        passed.append(clock.end(0.0))
        if step == 1:
            now[0] += 50.0
            clock.leave_out(50.0)
    assert passed == [1.0, 1.0, 1.0, 1.0]
    assert clock.pace() == 1.0
    assert clock.interval().step_seconds == 1.0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("hellaswog", "no task 'hellaswog'"),
        ("lambada=nowhere.jsonl", "nowhere.jsonl cannot be read"),
    ],
)
def test_wrong_tasks_stop_a_run_before_it_starts(words, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_tasks(words)


def test_a_run_is_whole_without_its_data(trained, capsys, tmp_path):
    run = str(trained / "first")
    assert main(["sample", run, "the cat", "--tokens", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["texts"]
    assert main(["export", run, "--to", "hf", "--out", str(tmp_path / "m")]) == 0
    card = (tmp_path / "m" / "README.md").read_text()
    assert "text.txt" in card
    assert "lambada" in card
    assert main(["eval", str(tmp_path / "m"), "--text", str(trained / "text.txt"), "--json"]) == 0


def test_an_older_run_without_its_copy_uses_the_data_folder(trained, tmp_path, capsys):
    older = tmp_path / "older"
    shutil.copytree(trained / "first", older)
    shutil.rmtree(older / "data")
    assert main(["sample", str(older), "the", "--tokens", "3"]) == 2
    data = str(trained / "kept-data")
    assert main(["sample", str(older), "the", "--tokens", "3", "--dataset", data]) == 0
    capsys.readouterr()


def test_results_are_kept_shown_and_not_measured_twice(trained, capsys, monkeypatch):
    run = str(trained / "second")
    command = ["eval", run, "--lambada", str(ITEMS / "lambada.jsonl"), "--limit", "20"]
    command += ["--text", str(trained / "text.txt"), "--device=cpu"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "GPT-2 124M" in shown
    assert "bits per byte" in shown
    assert "20 of 5,153 items" in shown
    assert main([*command, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)

    def never(*_, **__):
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr("onecard.evals.evaluation.evaluate_task", never)
        patch.setattr("onecard.evals.evaluation.evaluate_text", never)
        assert main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == first
        with pytest.raises(AssertionError):
            evaluate_model(run, Request(tasks={"lambada": ITEMS / "lambada.jsonl"}, again=True))
    assert main(["runs", str(trained)]) == 0
    assert "LAMBADA" in capsys.readouterr().out
    assert main(["compare", run, str(trained / "first"), "--full"]) == 0
    shown = capsys.readouterr().out
    assert "LAMBADA" in shown
    assert main(["explain", run]) == 0
    assert "LAMBADA" in capsys.readouterr().out


def test_an_interrupted_task_goes_on_where_it_stopped(trained, monkeypatch):
    run, request = str(trained / "second"), Request(tasks={"hellaswag": ITEMS / "hellaswag.jsonl"})
    asked = []
    real = evaluate.score_all

    def counted(model, questions, *rest):
        asked.append(len(questions))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(model, questions, *rest)

    monkeypatch.setattr("onecard.evals.evaluate.score_all", counted)
    with pytest.raises(KeyboardInterrupt):
        evaluate_model(run, request)
    interrupted = sum(asked[:2])
    asked += [0, 0, 0]
    (result,) = evaluate_model(run, request).results
    assert sum(asked[6:]) == 200 - interrupted
    assert not list((trained / "second" / "evals").glob(".partial*"))
    (whole,) = evaluate_model(
        run, Request(tasks={"hellaswag": ITEMS / "hellaswag.jsonl"}, again=True)
    ).results
    assert result.figures == whole.figures


def test_prompts_side_by_side(trained, capsys, tmp_path):
    (tmp_path / "p.txt").write_text("# mine\n\nthe cat\nthe dog\n")
    runs = [str(trained / name) for name in ("first", "second")]
    command = ["eval", *runs, "--prompts", str(tmp_path / "p.txt"), "--prompt-tokens", "12"]
    assert main([*command, "--json"]) == 0
    sheets = json.loads(capsys.readouterr().out)
    assert [len(sheet["answers"]) for sheet in sheets] == [4, 4]
    assert all(0 <= sheet["greedy"]["repeated"] <= 1 for sheet in sheets)
    for words in (["--markdown"], ["--html"], []):
        assert main([*command, *words]) == 0
        shown = capsys.readouterr().out
        assert "the cat" in shown
        assert "greedy" in shown
    assert all(len(read_prompts(language)) == 8 for language in ("en", "es", "hi"))


def test_checkpoints_by_name(trained, capsys):
    command = ["eval", str(trained / "first"), "--text", str(trained / "text.txt"), "--json"]
    for which, step in (("2", 2), ("newest", 4)):
        assert main([*command, "--checkpoint", which]) == 0
        assert json.loads(capsys.readouterr().out)[0]["step"] == step
    assert main([*command, "--checkpoint", "best"]) == 0
    capsys.readouterr()
    assert main([*command, "--checkpoint", "7"]) == 2
    assert "no checkpoint '7'" in capsys.readouterr().err


def test_folders_and_prepared_data_are_texts(trained, tmp_path):
    for name in ("b.txt", "a.md"):
        (tmp_path / name).write_text(f"in {name}")
    assert list(documents(tmp_path)) == ["in a.md", "in b.txt"]
    assert list(documents(tmp_path, most_bytes=10)) == ["in a.md", "in "]
    prepared = "".join(documents(trained / "kept-data"))
    assert prepared
    assert prepared in (trained / "text.txt").read_text()


def test_models_with_different_tokenisers_are_compared_by_bits(trained, capsys, tmp_path):
    source = tmp_path / "t.txt"
    source.write_text("the cat sat on the mat " * 300)
    prepare([str(source)], out=tmp_path / "d", tokenizer="bytes", val_fraction=0.1, workers=1)
    config = TINY.replace(vocab_size=None, dropout=0.0, max_iters=2, lr_decay_iters=2)
    train(config.replace(dataset=str(tmp_path / "d"), out_dir=str(tmp_path / "run")))
    models = [str(trained / "first"), str(tmp_path / "run")]
    assert main(["eval", *models, "--text", str(source)]) == 0
    assert "different tokenisers" in " ".join(capsys.readouterr().out.split())


def test_a_group_of_tasks_keeps_all_its_results(trained, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []

    def group(sampler, name, tasks, *, key, **_):
        asked.append(tasks)
        return [Result(name, sampler.step, t, "p", 1, 0, (), 1.0, key=key) for t in ("a", "b")]

    monkeypatch.setattr("onecard.evals.evaluation.run_tasks", group)
    request = Request(harness=("ab",))
    for _ in range(2):
        found = evaluate_model(str(trained / "second"), request).results
        assert [result.task for result in found] == ["a", "b"]
        (tmp_path / "notes.txt").write_text("what else lies here is not the task's")
    assert asked == [["ab"]]


def test_an_endless_word_does_not_stack_the_sheet():
    answers = tuple(Answer("p", "self." * 60, greedy, False, 60) for greedy in (True, False))
    figures = figures_of(answers)
    sheets = [Sheet("a-run-with-a-rather-long-name-2026", 3, answers, figures, figures)]
    page = eval_document([], sheets)
    drawn = show(page, "terminal", lang="en", width=80, color=False, encoding="utf-8")
    assert max(map(len, drawn.splitlines())) <= 80
    (heads,) = [line for line in drawn.splitlines() if "text" in line]
    assert heads.split()[1:4] == ["model", "answers", "text"]
    assert 'class="breaks">self.' in show(page, "html", lang="en")


def test_protocols_of_our_own_are_translated():
    for protocol in (TASKS["hellaswag"].protocol, TASKS["lambada"].protocol):
        assert isinstance(protocol_words(protocol), T)
    windows = protocol_words("validation split, windows of 128 tokens, stride 64")
    assert isinstance(windows, T)
    assert str(windows) == "validation split, windows of 128 tokens, stride 64"
    assert protocol_words("of another program") == "of another program"
