"""`onecard chat` and what a tuned model says: here, through the command, and through transformers after an export."""

import io
import json
import os
import random
import signal
import sys

import pytest
import torch
from runs_in_tests import TINY
from starlette.testclient import TestClient

from onecard.cli import chat, main
from onecard.config.recipes import recipe_values
from onecard.data.tokenizers.special import has_chat_tokens
from onecard.model.generate import Sampling
from onecard.model.opening import open_model
from onecard.train.run.loop import train
from onecard.tune.dialogue import Dialogue
from onecard.tune.formats import Message
from onecard.tune.template import CHAT_TEMPLATE, prompt_of
from onecard.ui.app import application
from onecard.ui.settings import Settings

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A toy language in which the answer to a word is the word reversed: a base that has read words, and its tuning."""
    place = tmp_path_factory.mktemp("toy")
    draw = random.Random(5)
    words = sorted({"".join(draw.choices("abcdefgh", k=4)) for _ in range(1500)})
    draw.shuffle(words)
    held_out, known = words[:60], words[60:]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        (place / "text.txt").write_text(" ".join(draw.choice(words) for _ in range(4000)))
        record = [
            {
                "messages": [
                    {"role": "user", "content": w},
                    {"role": "assistant", "content": w[::-1]},
                ]
            }
            for w in known
        ]
        (place / "talks.jsonl").write_text("".join(json.dumps(r) + "\n" for r in record))
        assert main(["data", "text.txt", "--tokenizer", "bytes", "--out", "data/toy"]) == 0
        # GPT-2's recipe with AdamW learns it too, in about 400 steps; the modern one is quicker
        modern = {"recipe": "modern", "tied": False, "optimizer": "muon", "schedule": "linear"}
        shape = {"n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 48, "dropout": 0.0}
        rates = {"learning_rate": 0.02, "min_lr": 0.002, "warmup_iters": 0, "weight_decay": 0.0}
        base = TINY.replace(
            vocab_size=None, dataset="toy", out_dir="base", **shape, **modern, **rates
        )
        train(base.replace(max_iters=40, lr_decay_iters=40, eval_interval=40))
        settings = [
            "--learning_rate=0.02",
            "--max_iters=160",
            "--batch_size=16",
            "--keep-base",
            "0",
        ]
        settings += ["--gradient_accumulation_steps=1", "--eval_interval=1000", "--quiet"]
        assert main(["tune", "base", "talks.jsonl", *settings]) == 0
        assert main(["export", "base-chat", "--to", "hf", "--out", "hf"]) == 0
    return place, held_out


@pytest.fixture(autouse=True)
def there(request, monkeypatch):
    """Beside the runs, as a user would be: the base's data set is named by its folder."""
    if "toy" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("toy")[0])


def answers(folder, words):
    talk = Dialogue(open_model(str(folder), "cpu"), GREEDY, most_tokens=12)
    found = []
    for word in words:
        talk.reset()
        found.append("".join(talk.ask(word).stream))
    return found


def test_a_toy_language_is_learnt_and_the_base_knows_none_of_it(toy):
    place, words = toy
    right = [
        given == word[::-1]
        for word, given in zip(words, answers(place / "base-chat", words), strict=True)
    ]
    assert sum(right) >= 0.95 * len(words)
    base = answers(place / "base", words)
    assert not any(given.strip() == word[::-1] for word, given in zip(words, base, strict=True))


