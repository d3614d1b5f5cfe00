"""What is known of CPUs: a whole table of logits costs as much as the rest of a small model's step."""

from onecard import RunConfig
from onecard.facts.here import cpu
from onecard.planner.step_time import step_time

RUN = RunConfig(n_layer=4, n_head=4, n_embd=256, block_size=256, batch_size=8, compile=False)


def test_chunked_loss_is_planned_much_faster_with_gpt2s_vocabulary():
    whole, chunked = (
        step_time(RUN.replace(vocab_size=50304, chunked_loss=c), cpu(), "float32").seconds.mid
        for c in (False, True)
    )
    assert whole > 1.2 * chunked


def test_with_a_small_vocabulary_it_gains_nothing():
    whole, chunked = (
        step_time(RUN.replace(vocab_size=256, chunked_loss=c), cpu(), "float32").seconds.mid
        for c in (False, True)
    )
    assert abs(whole / chunked - 1) < 0.05
