"""`onecard export`: the real programs load what it writes, and say the same as our own model."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from runs_in_tests import TINY

from onecard.cli import main
from onecard.config import load
from onecard.data import gpt2, prepare
from onecard.data.tokenizers.kinds import EOT
from onecard.export.tokenizer_files import write_tokenizer
from onecard.export.trained import load_trained
from onecard.model.generate import Sampling, generate
from onecard.train.run.loop import train

TEXT = "the cat sat on the mat, and the dog sat on the log. ÀÉ नमस्ते 🙂\n"


@pytest.fixture(scope="module")
def text_data(tmp_path_factory):
    """The same small text under each tokeniser."""
    place = tmp_path_factory.mktemp("texts")
    source = place / "text.txt"
    words = TEXT.split(" ")
    generator = random.Random(1)
    source.write_text(" ".join(generator.choice(words) for _ in range(6000)), encoding="utf-8")

    def of(tokenizer):
        folder = place / tokenizer.replace(":", "_")
        if not folder.exists():
            prepare([str(source)], out=folder, tokenizer=tokenizer, val_fraction=0.1, workers=1)
        return folder

    return of


@pytest.fixture(scope="module")
def run_of(tmp_path_factory, text_data):
    """A run of a few steps: run_of("bpe:300", recipe="modern")."""
    place = tmp_path_factory.mktemp("runs")
    made = {}

    def of(tokenizer="bpe:300", recipe="gpt2", **keys):
        name = "-".join([tokenizer.replace(":", "_"), recipe, *map(str, keys.values())])
        if name not in made:
            base = TINY.replace(vocab_size=None, dropout=0.0, max_iters=4, lr_decay_iters=4)
            if recipe == "modern":
                base = load(None, ["recipe=modern", "max_iters=4"]).replace(
                    n_layer=2,
                    n_head=2,
                    n_embd=32,
                    block_size=16,
                    batch_size=4,
                    device="cpu",
                    compile=False,
                    eval_interval=4,
                    eval_iters=2,
                    gradient_accumulation_steps=1,
                )
            config = base.replace(
                dataset=str(text_data(tokenizer)), out_dir=str(place / name), **keys
            )
            train(config)
            made[name] = place / name
        return made[name]

    return of


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


@pytest.mark.parametrize("keys", [{}, {"bias": True}, {"tied": False}])
@pytest.mark.parametrize("recipe", ["gpt2", "modern"])
def test_transformers_has_our_logits_and_greedy_tokens(run_of, tmp_path, recipe, keys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = run_of(recipe=recipe, **keys)
    folder = exported(run, "hf", tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=recipe == "modern")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("the cat sat on")["input_ids"][:8]
    assert ids == load_trained(run).tokenizer.encode("the cat sat on")[:8]
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0]
    ours = our_logits(run, ids)
    assert theirs.shape == ours.shape  # no row that stands for no token
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    new = model.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert new[0, len(ids) :].tolist()[:6] == greedy(run, ids, 6)[: new.shape[1] - len(ids)]


def test_the_modern_cache_serves_batches_with_padding_and_beams(run_of, tmp_path):
    from transformers import AutoModelForCausalLM

    folder = exported(run_of(recipe="modern"), "hf", tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    long, short = [5, 6, 7, 8, 9], [7, 8, 9]
    padded = torch.tensor([long, [0, 0, *short]])
    there = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    together = model.generate(padded, attention_mask=there, **settings)[:, 5:]
    alone = [
        model.generate(torch.tensor([ids]), **settings)[0, len(ids) :] for ids in (long, short)
    ]
    assert together.tolist() == [row.tolist() for row in alone]
    for beams in (1, 3):
        with_cache, without = (
            model.generate(
                torch.tensor([long]), num_beams=beams, use_cache=use, **settings
            ).tolist()
            for use in (True, False)
        )
        assert with_cache == without


@pytest.mark.parametrize("tokenizer", ["bpe:300", "bytes", "chars", "gpt2"])
def test_tokenisers_round_trip_in_transformers(text_data, tmp_path, tokenizer):
    from transformers import AutoTokenizer

    from onecard.data import open_dataset

    ours = open_dataset(str(text_data(tokenizer))).tokenizer
    write_tokenizer(tmp_path, ours, context=16)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == ours.vocab_size
    for text in (TEXT, "  the  cat\n\n", "log.log"):
        ids = theirs(text)["input_ids"]
        assert ids == ours.encode(text)
        assert theirs.decode(ids) == text
    if ours.eot is not None:
        assert theirs.eos_token_id == ours.eot


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0"])
def test_gguf_is_read_back_by_transformers(run_of, tmp_path, kind):
    from gguf import GGUFReader

    run = run_of()
    folder = exported(run, "gguf", tmp_path / "model", "--dtype", kind)
    reader = GGUFReader(folder / f"model-{kind}.gguf")
    tokens = reader.fields["tokenizer.ggml.tokens"].data
    rows = next(t for t in reader.tensors if t.name == "token_embd.weight").shape[1]
    assert len(tokens) == rows == load_trained(run).vocab_size
    weights = {t.name: t for t in reader.tensors}
    from gguf.quants import dequantize

    trained = load_trained(run)
    ours = trained.model.transformer.h[0].attn.c_attn.weight.detach().numpy()
    found = weights["blk.0.attn_qkv.weight"]
    theirs = dequantize(found.data, found.tensor_type)
    assert np.abs(theirs - ours).max() <= {"f32": 0, "f16": 1e-4, "bf16": 1e-3, "q8_0": 2e-3}[kind]
    if kind == "f32":
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=f"model-{kind}.gguf")
        ids = [5, 6, 7, 8]
        with torch.no_grad():
            theirs = model(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(theirs, our_logits(run, ids), rtol=1e-4, atol=1e-5)


def test_nanogpt_checkpoint_holds_weights_and_moments(run_of, tmp_path):
    """Read as nanoGPT reads it: its GPT takes model_args, its optimizer the state dict, matrices first."""
    run = run_of(vocab_size=320)  # more rows than the tokeniser has tokens
    folder = exported(run, "nanogpt", tmp_path / "model")
    saved = torch.load(folder / "ckpt.pt", weights_only=True)
    trained = load_trained(run)
    assert saved["iter_num"] == 4
    assert saved["config"]["learning_rate"] == trained.config.learning_rate
    assert saved["model_args"]["vocab_size"] == trained.vocab_size < 320
    assert set(saved["model_args"]) == {
        "n_layer",
        "n_head",
        "n_embd",
        "block_size",
        "bias",
        "vocab_size",
        "dropout",
    }
    named = dict(trained.model.named_parameters())
    named["transformer.wte.weight"] = named["transformer.wte.weight"][: trained.vocab_size]
    assert torch.equal(saved["model"]["lm_head.weight"], named["transformer.wte.weight"])
    matrices = [p for p in named.values() if p.dim() >= 2]
    vectors = [p for p in named.values() if p.dim() < 2]
    groups = [
        {"params": [torch.nn.Parameter(p.detach().clone()) for p in matrices], "weight_decay": 0.1},
        {"params": [torch.nn.Parameter(p.detach().clone()) for p in vectors], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    optimizer.load_state_dict(saved["optimizer"])
    assert len(optimizer.state) == len(named)
    for parameter, state in optimizer.state.items():
        assert state["exp_avg"].shape == parameter.shape
        assert state["step"] == 4
    from onecard.model.weights import read_weights

    again = read_weights(str(folder))
    assert all(torch.equal(again[name], tensor) for name, tensor in named.items())


def test_the_card_tells_what_the_run_recorded(run_of, tmp_path):
    card = (exported(run_of(), "hf", tmp_path / "model") / "README.md").read_text(encoding="utf-8")
    assert "2 layers, 2 heads, width 32, context 16" in card
    assert "AutoModelForCausalLM.from_pretrained" in card
    for to, words in (("gguf", "llama-cli -m"), ("nanogpt", "python sample.py --out_dir=")):
        other = exported(run_of(), to, tmp_path / to) / "README.md"
        assert words in other.read_text(encoding="utf-8")
        assert "AutoModelForCausalLM" not in other.read_text(encoding="utf-8")
    assert "text.txt" in card  # the data's source
    assert "nats per token at step 4" in card
    assert str(tmp_path) not in card


@pytest.mark.parametrize(
    ("recipe", "tokenizer", "to", "sentence"),
    [
        ("modern", "bpe:300", "gguf", "llama.cpp has no architecture for recipe = 'modern'"),
        ("modern", "bpe:300", "nanogpt", "nanoGPT has no model for recipe = 'modern'"),
        ("gpt2", "chars", "gguf", "llama.cpp has no tokeniser for chars"),
        ("gpt2", "bytes", "gguf", "llama.cpp has no tokeniser for bytes"),
    ],
)
def test_what_cannot_be_expressed_is_refused(
    run_of, tmp_path, capsys, recipe, tokenizer, to, sentence
):
    run = run_of(tokenizer, recipe=recipe)
    assert main(["export", str(run), "--to", to, "--out", str(tmp_path / "model")]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_stays(run_of, tmp_path, capsys):
    run = run_of()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("three years")
    for words in ([], ["--force"]):  # not even --force replaces what is not an export
        assert main(["export", str(run), "--to", "hf", "--out", str(mine), *words]) == 2
    assert (mine / "thesis.txt").read_text() == "three years"
    target = exported(run, "hf", tmp_path / "model")
    assert main(["export", str(run), "--to", "hf", "--out", str(target)]) == 2
    assert "exists already" in capsys.readouterr().err
    exported(run, "hf", target, "--force", "--dtype", "bfloat16")
    assert json.loads((target / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_full_disk_leaves_nothing(run_of, tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onecard.export.huggingface.save_file", full)
    assert main(["export", str(run_of()), "--to", "hf", "--out", str(tmp_path / "model")]) == 1
    assert "No space left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def nanogpt_folder():
    """A checkout of nanoGPT, where one is named: NANOGPT=…/nanoGPT pytest tests/torch/test_export.py."""
    folder = os.environ.get("NANOGPT")
    if not folder:
        pytest.skip("NANOGPT names no folder")
    return Path(folder)


def gpt2_for_tiktoken(folder):
    """GPT-2's vocabulary as the two files that tiktoken would fetch, under the names that its cache has for them."""
    spec = gpt2().spec["model"]
    words = {**dict(sorted(spec["vocab"].items(), key=lambda item: item[1])), EOT: 50256}
    files = {
        "encoder.json": json.dumps(words),
        "vocab.bpe": "\n".join(["#version: 0.2", *spec["merges"], ""]),
    }
    folder.mkdir()
    for name, text in files.items():
        url = f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}"
        (folder / hashlib.sha1(url.encode()).hexdigest()).write_bytes(text.encode())
    return folder


