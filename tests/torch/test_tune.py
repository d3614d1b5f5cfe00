"""`onecard tune`: what is learned from, and what may look at what; compared with transformers."""

import numpy as np
import pytest
import torch
from conversations import CHAT, dialogue, write_lines
from runs_in_tests import TINY

from onecard.data.tokenizers.special import END
from onecard.model import machine
from onecard.model.build import make_model
from onecard.model.opening import open_model
from onecard.model.weights import load_weights
from onecard.train.optim import make_optimizer
from onecard.train.run.faults import Faults
from onecard.train.run.loop import train
from onecard.train.run.row_marks import RowMarks, row_marks
from onecard.train.run.step import Stepper
from onecard.train.run.workers import Workers
from onecard.tune.gather import gather
from onecard.tune.packing import pack

# three conversations and their windows, as the trainer reads them
TALKS = [
    dialogue("abc", "cba", "de", "ed"),
    dialogue("hello there", "ereht olleh"),
    dialogue("what?", "nothing at all, as it seems"),
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


@pytest.mark.parametrize("masked", [True, False])
def test_documents_are_kept_apart_where_the_config_says_so(masked):
    marks = chat_marks(tuned_config(mask_documents=masked))
    assert (marks.document is not None) == masked


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
