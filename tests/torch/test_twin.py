"""A scaled-down twin of what `can` writes for GPT-2 XL on a card of 12 GB: same keys, every saver, killed and resumed."""

import os
import signal

import pytest
from runs_in_tests import assert_same_weights, losses

from forked import started
from onecard.advise.can import can
from onecard.advise.savers import savers_of
from onecard.config import load, to_toml
from onecard.train.run.loop import train
from onecard.train.run.outputs import Silent

# the compiler warns of its own insides
pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = {"n_layer": 3, "n_head": 2, "n_embd": 64, "block_size": 16, "vocab_size": 64}
SHORT = {"batch_size": 2, "gradient_accumulation_steps": 4, "max_iters": 9, "lr_decay_iters": 9}
SHORT |= {"warmup_iters": 2, "eval_interval": 4, "eval_iters": 2, "learning_rate": 1e-2}
AWAY = {"optimizer_state": "8bit", "offload_optimizer": True, "offload_activations": True}


class Kill(Silent):
    def step(self, fields):
        if fields["step"] == 6:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(file):
    train(load(file), view=Kill())


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")
@pytest.mark.parametrize(
    ("more", "compile"),
    [
        ({}, False),
        (AWAY, False),
        *(pytest.param(more, True, marks=pytest.mark.long) for more in ({}, AWAY)),
    ],
)
def test_it_is_killed_and_resumed_exactly(config, tmp_path, more, compile):
    asked = can("gpt2-xl", "RTX 4070 Ti").config
    twin = asked.replace(**SMALL, **SHORT, **more, compile=compile, device="cpu")
    twin = twin.replace(dataset=config.dataset, out_dir=str(tmp_path / "twin"))
    assert set(asked.changed()) <= set(twin.changed()) | {
        "compile"
    }  # the keys of the file it writes
    if not more:
        assert savers_of(twin) == savers_of(asked)
    assert (twin.weights, twin.gradients, twin.compile_unit) == ("bfloat16", "bfloat16", "block")
    assert twin.chunked_loss
    assert twin.recompute == "block"
    assert twin.state_bits < 32
    straight = twin.replace(out_dir=str(tmp_path / "straight"))
    train(straight)
    file = tmp_path / "twin.toml"
    file.write_text(to_toml(twin))
    process = started(killed, str(file))
    process.join(300)
    assert process.exitcode == -9
    assert max(losses(twin.out_dir)) < 9
    train(twin, resume=True)
    assert losses(twin.out_dir) == losses(straight.out_dir)
    assert_same_weights(twin.out_dir, straight.out_dir)
    found = losses(straight.out_dir)
    assert found[9] < found[1]