def by_transformers(folder, words, **how):
    """The answers through transformers' own apply_chat_template and generate."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, **how)
    theirs = []
    for word in words:
        messages = [{"role": "user", "content": word}]
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**ids, max_new_tokens=12, do_sample=False)
        theirs.append(
            tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        )
    return theirs


def test_transformers_gives_the_same_answers_by_its_own_chat_template(toy):
    place, words = toy
    theirs = by_transformers(place / "hf", words[:20], trust_remote_code=True)
    assert theirs == answers(place / "base-chat", words[:20])
    assert theirs == answers(place / "hf", words[:20])  # our own reader of the exported folder


def test_gpt2s_recipe_chats_in_transformers_without_any_code_of_ours(toy, tmp_path):
    _, words = toy
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 48, "dropout": 0.0}
    rates = {"learning_rate": 3e-3, "max_iters": 10, "lr_decay_iters": 10, "eval_interval": 10}
    base = tmp_path / "gpt2"
    train(TINY.replace(vocab_size=None, dataset="toy", out_dir=str(base), **shape, **rates))
    out, hf = str(tmp_path / "gpt2-chat"), tmp_path / "hf"
    settings = ["--learning_rate=5e-3", "--max_iters=50", "--batch_size=16", "--keep-base", "0"]
    settings += ["--gradient_accumulation_steps=1", "--eval_interval=1000", "--quiet"]
    assert main(["tune", str(base), "talks.jsonl", "--out", out, *settings]) == 0
    assert main(["export", out, "--to", "hf", "--out", str(hf)]) == 0
    assert not list(hf.glob("*.py"))
    theirs = by_transformers(hf, words[:20])
    assert theirs == answers(out, words[:20])
    assert all(theirs)
    from transformers import GPT2LMHeadModel

    model, ours = GPT2LMHeadModel.from_pretrained(hf), open_model(out, "cpu")
    ids = torch.tensor([prompt_of(ours.tokenizer, [Message("user", words[0])])])
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, ours.model(ids, ids)[0], atol=1e-4)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("recipe", "letters", "lengths", "steps"),
    [("gpt2", "abcdefgh", (4, 4), 900), ("modern", "abcdefghij", (3, 5), 300)],
)
def test_a_larger_toy_language(tmp_path, monkeypatch, recipe, letters, lengths, steps):
    """Words reversed, by either recipe, the held-out ones never seen; words of several lengths take AdamW far longer."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(7)
    words = sorted({"".join(draw.choices(letters, k=draw.randint(*lengths))) for _ in range(4000)})
    draw.shuffle(words)
    held_out, known = words[:120], words[120:]
    (tmp_path / "text.txt").write_text(" ".join(draw.choices(known, k=4000)))
    lines = [json.dumps({"prompt": word, "completion": word[::-1]}) for word in known]
    (tmp_path / "talks.jsonl").write_text("\n".join(lines))
    assert main(["data", "text.txt", "--tokenizer", "bytes", "--out", "data/toy"]) == 0
    keys = {"n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 48, "dropout": 0.0}
    keys |= {"learning_rate": 3e-3, "max_iters": 40, "lr_decay_iters": 40, "eval_interval": 40}
    if recipe == "modern":
        keys |= {**recipe_values(recipe), "recipe": recipe}
    train(TINY.replace(vocab_size=None, dataset="toy", out_dir="base", **keys))
    settings = [f"--learning_rate={keys['learning_rate']}", "--batch_size=32", "--quiet"]
    settings += [f"--max_iters={steps}"]
    settings += ["--gradient_accumulation_steps=1", "--eval_interval=1000", "--keep-base", "0"]
    assert main(["tune", "base", "talks.jsonl", *settings]) == 0
    given = answers("base-chat", held_out)
    right = [word[::-1] == answer for word, answer in zip(held_out, given, strict=True)]
    assert sum(right) >= 0.95 * len(held_out)
    assert main(["export", "base-chat", "--to", "hf", "--out", "hf"]) == 0
    code = {"trust_remote_code": True} if recipe == "modern" else {}
    assert by_transformers("hf", held_out[:30], **code) == given[:30]
    base = answers("base", held_out[:40])
    assert not any(w[::-1] == a.strip() for w, a in zip(held_out[:40], base, strict=True))


def test_the_template_and_our_own_rule_give_the_same_tokens(toy):
    from transformers import AutoTokenizer

    place, _ = toy
    tokenizer = AutoTokenizer.from_pretrained(place / "hf")
    assert tokenizer.chat_template == CHAT_TEMPLATE
    ours = open_model(str(place / "base-chat"), "cpu").tokenizer
    assert has_chat_tokens(ours)
    talk = [
        Message("system", "Answer  in kind.\n"),
        Message("user", "  héllo <b>\n\nthere "),
        Message("assistant", "yes: नमस्ते 🙂"),
        Message("user", "and now?"),
    ]
    records = [{"role": m.role, "content": m.content} for m in talk]
    theirs = tokenizer.apply_chat_template(records, add_generation_prompt=True, return_dict=True)
    assert theirs["input_ids"] == prompt_of(ours, talk)
    with pytest.raises(Exception, match="unknown role"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}])


