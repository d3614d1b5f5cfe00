"""Weights from elsewhere: transformers' folders, nanoGPT's ckpt.pt, and untrusted files that try to run code."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs_in_tests import TINY

from onecard.errors import UserError
from onecard.model.gpt2 import GPT
from onecard.model.weights import load_weights
from onecard.train.run.loop import train

BIASED = TINY.replace(bias=True, dropout=0.0)


@pytest.fixture
def theirs(tmp_path):
    import transformers

    torch.manual_seed(0)
    shape = {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
    ).eval()
    model.save_pretrained(tmp_path / "hub")
    return model, tmp_path / "hub"


def test_a_hub_folder_is_loaded_and_its_context_cropped(theirs):
    model, folder = theirs
    ours = GPT(BIASED).eval()  # block_size 16 of their 32
    load_weights(ours, str(folder))
    idx = torch.randint(64, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(ours(idx)[0], model(idx).logits, rtol=1e-5, atol=1e-5)


def test_bare_names_as_on_the_hub_are_loaded(theirs, tmp_path):
    """openai-community's own files have no "transformer." and carry the mask buffers."""
    from safetensors.torch import save_file

    model, _ = theirs
    bare = {
        name.removeprefix("transformer."): t.contiguous()
        for name, t in model.state_dict().items()
        if "lm_head" not in name
    }
    for layer in range(2):
        bare[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 32, 32)
    (tmp_path / "bare").mkdir()
    save_file(bare, tmp_path / "bare" / "model.safetensors")
    ours = GPT(BIASED).eval()
    load_weights(ours, str(tmp_path / "bare"))
    idx = torch.randint(64, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(ours(idx)[0], model(idx).logits, rtol=1e-5, atol=1e-5)


def test_nanogpts_checkpoint_is_loaded(tmp_path, config):
    torch.manual_seed(1)
    source = GPT(BIASED)
    state = {f"_orig_mod.{name}": tensor for name, tensor in source.state_dict().items()}
    torch.save(
        {"model": state, "model_args": {"n_layer": 2}, "iter_num": 5, "config": {}},
        tmp_path / "ckpt.pt",
    )
    ours = GPT(BIASED)
    load_weights(ours, str(tmp_path / "ckpt.pt"))
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), source.parameters(), strict=True)
    )
    outcome = train(
        config.replace(bias=True, init_from=str(tmp_path / "ckpt.pt"), max_iters=2)
    )  # fine-tuning
    assert outcome.state == "finished"


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def test_an_untrusted_pickle_is_not_run(tmp_path):
    mark = str(tmp_path / "was-run")
    torch.save({"model": {}, "config": Evil(mark)}, tmp_path / "ckpt.pt")
    with pytest.raises(UserError, match="read safely"):
        load_weights(GPT(BIASED), str(tmp_path / "ckpt.pt"))
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(UserError):
        load_weights(GPT(BIASED), str(tmp_path / "raw.pt"))
    assert not Path(mark).exists()


@pytest.mark.parametrize(
    "change",
    [{"n_embd": 16}, {"n_layer": 3}, {"n_layer": 1}, {"block_size": 64}, {"vocab_size": 65}],
)
def test_another_shape_is_named(theirs, change):
    with pytest.raises(UserError):
        load_weights(GPT(BIASED.replace(**change)), str(theirs[1]))


@pytest.mark.parametrize("source", ["nowhere", "gpt3"])
def test_an_unknown_source_is_answered(source):
    with pytest.raises(UserError, match="init_from"):
        load_weights(GPT(BIASED), source)


def test_garbage_is_answered(tmp_path):
    for name, content in (("ckpt.pt", b"not a zip"), ("model.safetensors", b"\xff" * 100)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError):
            load_weights(GPT(BIASED), str(tmp_path / name if name == "ckpt.pt" else tmp_path))
        (tmp_path / name).unlink()


CUT = """
import os, sys, torch
from onecard.model.weights import read_weights
real = torch.load
def load(file, **options):
    saved = real(file, **options)
    os.truncate(file, 64)          # under the mapping
    return saved
torch.load = load
read_weights(sys.argv[1])
print("not reached")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be cut there")
def test_a_file_cut_short_under_its_mapping_is_named(tmp_path):
    """The system answers with SIGBUS, which would end the process without a word."""
    file = tmp_path / "ckpt.pt"
    torch.save({"model": {"w": torch.ones(300_000)}, "model_args": {}}, file)
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(file)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"onecard: {file} was cut short while it was read\n  hint:")
