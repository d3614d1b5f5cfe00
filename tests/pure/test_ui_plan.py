"""The page's planner answers what the command prints, to the digit, and names no files."""

import json
import random

import pytest
from starlette.testclient import TestClient

from onecard.cli import main
from onecard.config import load
from onecard.ui.answers import json_answer
from onecard.ui.app import application
from onecard.ui.settings import Settings

pytestmark = pytest.mark.usefixtures("tuned_once")
ADDRESS = "http://localhost"


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return TestClient(application(Settings(root=tmp_path)), base_url=ADDRESS)


def random_state(rng: random.Random) -> dict[str, str]:
    """A setting as a person moves the sliders."""
    heads = rng.choice([4, 8, 12, 16])
    state = {
        "gpu": rng.choice(["RTX 4070", "RTX 4090", "H100 SXM", "RTX 3060 12GB"]),
        "preset": rng.choice(["gpt2", "fineweb-41M-12gb", "gpt2-medium", ""]),
        "data": rng.choice(["fineweb-edu-10B", "3.68B", "openwebtext", ""]),
        "n_head": str(heads),
        "n_embd": str(heads * 64),
        "n_layer": str(rng.randint(2, 36)),
        "batch_size": str(rng.choice([1, 4, 8, 16])),
        "dtype": rng.choice(["auto", "float32", "float16"]),
        "chunked_loss": rng.choice(["True", "False"]),
        "recompute": rng.choice(["none", "cheap", "block"]),
        "recipe": rng.choice(["gpt2", "modern"]),
        "price": rng.choice(["", "0.25EUR", "ES"]),
    }
    state |= rng.choice([{"tokens": "3.7B"}, {"max_iters": "5000"}, {}])
    return {key: value for key, value in state.items() if value}


def words_of(command: str) -> list[str]:
    import shlex

    return shlex.split(command)[1:]


@pytest.mark.parametrize("seed", range(10))
def test_the_answer_is_that_of_the_command(client, capsys, seed):
    answer = client.get("/api/plan", params=random_state(random.Random(seed))).json()
    assert main([*words_of(answer["command"]), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for plan in (printed, answer["plan"]):
        plan["time"].pop("finish")  # the clock moves on between the two
    assert answer["plan"] == printed


def test_hours_become_the_tokens_that_take_so_long(client, capsys):
    answer = client.get("/api/plan", params={"gpu": "RTX 4070", "preset": "gpt2", "hours": "20"})
    seconds = answer.json()["plan"]["time"]["total_seconds"]["mid"]
    assert 19.9 * 3600 < seconds <= 20 * 3600
    assert main([*words_of(answer.json()["command"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time"]["total_seconds"]["mid"] == seconds


def test_the_config_that_is_downloaded_is_the_one_planned(client, tmp_path):
    state = {"gpu": "RTX 4070", "preset": "fineweb-41M-12gb", "n_layer": "8", "tokens": "1B"}
    planned = client.get("/api/plan", params=state).json()["plan"]["config"]
    (tmp_path / "run.toml").write_bytes(client.get("/api/config", params=state).content)
    loaded = load(tmp_path / "run.toml")
    assert {key: getattr(loaded, key) for key in planned} == planned


def test_the_recommended_run_is_that_of_the_command_and_can_be_taken(client, capsys):
    state = {"gpu": "RTX 4070", "data": "fineweb-edu-10B", "preset": "gpt2"}
    for hours in ("5", "60"):  # what these leave behind changes nothing
        client.get("/api/recommend", params={**state, "for_hours": hours})
    best = client.get("/api/recommend", params={**state, "for_hours": "20.0"}).json()
    assert main([*words_of(best["command"]), "--json"]) == 0
    named = json.loads(capsys.readouterr().out)
    assert best["plan"]["config"] == named["config"]
    assert best["plan"]["loss"]["expected"] == named["plan"]["loss"]["expected"]
    taken = client.get("/api/plan", params={"gpu": "RTX 4070", **best["take"]}).json()["plan"]
    for part in ("params", "loss", "memory", "energy", "tokens"):
        assert taken[part] == best["plan"][part]


@pytest.mark.parametrize(
    "state",
    [
        {"gpu": "/etc/card.toml"},
        {"gpu": "../card.toml"},
        {"preset": "/etc/passwd"},
        {"preset": "../../config.py"},
        {"data": "/etc"},
        {"data": "."},
        {"data": "../data"},
        {"gpu": "RTX 9999"},
        {"n_layer": "-1"},
        {"n_embd": "x" * 61},
        {"n_embd": "769"},
        {"hours": "nan"},
        {"hours": "20", "max_iters": "5"},
        {"tokens": "0"},
        {"gpus": "1e9"},
        {"price": "what"},
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(client, state):
    answer = client.get("/api/plan", params={"gpu": "RTX 4070", **state})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "address",
    [
        "recommend",
        "curve",
        *(
            f"{a}={b}"
            for a in ("recommend?for_hours", "curve?at")
            for b in ("x", "nan", "-1", "inf")
        ),
    ],
)
def test_hours_that_are_none_are_refused_in_a_sentence(client, address):
    answer = client.get(f"/api/{address}")
    assert answer.status_code == 422
    assert "hours" in answer.json()["error"]["message"]


def test_keys_that_name_places_are_not_taken_from_a_page(client):
    answer = client.get("/api/plan", params={"gpu": "RTX 4070", "dataset": "/etc", "out_dir": "/x"})
    config = answer.json()["plan"]["config"]
    assert config["dataset"] == "openwebtext"
    assert config["out_dir"] == "out"


@pytest.mark.parametrize(
    ("header", "wanted"),
    [("es-MX,en;q=0.5", "es"), ("fr, hi;q=0.9, en;q=0.8", "hi"), ("fr", "en"), ("", "en")],
)
def test_the_page_speaks_the_browsers_language(client, header, wanted):
    page = client.get("/", headers={"accept-language": header}).text
    assert f'<html lang="{wanted}">' in page


def test_answers_are_sent_in_utf8_without_escapes():
    """Half the bytes for Hindi."""
    assert json_answer({"step": "चरण"}).body == '{"step":"चरण"}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):  # no browser reads NaN
        json_answer({"loss": float("nan")})