def typed(monkeypatch, text, *words):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return main(["chat", *map(str, words)])


def test_a_pipe_is_one_prompt_a_line_and_one_answer_a_line(toy, monkeypatch, capsys):
    place, words = toy
    lines = "".join(f"{word}\n" for word in words[:5])
    assert typed(monkeypatch, lines, place / "base-chat", "--temperature", "0") == 0
    out = capsys.readouterr().out.splitlines()
    assert out == answers(place / "base-chat", words[:5])
    command = (place / "base-chat", "--temperature", "0", "--json")
    assert typed(monkeypatch, lines + "\n" + "x" * 100 + "\n", *command) == 2
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [row["answer"] for row in rows[:5]] == out
    assert {row["ended"] for row in rows[:5]} == {"stop"}
    assert (rows[5]["answer"], rows[5]["ended"]) == ("", None)
    assert "fit into the context of 48" in captured.err


def test_an_untuned_model_says_so_and_continues_the_text(toy, monkeypatch, capsys):
    place, _ = toy
    assert typed(monkeypatch, "abcd\n", place / "base", "--tokens", "9", "--json") == 0
    captured = capsys.readouterr()
    assert "never tuned" in captured.err
    assert json.loads(captured.out)["tokens"] == 9


def test_commands_change_the_conversation(toy, monkeypatch, capsys, tmp_path):
    place, words = toy
    saved = tmp_path / "talk.jsonl"
    script = f"""/temp 0
/system be kind
{words[0]}
/save {saved}
/reset
/seed x
/temp -1
/fly
/top-k 3
/help
{words[1]}
/exit
{words[2]}
"""
    assert typed(monkeypatch, script, place / "base-chat", "--turns") == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2  # nothing after /exit
    record = json.loads(saved.read_text())
    assert [m["role"] for m in record["messages"]] == ["system", "user", "assistant"]
    for words in ("needs a number", "temperature cannot be -1", "no command /fly", "top-k = 3"):
        assert words in captured.err


def test_the_oldest_turns_go_when_the_context_is_full(toy):
    place, words = toy
    talk = Dialogue(open_model(str(place / "base-chat"), "cpu"), GREEDY, most_tokens=8)
    dropped = 0
    for word in words[:8]:
        reply = talk.ask(word)
        assert "".join(reply.stream) == reply.stream.text
        talk.keep(reply)
        dropped += reply.dropped
        assert dropped + len(talk.messages) >= 2
    assert dropped >= 2
    assert talk.messages[0].role == "user"
    assert talk.messages[-2].content == words[7]


def asked(place, model, messages, **more):
    """What the server answers: streamed or whole."""
    client = TestClient(
        application(Settings(root=place, device="cpu")), base_url="http://localhost"
    )
    body = {"model": model, "messages": messages, "max_tokens": 12, "temperature": 0, **more}
    return client.post("/v1/chat/completions", json=body)


def user(text):
    return {"role": "user", "content": text}


def test_a_request_without_a_model_goes_to_the_only_one(toy):
    place, words = toy
    body = {"messages": [user(words[0])], "max_tokens": 4, "temperature": 0}
    alone = Settings(root=place, device="cpu", only=place / "base-chat")
    client = TestClient(application(alone), base_url="http://localhost")
    answer = client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["model"]) == (200, "base-chat")
    for model, status, message in ((None, 400, "names no model"), ([], 404, "no model '[]'")):
        answer = asked(place, model, body["messages"])
        assert answer.status_code == status
        assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize("model", ["base-chat", "hf"])
def test_the_api_answers_as_the_command_does(toy, model, monkeypatch, capsys):
    place, words = toy
    lines = "".join(f"{word}\n" for word in words[:3])
    command = (place / model, "--temperature", "0", "--tokens", "12", "--turns", "--system", "abc")
    assert typed(monkeypatch, lines, *command) == 0
    wanted = capsys.readouterr().out.splitlines()
    messages = [{"role": "developer", "content": "abc"}]
    for word, answer in zip(words[:3], wanted, strict=True):
        messages.append(user(word))
        whole = asked(place.resolve(), model, messages).json()
        assert whole["choices"][0]["message"]["content"] == answer != ""
        assert whole["choices"][0]["finish_reason"] == "stop"
        messages.append({"role": "assistant", "content": answer})
    streamed = asked(place.resolve(), model, messages[:2], stream=True).text
    pieces = [json.loads(line[6:]) for line in streamed.split("\n\n") if line.startswith("data: {")]
    text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
    assert text.strip() == wanted[0]
    alone = asked(place.resolve(), model, [user(words[0])]).json()["choices"][0]["message"]
    assert alone["content"] == words[0][::-1]  # what it was tuned to answer


