"""The real nanoGPT and the real llama.cpp, where they are there, run what `onecard export` writes."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from exports import exported, greedy, our_logits

from onecard.data import gpt2
from onecard.data.tokenizers.kinds import EOT
from onecard.export.trained import load_trained


def nanogpt_folder():
    """A checkout of nanoGPT, where one is named: NANOGPT=…/nanoGPT pytest tests/torch/test_export_programs.py."""
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
    # its programs themselves: sample.py writes text, train.py resumes from the file and takes a step
    common = ["--device=cpu", "--dtype=float32", f"--out_dir={folder}", "--compile=False"]
    cache = gpt2_for_tiktoken(tmp_path / "tiktoken")
    environment = {**os.environ, "PYTHONPATH": str(nanogpt), "TIKTOKEN_CACHE_DIR": str(cache)}
    words = [sys.executable, str(nanogpt / "sample.py"), *common]
    words += ["--start=The cat", "--num_samples=1", "--max_new_tokens=5"]
    sampled = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=nanogpt)
    assert sampled.returncode == 0, sampled.stderr[-500:]
    text = sampled.stdout.partition("The cat")[2]
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
