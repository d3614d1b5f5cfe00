"""What is known of CPUs: a whole table of logits costs as much as the rest of a small model's step."""

from onecard import RunConfig, plan
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


def test_the_range_of_a_short_run_knows_how_rough_the_compilation_is():
    """A run of ten steps is mostly compilation, which takes half to double of what is estimated."""
    length = {"gradient_accumulation_steps": 1, "max_iters": 10, "eval_iters": 1}
    run = RUN.replace(vocab_size=256, compile=True, warmup_iters=1, **length)
    time = plan(run, cpu()).time
    steps = time.total_seconds.mid - time.compile_seconds
    assert 0 < steps < time.compile_seconds
    assert time.total_seconds.low < 0.5 * time.compile_seconds + steps
    assert time.total_seconds.high > 2 * time.compile_seconds + steps
