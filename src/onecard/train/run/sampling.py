"""What a run shows of its model while it trains: a few words from it, and its figures in benchmarks."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from onecard.data import Dataset
from onecard.files import write_text
from onecard.model.generate import Sampling, generate
from onecard.model.gpt2 import GPT
from onecard.train.run.progress import RunState, StepClock
from onecard.train.run.session import Session

# the model, its data and the step → for each task its figures
Benchmark = Callable[[GPT, Dataset, int], Mapping[str, Mapping[str, float]]]


def write_sample(session: Session, model: GPT, step: int, count: int = 64) -> None:
    """A sample of the model as it is now, into the log and samples/; the training's random numbers are untouched."""
    tokenizer = session.data.tokenizer
    if tokenizer is None:
        return
    start = tokenizer.eot if tokenizer.eot is not None else 0
    sampling = Sampling(top_k=200)
    tokens = generate(model, [[start]], count, sampling, vocab_size=tokenizer.vocab_size)
    text = tokenizer.decode([row[0] for row in tokens])
    session.outputs.write(kind="sample", step=step, text=text)
    folder = session.folder / "samples"
    folder.mkdir(exist_ok=True)
    write_text(folder / f"step_{step:08d}.txt", text)


def run_benchmark(
    session: Session, model: GPT, state: RunState, benchmark: Benchmark, clock: StepClock
) -> RunState:
    """Measure and log; the state with the time it took, which is in no step. What fails is reported, and the run continues."""
    began, outputs, step = time.perf_counter(), session.outputs, state.progress.step
    training = model.training
    model.eval()
    scores = outputs.best_effort.run("the benchmark", benchmark, model, session.data, step)
    model.train(training)
    seconds = time.perf_counter() - began
    for name, figures in (scores or {}).items():
        outputs.write(kind="tasks", step=step, task=name, **figures)
        words = ", ".join(f"{key} {value:.3f}" for key, value in figures.items())
        outputs.view.message(f"step {step:,}: {name}: {words}")
    outputs.write(kind="event", step=step, event="tasks", seconds=seconds, text="benchmarks")
    clock.leave_out(seconds)
    state = replace(state, benchmark_seconds=seconds)
    return state.with_progress(tasks_seconds=state.progress.tasks_seconds + seconds)
