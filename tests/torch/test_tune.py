"""`onecard tune`: what is read, what is learned from, what may look at what; held against transformers."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from runs_in_tests import TINY, events, losses

from onecard.cli import main
from onecard.data import gpt2, open_dataset
from onecard.data.tokenizers.kinds import BytesTokenizer, CharsTokenizer
from onecard.data.tokenizers.load import load_tokenizer
from onecard.data.tokenizers.special import END, with_chat_tokens
from onecard.model import machine
from onecard.model.build import make_model
from onecard.model.opening import open_model
from onecard.model.weights import load_weights
from onecard.runs.log import read_log
from onecard.train.optim import make_optimizer
from onecard.train.run import loop
from onecard.train.run.faults import Faults
from onecard.train.run.loop import train
from onecard.train.run.row_marks import RowMarks, row_marks
from onecard.train.run.step import Stepper
from onecard.train.run.workers import Workers
from onecard.tune.formats import UnreadableError, read_conversations
from onecard.tune.gather import gather
from onecard.tune.packing import pack

CHAT = with_chat_tokens(BytesTokenizer())


def said(*turns):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": t} for n, t in enumerate(turns)]}


def write_lines(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


FORMATS = {
    "messages": {"messages": [{"role": "system", "content": "s"}, *said("q", "a")["messages"]]},
    "parts": {
        "messages": [
            {"role": "developer", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": "a"},
        ]
    },
    "sharegpt": {
        "conversations": [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "q"},
            {"from": "gpt", "value": "a"},
            {"from": "human", "value": "thanks, without an answer"},
        ]
    },
    "alpaca": {"system": "s", "instruction": "q", "input": "", "output": "a"},
    "completion": {"system": "s", "prompt": "q", "completion": " a"},
}


@pytest.mark.parametrize("kind", FORMATS)
def test_the_formats_people_have_say_the_same(tmp_path, kind):
    path = write_lines(tmp_path / "x.jsonl", [FORMATS[kind]])
    ((line, found),) = read_conversations(path)
    assert line == 1
    assert [(m.role, m.content) for m in found] == [
        ("system", "s"),
        ("user", "q"),
        ("assistant", "a"),
    ]


def test_a_json_list_is_read_and_alpacas_input_follows_the_instruction(tmp_path):
    path = tmp_path / "alpaca.json"
    path.write_text(json.dumps([{"instruction": "Reverse", "input": "ab", "output": "ba"}]))
    ((place, found),) = read_conversations(path)
    assert (place, found[0].content) == (1, "Reverse\n\nab")


def test_what_cannot_be_read_is_counted_and_named_by_line(tmp_path):
    good = json.dumps(said("hello", "hi")).encode()
    long = json.dumps(said("x" * 10_000_000, "short")).encode()
    odd = [
        b'{"messages": [broken',
        json.dumps({"messages": [{"role": "tool", "content": "x"}]}).encode(),
        json.dumps(said("q", "  ")).encode(),
        long,
        '{"prompt": "caf\u00e9", "completion": "x"}'.encode("latin-1"),
        json.dumps({"title": "x"}).encode(),
        b'{"prompt": "\\ud800", "completion": "x"}',
        json.dumps(said("only a question")).encode(),
        b"[1, 2]",
        json.dumps(said("q", None)).encode(),
    ]
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(b"\n".join([b"\xef\xbb\xbf" + good, *odd, b"", good, good]))
    found = gather([path], CHAT, room=64)
    assert (len(found.items), found.distinct) == (3, 1)
    named = {str(skips.reason): skips.lines for skips in found.skipped}
    assert named == {
        "not JSON": (2,),
        "unknown role 'tool'": (3,),
        "empty answer": (4, 11),
        "longer than the context of 64 tokens": (5,),
        "not UTF-8": (6,),
        "no known format (it has title)": (7,),
        "half of a surrogate pair, which is no character": (8,),
        "no answer": (9,),
        "not a JSON object": (10,),
    }


def test_turns_that_do_not_fit_are_left_out_and_reported(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", [said("a", "b", "c" * 100, "d"), said("a", "b")])
    found = gather([path], CHAT, room=32)
    assert found.shortened == 1
    assert found.distinct == 1  # what is left of the first is the second
    assert CHAT.decode(found.items[0].ids) == ("<|endoftext|><|user|>a<|end|><|assistant|>b<|end|>")
    assert found.items[0].learned == 2


def test_packing_keeps_every_conversation_whole():
    generator = np.random.default_rng(3)
    lengths = generator.integers(1, 100, 500).tolist()
    windows = pack(lengths, 100)
    assert sorted(i for window in windows for i in window) == list(range(500))
    assert max(sum(lengths[i] for i in window) for window in windows) <= 100
    assert len(windows) <= sum(lengths) / 100 * 1.03 + 1


@pytest.mark.parametrize("base", [gpt2(), BytesTokenizer(), CharsTokenizer("abc", separator=False)])
def test_role_tokens_come_after_the_vocabulary_and_never_out_of_text(tmp_path, base):
    chat = with_chat_tokens(base)
    assert min(chat.special.values()) == base.vocab_size
    assert chat.vocab_size == base.vocab_size + len(chat.special)
    assert chat.eot is not None
    if base.name != "chars":
        assert max(chat.encode("<|user|>x<|end|>")) < base.vocab_size
    if (content := chat.file_content()) is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    again = load_tokenizer(chat.describe(), tmp_path)
    assert again.describe() == chat.describe()
    assert again.decode([chat.special[END]]) == END
    assert with_chat_tokens(again) is again


# three conversations and their windows, as the trainer reads them
TALKS = [
    said("abc", "cba", "de", "ed"),
    said("hello there", "ereht olleh"),
    said("what?", "nothing at all, as it seems"),
]


@pytest.fixture
def packed(tmp_path):
    """Two packed windows of 64 tokens, and the conversations alone with what counts in each."""
    path = write_lines(tmp_path / "talks.jsonl", TALKS)
    items = gather([path], CHAT, room=64).items
    end = CHAT.special[END]
    rows = []
    for window in pack([len(item.ids) for item in items], 64):
        ids = np.concatenate([items[place].ids for place in window])
        rows.append([*ids.tolist(), *[end] * (64 - len(ids)), CHAT.eot])
    assert len(rows) == 2
    return torch.tensor(rows), [item.ids.tolist() for item in items]


def labels_of(ids):
    """transformers' labels, written down by hand: -100 but for an assistant's text and its end."""
    labels, counts = [], False
    names = {index: name for name, index in CHAT.special.items()}
    for index in ids:
        labels.append(index if counts else -100)
        if index in names or index == CHAT.eot:
            counts = names.get(index) == "<|assistant|>"
    return labels


def tuned_config(**keys):
    shape = {"vocab_size": CHAT.vocab_size, "block_size": 64, "dropout": 0.0, "bias": True}
    learning = {"learn_from": "answers", "mask_documents": True, "grad_clip": 0.0}
    batch = {"batch_size": 1, "gradient_accumulation_steps": 2}
    return TINY.replace(**{**shape, **learning, **batch, **keys})


def chat_marks(config):
    class Data:
        tokenizer, eot = CHAT, CHAT.eot

    return row_marks(config, Data)


@pytest.mark.parametrize("keys", [{}, {"chunked_loss": True}, {"batch_size": 2}])
def test_loss_and_gradients_of_a_packed_batch_are_transformers(tmp_path, packed, keys):
    """Conversation by conversation with labels -100, in fp32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    rows, talks = packed
    torch.manual_seed(5)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64}
    off = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "initializer_range": 0.2}
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=CHAT.vocab_size, **shape, **off))
    theirs.save_pretrained(tmp_path / "hf")
    config = tuned_config(**keys, gradient_accumulation_steps=2 // keys.get("batch_size", 1))
    ours = make_model(config)
    load_weights(ours, str(tmp_path / "hf"))

    total, counted = 0.0, 0
    for ids in talks:
        labels = torch.tensor([labels_of(ids)])
        count = int((labels[:, 1:] != -100).sum())
        loss = theirs(torch.tensor([ids]), labels=labels).loss * count
        loss.backward()
        total, counted = total + loss.item(), counted + count

    cpu = torch.device("cpu")
    stepper = Stepper(
        config,
        ours,
        ours,
        make_optimizer(config, ours),
        torch.amp.GradScaler("cpu", enabled=False),
        machine.precision_of("float32", cpu),
        Workers("auto", cpu),
        config.batch_size,
        chat_marks(config),
        Faults(),
        lambda before, now: None,
    )
    loss, _ = stepper.gradients(rows, 0, 1)
    assert loss == pytest.approx(total / counted, rel=1e-6)
    wanted = {name: p.grad / counted for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        grad = wanted[name].t() if wanted[name].shape != parameter.shape else wanted[name]
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            grad = wanted[name].t()
        scale = grad.abs().max()
        assert torch.allclose(parameter.grad, grad, atol=2e-6 * float(scale) + 1e-9, rtol=1e-4), (
            name
        )


@pytest.mark.parametrize("recipe", ["gpt2", "modern"])
def test_nothing_attends_across_conversations(packed, recipe):
    """A conversation's logits are those it has alone, whatever stands before it in the window."""
    rows, talks = packed
    torch.manual_seed(2)
    config = tuned_config(recipe=recipe, tied=recipe == "gpt2", bias=False)
    model = make_model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        marks = chat_marks(config)
        crowded = next(row for row in rows if (row[:-1] == CHAT.eot).sum() == 2)
        inputs = crowded[None, :-1]
        first, second = (inputs[0] == CHAT.eot).nonzero().flatten().tolist()
        alone = next(ids for ids in talks if ids == inputs[0, second : second + len(ids)].tolist())
        place = slice(second, second + len(alone))
        packed_logits = model(inputs, None, marks.documents(inputs))[0][0, place]
        own = torch.tensor([alone])
        wanted = model(own, None, marks.documents(own))[0][0]
        assert torch.allclose(packed_logits, wanted, atol=1e-4)
        other = inputs.clone()
        other[0, first + 2 : second] = 65
        assert torch.equal(model(other, None, marks.documents(other))[0][0, place], packed_logits)
        # the comparison can fail: without the mask the neighbour shows
        assert not torch.allclose(model(inputs, None, None)[0][0, place], wanted, atol=1e-2)


def test_text_that_is_mixed_in_counts_as_in_pretraining():
    marks = chat_marks(tuned_config())
    end = CHAT.special[END]
    text = [5, 6, CHAT.eot, 7, 8, end, CHAT.eot]
    assert marks.targets(torch.tensor([text])).tolist() == [[6, CHAT.eot, 7, 8, -100, -100]]
    assert RowMarks().targets(torch.tensor([text])).tolist() == [text[1:]]


def test_new_rows_are_the_mean_of_the_trained_ones(tmp_path, config):
    train(config.replace(vocab_size=70, max_iters=1, lr_decay_iters=1, warmup_iters=0))
    before = open_model(config.out_dir, "cpu").model.transformer.wte.weight
    grown = make_model(config.replace(vocab_size=80))
    load_weights(grown, config.out_dir, new_ids_from=64)
    after = grown.transformer.wte.weight
    assert torch.equal(after[:64], before[:64])
    assert torch.allclose(after[64:], before[:64].mean(dim=0).expand(16, -1), atol=1e-7)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run on bytes, and a file of conversations: answers are words reversed."""
    place = tmp_path_factory.mktemp("made")
    generator = np.random.default_rng(1)
    words = ["".join(generator.choice(list("abcdef"), 3)) for _ in range(400)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        (place / "text.txt").write_text(" ".join(words * 8))
        assert main(["data", "text.txt", "--tokenizer", "bytes", "--out", "data/toy"]) == 0
        train(TINY.replace(vocab_size=None, dataset="toy", out_dir="base", block_size=32))
    write_lines(place / "talks.jsonl", [said(w, w[::-1]) for w in words])
    return place


@pytest.fixture
def base(made, tmp_path, monkeypatch):
    """The same, in a folder of its own."""
    place = tmp_path / "place"
    shutil.copytree(made, place)
    monkeypatch.chdir(place)
    return place


QUICK = ["--learning_rate=1e-3", "--quiet"]


def test_a_stopped_tuning_goes_on_to_the_same_weights(base, capsys, monkeypatch):
    assert main(["tune", "base", "talks.jsonl", "--max_iters=12", *QUICK]) == 0
    words = ["talks.jsonl", "--max_iters=12", "--eval_interval=4", "--out", "halves", *QUICK]
    straight = losses("base-chat")
    real = loop.write_sample
    seen = []

    def stop_once(session, model, step):
        if not seen:
            seen.append(step)
            os.kill(os.getpid(), signal.SIGINT)
        real(session, model, step)

    monkeypatch.setattr(loop, "write_sample", stop_once)
    assert main(["tune", "base", *words]) == 130
    assert max(losses("halves")) < 12
    assert main(["tune", "halves", "--resume", "--quiet"]) == 0
    assert losses("halves") == straight


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform == "win32", reason="gloo under torchrun is not set up there")
def test_two_processes_tune_as_one_does(base, capsys):
    """The same packing, the windows of each step shared out, the mean over all tokens that count."""
    words = ["tune", "base", "talks.jsonl", "--max_iters=6", "--batch_size=3", *QUICK]
    words += ["--gradient_accumulation_steps=3"]  # 9 rows: 4 and 5
    assert main([*words, "--out", "one"]) == 0
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    quiet = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    env = {**os.environ, **quiet}
    command = [*start, "-m", "onecard", *words, "--out", "two"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert list(losses("two").values()) == pytest.approx(list(losses("one").values()), rel=1e-5)
    one, two = (open_dataset(f"{out}/conversations").splits["train"] for out in ("one", "two"))
    assert np.array_equal(one.read(0, one.tokens), two.read(0, two.tokens))


def test_the_log_shows_what_was_forgotten_of_the_bases_text(base, capsys):
    """Before the first step the loss on the base's text is the base's own, to rounding."""
    assert main(["tune", "base", "talks.jsonl", "--keep-base", "20%", *QUICK]) == 0
    evaluations = [line for line in read_log("base-chat/log.jsonl") if line["kind"] == "eval"]
    assert evaluations[0]["step"] == 0
    known = [line for line in read_log("base/log.jsonl") if line["kind"] == "eval"][-1]
    full = open_dataset("base-chat/conversations").splits["base"].tokens // 32
    assert full * 32 >= known["eval_tokens"]
    assert evaluations[0]["base_val_loss"] == pytest.approx(known["val_loss"], rel=0.1)
    assert all("base_val_loss" in line for line in evaluations)
    data = open_dataset("base-chat/conversations")
    rows = data.splits["train"].read(0, data.splits["train"].tokens - 1).reshape(-1, 32)
    of_text = (rows != CHAT.special["<|user|>"]).all(axis=1).mean()
    assert of_text == pytest.approx(0.2, abs=0.02)
    assert {e["event"] for e in events("base-chat")} == {"preflight"}
    capsys.readouterr()
    assert main(["explain", "base-chat", "--json"]) == 0
    rules = [finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert {"forgotten", "forgotten-much", "not-forgotten"} & set(rules)
    assert main(["compare", "base", "base-chat"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "base's own validation text" in shown
    assert "base-chat was tuned from base" in shown
    before, after = (evaluations[place]["base_val_loss"] for place in (0, -1))
    assert f"{before:.4f} → {after:.4f}" in shown
    assert "changed together" not in shown
    assert main(["compare", "base", "base-chat", "--full"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "counts the assistant's words alone" in shown


def test_it_says_beforehand_what_there_is(base, capsys):
    write_lines(base / "copies.jsonl", [said(f"q{n % 14}", f"a{n % 14}") for n in range(1000)])
    assert main(["tune", "base", "copies.jsonl", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "1,000 conversations, 14 distinct",
        "learned from",
        "form of an answer",
        "Memory",
    ):
        assert words in shown
    assert not (base / "base-chat").exists()
    assert main(["tune", "base", "copies.jsonl", "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["conversations"], answer["distinct"]) == (1000, 14)
    assert 0 < answer["learned_tokens"] < answer["tokens"]
    assert main(["tune", "base", "copies.jsonl", "--dry-run", "--explain"]) == 0
    assert "a tenth of" in capsys.readouterr().out


def test_shares_of_several_files_are_shares_of_tokens(base, capsys):
    write_lines(base / "more.jsonl", [said("x" * (n % 9 + 1), "y") for n in range(300)])
    files = ["talks.jsonl=75%", "more.jsonl=25%"]
    assert main(["tune", "base", *files, "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [f["share"] for f in answer["files"]] == pytest.approx([0.75, 0.25], abs=0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no file of conversations"),
        (["missing.jsonl"], "there is no file"),
        (["broken.jsonl"], "no conversation that can be learned from"),
        (["empty.jsonl"], "holds no conversation"),
        (["talks.jsonl=-5%", "more.jsonl=105%"], "share of -5%"),
        (["talks.jsonl=100%", "broken.jsonl=100%", "empty.jsonl=100%"], "add up to 300%"),
        (["talks.jsonl", "--keep-base", "-1%"], "--keep-base"),
        (["talks.jsonl", "--keep-base", "95%"], "leaves nothing"),
        (["talks.jsonl", "--epochs", "0"], "--epochs"),
        (["talks.jsonl", "--n_layer=3"], "follows from the base"),
        (["talks.jsonl", "--base-data", "nowhere"], "no data set"),
    ],
)
def test_bad_wishes_get_one_sentence(base, capsys, words, said):
    (base / "broken.jsonl").write_text('{"messages": [\n{oops\n')
    (base / "empty.jsonl").write_text("\n")
    assert main(["tune", "base", *words]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert "Traceback" not in errors
    assert not (base / "base-chat").exists()
    found = [error for _, error in read_conversations(base / "broken.jsonl")]
    assert all(isinstance(error, UnreadableError) for error in found)


def test_released_weights_and_nanogpts_checkpoint_are_tuned_too(tmp_path, monkeypatch, capsys):
    """A table of 50,257 rows grows to 50,304; nanoGPT's has the room. The new rows are the mean before the first step."""
    from transformers import GPT2Config, GPT2LMHeadModel

    monkeypatch.chdir(tmp_path)
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 16}
    theirs = GPT2LMHeadModel(GPT2Config(n_positions=64, **shape))
    theirs.save_pretrained(tmp_path / "released")
    args = {**shape, "block_size": 64, "bias": False, "vocab_size": 50304}
    model = make_model(TINY.replace(**args, dropout=0.0))
    (tmp_path / "nano").mkdir()
    torch.save({"model": model.state_dict(), "model_args": args}, tmp_path / "nano" / "ckpt.pt")
    write_lines(tmp_path / "t.jsonl", [said("Hello there", "General"), said("One", "Two")] * 4)
    for source, out in (("released", "released-chat"), ("nano/ckpt.pt", "nano-chat")):
        words = ["--max_iters=1", "--learning_rate=1e-12", "--compile=False", "--quiet"]
        assert main(["tune", source, "t.jsonl", *words]) == 0
        tuned = open_model(out, "cpu")
        table = tuned.model.transformer.wte.weight
        assert table.shape[0] == 50304
        assert tuned.tokenizer.special["<|system|>"] == 50257
        mean = table[:50257].mean(dim=0)
        assert torch.allclose(table[50257:50261], mean.expand(4, -1), atol=1e-6)
