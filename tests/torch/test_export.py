"""`onecard export`: the real programs load what it writes, and say the same as our own model."""

import json

import numpy as np
import pytest
import torch
from exports import TEXT, exported, greedy, our_logits

from onecard.cli import main
from onecard.export.tokenizer_files import write_tokenizer
from onecard.export.trained import load_trained


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


@pytest.mark.parametrize(("bits", "off"), [(8, 0.05), (4, 0.5)])
def test_nanogpt_gets_moments_in_few_bits_as_numbers(run_of, tmp_path, bits, off):
    found = []
    for state in ("float32", f"{bits}bit"):
        folder = exported(run_of(optimizer_state=state, n_embd=64), "nanogpt", tmp_path / state)
        saved = torch.load(folder / "ckpt.pt", weights_only=True)
        found.append(saved["optimizer"]["state"])
    for exact, few in zip(found[0].values(), found[1].values(), strict=True):
        for name, tensor in exact.items():
            assert few[name].dtype == torch.float32
            assert (few[name] - tensor).norm() <= off * tensor.norm()


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
