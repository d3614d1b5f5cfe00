"""Our own tasks and lm-evaluation-harness agree item by item: its requests on our model, its own back end on the same weights."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from onecard.cli import main
from onecard.data import gpt2
from onecard.evals.evaluate import scores_of
from onecard.evals.harness import _task, language_model, library
from onecard.evals.tasks import TASKS
from onecard.export.tokenizer_files import write_tokenizer
from onecard.model.opening import open_model

ITEMS = Path(__file__).parents[1] / "items"
pytestmark = pytest.mark.filterwarnings("ignore")  # the harness's own, and its packages'


def saved(folder, **shape):
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(**shape)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_tokenizer(folder, gpt2(), shape["n_positions"])
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """Fewer than 5 M parameters, with GPT-2's tokeniser."""
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 256}
    return saved(tmp_path_factory.mktemp("gpt2"), **shape)


@pytest.fixture(scope="module")
def local_data(tmp_path_factory):
    """The shipped items as the harness wants them: LAMBADA's in its `text` layout."""
    folder = tmp_path_factory.mktemp("data")
    rows = [json.loads(line) for line in (ITEMS / "lambada.jsonl").read_text().splitlines()]
    texts = [{"text": f"{row['context']} {row['continuation']}"} for row in rows]
    (folder / "lambada.jsonl").write_text("\n".join(map(json.dumps, texts)) + "\n")
    return {"hellaswag": ITEMS / "hellaswag.jsonl", "lambada_openai": folder / "lambada.jsonl"}


def harness_answers(lm, data, limit):
    """(log-probability, greedy) of every request, by task and item, as the harness asks them."""
    lm_eval = library()
    own = Path(lm_eval.tasks.__file__).parent  # its index of all tasks takes ten seconds
    folders = [str(own / "hellaswag"), str(own / "lambada")]
    manager = lm_eval.tasks.TaskManager(include_path=folders, include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=lm,
        tasks=[_task(name, manager, file) for name, file in data.items()],
        task_manager=manager,
        limit=limit,
        bootstrap_iters=0,
    )
    by_task = {}
    for name, samples in found["samples"].items():
        ordered = sorted(samples, key=lambda sample: sample["doc_id"])
        by_task[name] = [
            [(float(chance), str(greedy) == "True") for chance, greedy in _plain(sample)]
            for sample in ordered
        ]
    return found["results"], by_task


def _plain(sample):
    return [response[0] for response in sample["resps"]]


def hf_backend(folder, batch_size=8):
    from lm_eval.models.huggingface import HFLM

    model = GPT2LMHeadModel.from_pretrained(folder)
    return HFLM(
        pretrained=model,
        tokenizer=AutoTokenizer.from_pretrained(folder),
        batch_size=batch_size,
        device="cpu",
    )


def agree(folder, data, limit):
    sampler = open_model(str(folder), "cpu")
    figures, theirs = harness_answers(hf_backend(folder), data, limit)
    _, bridged = harness_answers(language_model(sampler), data, limit)
    for name, file in data.items():
        task = TASKS["lambada" if "lambada" in name else name]
        items = task.items(Path(file), limit)
        questions = [task.question(i, sampler.tokenizer.encode, 50256) for i in items]
        ours = scores_of(sampler.model, questions)
        assert len(ours) == len(theirs[name]) == len(bridged[name]) == (limit or 200)
        for mine, harness, bridge in zip(ours, theirs[name], bridged[name], strict=True):
            chances = [score.log_probability for score in mine]
            assert chances == pytest.approx([chance for chance, _ in harness], abs=2e-3)
            assert chances == pytest.approx([chance for chance, _ in bridge], abs=2e-3)
            assert [score.greedy for score in mine] == [greedy for _, greedy in harness]
        for figure in task.figures(items, ours):
            assert figures[name][f"{figure.name},none"] == pytest.approx(figure.value, rel=1e-3)


def test_the_same_answers_item_by_item(model_folder, local_data):
    agree(model_folder, local_data, 12)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_same_answers_on_all_shipped_items(model_folder, local_data):
    agree(model_folder, local_data, None)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_same_answers_at_the_124m_shape(tmp_path, local_data):
    shape = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
    agree(saved(tmp_path, **shape), local_data, 50)


@pytest.mark.long
def test_other_tasks_from_the_command_line(model_folder, tmp_path, capsys):
    rows = [
        {
            "goal": f"To open a jar, turn the {n}",
            "sol1": "lid.",
            "sol2": "sun and moon.",
            "label": 0,
        }
        for n in range(6)
    ]
    (tmp_path / "piqa.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    command = ["eval", str(model_folder), "--device=cpu", "--tasks", "piqa"]
    data = f"piqa={tmp_path / 'piqa.jsonl'}"
    assert main([*command, "--task-data", data, "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["task"] == "piqa"
    assert answer["items"] == 6
    assert {"acc", "acc_norm"} <= {figure["name"] for figure in answer["figures"]}
    assert answer["protocol"].startswith("lm-evaluation-harness")
    for wrong, sentence in (
        (["--tasks", "pika"], "has no task 'pika'"),
        (["--tasks", "piqa", "--task-data", "piqa"], "--task-data cannot be 'piqa'"),
        (["--tasks", "piqa", "--task-data", "piqa=no.jsonl"], "no.jsonl is no file of items"),
    ):
        assert main(["eval", str(model_folder), "--device=cpu", *wrong]) == 2
        assert sentence in capsys.readouterr().err