def test_the_real_nanogpt_samples_and_resumes(run_of, tmp_path):
    """Its own model.py loads the file; greedy tokens may part only where two logits are closer than the GELUs differ."""
    nanogpt = nanogpt_folder()
    run = run_of("gpt2", bias=True)
    folder = exported(run, "nanogpt", tmp_path / "out")
    script = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
from model import GPT, GPTConfig
saved = torch.load(sys.argv[2], map_location="cpu", weights_only=True)
model = GPT(GPTConfig(**saved["model_args"]))
model.load_state_dict(saved["model"])
model.eval()
ids = json.loads(sys.argv[3])
logits = model(torch.tensor([ids]), torch.tensor([ids]))[0][0]
optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.95), "cpu")
optimizer.load_state_dict(saved["optimizer"])
print("LOGITS", json.dumps(logits.tolist()))
"""
    ids = [464, 3797, 3332, 319, 262, 2603]
    words = [sys.executable, "-c", script, nanogpt, folder / "ckpt.pt", json.dumps(ids)]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("LOGITS"))
    theirs = torch.tensor(json.loads(line.removeprefix("LOGITS")))[
        :, : load_trained(run).vocab_size
    ]
    ours = our_logits(run, ids)
    difference = (theirs - ours).abs().max().item()
    assert difference < 2e-3
    best = ours.topk(2, dim=-1).values
    sure = best[:, 0] - best[:, 1] > 2 * difference
    assert torch.equal(theirs.argmax(-1)[sure], ours.argmax(-1)[sure])
    # its programs themselves: sample.py speaks, train.py resumes from the file and takes a step
    common = ["--device=cpu", "--dtype=float32", f"--out_dir={folder}", "--compile=False"]
    cache = gpt2_for_tiktoken(tmp_path / "tiktoken")
    environment = {**os.environ, "PYTHONPATH": str(nanogpt), "TIKTOKEN_CACHE_DIR": str(cache)}
    words = [sys.executable, str(nanogpt / "sample.py"), *common]
    words += ["--start=The cat", "--num_samples=1", "--max_new_tokens=5"]
    spoken = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=nanogpt)
    assert spoken.returncode == 0, spoken.stderr[-500:]
    text = spoken.stdout.partition("The cat")[2]
    assert text.strip(" -\n")  # it continues from the prompt
    data = nanogpt / "data" / f"onecard_{tmp_path.name}"
    data.mkdir(parents=True)
    try:
        np.arange(4000, dtype=np.uint16).tofile(data / "train.bin")
        np.arange(400, dtype=np.uint16).tofile(data / "val.bin")
        keys = [f"--dataset={data.name}", "--init_from=resume", "--max_iters=5", "--eval_iters=1"]
        keys += ["--eval_interval=1", "--batch_size=2", "--block_size=16"]
        keys += ["--gradient_accumulation_steps=1", "--wandb_log=False"]
        words = [sys.executable, str(nanogpt / "train.py"), *common, *keys]
        resumed = subprocess.run(words, capture_output=True, text=True, cwd=nanogpt)
        assert resumed.returncode == 0, resumed.stderr[-800:]
        assert "Resuming training" in resumed.stdout
        assert "iter 5:" in resumed.stdout
    finally:
        shutil.rmtree(data)


@pytest.mark.long
def test_real_llama_cpp_says_the_same_greedy_tokens(run_of, tmp_path):
    """llama-cpp-python where it is installed, or node-llama-cpp in the folder that NODE_LLAMA_CPP names."""
    run = run_of("gpt2", bias=True)
    folder = exported(run, "gguf", tmp_path / "model", "--dtype", "f32")
    prompt = "the cat sat on"
    trained = load_trained(run)
    ids = trained.tokenizer.encode(prompt)
    theirs_ids, theirs = llama_cpp_tokens(folder / "model-f32.gguf", prompt, 8)
    assert theirs_ids == ids  # its tokeniser reads as ours
    assert theirs == greedy(run, ids, 8)


def llama_cpp_tokens(path, prompt, count):
    try:
        from llama_cpp import Llama
    except ImportError:
        return node_llama_tokens(path, prompt, count)
    model = Llama(str(path), n_ctx=16, verbose=False)
    ids = model.tokenize(prompt.encode(), add_bos=False)
    found = []
    for token in model.generate(ids, temp=0.0):
        found.append(token)
        if len(found) == count:
            return ids, found
    return ids, found


def node_llama_tokens(path, prompt, count):
    folder = os.environ.get("NODE_LLAMA_CPP")
    if not folder:
        pytest.skip("neither llama-cpp-python nor NODE_LLAMA_CPP is there")
    script = tmp_script(Path(folder))
    words = ["node", str(script), str(path), prompt, str(count)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-800:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("TOKENS"))
    found = json.loads(line.removeprefix("TOKENS"))
    return found["ids"], found["greedy"]


def tmp_script(folder):
    script = folder / "onecard_greedy.mjs"
    script.write_text(
        """
import {getLlama} from "node-llama-cpp";
const [path, prompt, count] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never"});
const model = await llama.loadModel({modelPath: path});
const context = await model.createContext({contextSize: 16});
const sequence = context.getSequence();
const ids = model.tokenize(prompt);
const greedy = [];
for await (const token of sequence.evaluate(ids, {temperature: 0, yieldEogToken: true})) {
    greedy.push(token);
    if (greedy.length == Number(count)) break;
}
console.log("TOKENS" + JSON.stringify({ids, greedy}));
process.exit(0);
"""
    )
    return script