def test_the_api_draws_as_the_command_does_and_a_base_model_gets_a_transcript(toy, capsys):
    place, words = toy
    root = place.resolve()
    drawn = asked(root, "base-chat", [user(words[0])], temperature=2.0, seed=7, n=3).json()
    hot = Dialogue(open_model("base-chat", "cpu"), Sampling(temperature=2.0, seed=7), 12)
    wanted = ["".join(hot.ask(words[0]).stream).strip() for _ in range(3)]
    assert [choice["message"]["content"] for choice in drawn["choices"]] == wanted
    assert asked(root, "base-chat", [user("x" * 100)]).status_code == 400  # longer than the context
    ends_with_answer = [user("ab"), {"role": "assistant", "content": "ba"}]
    assert asked(root, "base-chat", ends_with_answer).status_code == 400
    plain = asked(root, "base", [user(words[0])]).json()["choices"][0]["message"]["content"]
    text = f"User: {words[0]}\nAssistant:"
    capsys.readouterr()
    command = ["sample", "base", text, "--tokens", "12", "--temperature", "0", "--device", "cpu"]
    assert main([*command, "--json"]) == 0
    (sampled,) = json.loads(capsys.readouterr().out)["texts"]
    assert plain == sampled.partition("\nUser:")[0].strip()


def test_ctrl_c_stops_an_answer_and_what_was_said_is_kept(toy, monkeypatch, capsys):
    place, words = toy
    talk = Dialogue(open_model(str(place / "base-chat"), "cpu"), GREEDY)
    real, pieces = chat._write, []

    def write(text):
        real(text)
        pieces.append(text)
        if len(pieces) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(chat, "_write", write)
    chat._answer(talk, words[0])
    assert capsys.readouterr().out.endswith(" (stopped)\n")
    question, answer = talk.messages
    assert (question.content, answer.content) == (words[0], pieces[0])
    assert words[0][::-1].startswith(answer.content)
    assert len(answer.content) < len(words[0])


@pytest.mark.parametrize(
    "words", [["--tokens", "0"], ["--min-p", "1"], ["--repetition-penalty", "0"]]
)
def test_impossible_wishes_are_answered(toy, capsys, words):
    place, _ = toy
    assert main(["chat", str(place / "base-chat"), *words]) == 2
    assert "for example" in capsys.readouterr().err


def test_a_gguf_file_has_the_template_and_ends_at_the_end_of_a_turn(tmp_path, monkeypatch):
    """With a BPE vocabulary, which llama.cpp can express; the tables grow by the roles."""
    gguf = pytest.importorskip("gguf")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog did not. " * 200)
    assert main(["data", "text.txt", "--tokenizer", "bpe:300", "--out", "data/cat"]) == 0
    train(
        TINY.replace(vocab_size=None, dataset="cat", out_dir="cat", max_iters=2, lr_decay_iters=2)
    )
    (tmp_path / "t.jsonl").write_text('{"prompt": "the cat", "completion": "sat"}\n' * 3)
    assert main(["tune", "cat", "t.jsonl", "--quiet", "--max_iters=2"]) == 0
    assert main(["export", "cat-chat", "--to", "gguf", "--dtype", "f32", "--out", "g"]) == 0
    reader = gguf.GGUFReader(tmp_path / "g" / "model-f32.gguf")
    assert reader.fields["tokenizer.chat_template"].contents() == CHAT_TEMPLATE
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    end = reader.fields["tokenizer.ggml.eos_token_id"].contents()
    assert tokens[end] == "<|end|>"
    table = next(t for t in reader.tensors if t.name == "token_embd.weight")
    assert table.shape[1] == len(tokens)
    assert torch.isfinite(torch.tensor(table.data)).all()
