"""The search: of all shapes, micro-batches and savers, the run with the lowest expected loss in a budget.

    search = Search(card, base_config(card), corpus_of("fineweb-edu"), Budget(seconds=20 * HOUR))
    best = search.best()

It is exact over its grid: every shape gets an optimistic bound first (as if memory were free), and those whose bound
cannot beat the best found are not tuned. Micro-batches divide the total batch exactly, so that a faster step always means
more tokens. So more hours or more memory, which only widen the choice, never give worse (of one recipe).
"""

import math
from collections.abc import Iterator
from functools import cached_property, partial

from onecard.advise.budget import Budget
from onecard.advise.no_run import NotCovered, why_nothing
from onecard.advise.savers import Tuned, fastest, micro_batches, own_step_time, variant
from onecard.advise.schedule import (
    EVAL_TOKENS,
    EVALS,
    FEWEST_STEPS,
    SCHEDULE_STEPS,
    SMALLEST_BATCH,
    Candidate,
    rounded_down,
    run_seconds,
    schedule_of,
    scheduled,
    tokens_to,
)
from onecard.advise.shapes import (
    Shape,
    matmul_params,
    shapes,
    total_params,
    usual_batch,
)
from onecard.config import RunConfig
from onecard.config.model_rules import EVALUATION_SHARE
from onecard.facts.gpus import Device
from onecard.planner.corpus import Corpus
from onecard.planner.expected_loss import LossEstimate, expected_loss
from onecard.planner.loss_settings import loss_fit
from onecard.planner.optimal import compute_optimal_tokens
from onecard.units import HOUR

MOST_EPOCHS = 4  # repetition costs next to nothing up to there (Muennighoff et al. 2023)
SMALLEST_SWEPT = 64 * 1024  # public sweeps say little of smaller batches
TIME_SLACK = 0.95  # of the time with free memory: no saver or micro-batch is faster than that


class Search:
    """All candidates of one card, data set and budget; each shape is tuned once."""

    def __init__(self, device: Device, base: RunConfig, corpus: Corpus, budget: Budget):
        self.device = device
        self.base = base
        self.corpus = corpus
        self.budget = budget
        self.dtype = device.dtype_of(base.matmul_dtype)
        self.family = corpus.family or "fineweb"
        self._tuned: dict[tuple[Shape, int], Tuned | None] = {}
        self._runs: dict[Shape, Candidate | None] = {}
        if expected_loss(base, 1e9, self.family, None) is None:
            raise NotCovered(
                f"no public losses say how models compare on {corpus.name or 'this data'}",
                hint="advice needs GPT-2 tokens of FineWeb, FineWeb-Edu or OpenWebText, such as fineweb-edu; "
                "fitting a model of your own to the card needs no losses",
            )

    def with_budget(self, budget: Budget) -> "Search":
        """The same card and data with another budget; what was tuned stays so."""
        return self._like(self.corpus, budget)

    def with_corpus(self, corpus: Corpus) -> "Search":
        """The same card and budget with other data; what was tuned stays so."""
        return self._like(corpus, self.budget)

    def _like(self, corpus: Corpus, budget: Budget) -> "Search":
        other = Search(self.device, self.base, corpus, budget)
        other._tuned = self._tuned
        return other

    # --- what is tried

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Those whose size the public losses cover."""
        low, high = loss_fit()["support"]["params"]
        return tuple(
            shape for shape in shapes() if low <= matmul_params(self._model(shape).shape) <= high
        )

    @property
    def tried(self) -> list[Shape]:
        """Those that were tuned so far."""
        return list(self._runs)

    def params(self, shape: Shape) -> int:
        return total_params(self._model(shape).shape)

    def _model(self, shape: Shape) -> RunConfig:
        return variant(self.base, n_layer=shape.n_layer, n_head=shape.n_head, n_embd=shape.n_embd)

    def _wanted_sequences(self, model: RunConfig) -> int:
        return usual_batch(matmul_params(model.shape), self.base.block_size)

    def _batches(self, model: RunConfig) -> Iterator[int]:
        """Sequences a step to choose from: as many as runs of the size use, the half, the quarter, …"""
        sequences = self._wanted_sequences(model)
        yield sequences
        while sequences % 2 == 0 and sequences * self.base.block_size > SMALLEST_BATCH:
            sequences //= 2
            yield sequences

    def _ends_the_choice(self, sequences: int, tokens: float) -> bool:
        """Whether no smaller batch is worth trying: the schedule has steps enough, and no public sweep compares smaller ones."""
        per_step = sequences * self.base.block_size
        swept = self.base.optimizer != "muon" and per_step >= 2 * SMALLEST_SWEPT
        return tokens >= SCHEDULE_STEPS * per_step and not swept

    def most_tokens(self, shape: Shape) -> float:
        """As many as the data holds four times over and the public losses reach for the size."""
        ratio = loss_fit()["support"]["tokens_per_param"][1]
        most = float(ratio * matmul_params(self._model(shape).shape))
        return min(most, MOST_EPOCHS * self.corpus.tokens) if self.corpus.tokens else most

    def _covered(self, shape: Shape, tokens: float) -> bool:
        """Enough tokens for the size that public runs went so short; `most_tokens` keeps to the other end. The smallest
        shape always counts, so that there is an answer."""
        fewest = loss_fit()["support"]["tokens_per_param"][0]
        return bool(
            shape == self.shapes[0] or tokens >= fewest * matmul_params(self._model(shape).shape)
        )

    def estimate(self, model: RunConfig, tokens: float) -> LossEstimate:
        """With the schedule that the run would have."""
        steps = max(1, round(tokens / model.tokens_per_step))
        run = variant(model, **schedule_of(model, steps))
        expected = expected_loss(run, tokens, self.family, self.corpus.tokens)
        assert expected is not None, "checked when the search was made"
        return expected

    def _final_loss(self, model: RunConfig, tokens: float) -> float:
        return self.estimate(model, tokens).final.mid

    def _loss(self, model: RunConfig, tokens: float) -> float:
        """At the best of the batches for so many tokens."""
        best = math.inf
        for batch in self._batches(model):
            whole = variant(model, batch_size=batch, gradient_accumulation_steps=1)
            short = tokens < SCHEDULE_STEPS * whole.tokens_per_step
            loss = self._final_loss(whole, tokens)
            best = loss if short else min(best, loss)
            if self._ends_the_choice(batch, tokens):
                break
        return best

    # --- with free memory: what a shape could reach at best

    @cached_property
    def ideal(self) -> dict[Shape, float]:
        """The score of each shape if the card's memory had no end."""
        return {shape: self._ideal(shape, 1.0) for shape in self.shapes}

    def _ideal(self, shape: Shape, slack: float) -> float:
        model = self._model(shape)
        wanted = self._wanted_sequences(model)
        batch = micro_batches(variant(model, batch_size=wanted, gradient_accumulation_steps=1))[-1]
        full = variant(model, batch_size=batch, gradient_accumulation_steps=wanted // batch)
        time = own_step_time(full, self.device, self.dtype)
        per_token = slack * time.seconds.mid / full.tokens_per_step
        most = self.most_tokens(shape)
        if self.budget.loss is not None:
            tokens = tokens_to(self.budget.loss, partial(self._loss, full), most)
            if tokens is None or not self._covered(shape, 1.02 * tokens):
                return math.inf
            return tokens * per_token + time.compile_seconds
        if self.budget.tokens is not None:
            tokens = self.budget.tokens
            return self._loss(full, tokens) if self._feeds(model, tokens) else math.inf
        assert self.budget.seconds is not None
        tokens = min(max((self.budget.seconds - time.compile_seconds) / per_token, 1.0), most)
        return self._loss(full, tokens) if self._covered(shape, tokens) else math.inf

    def _feeds(self, model: RunConfig, tokens: float) -> bool:
        """Are so many tokens enough for the size? With fewer than compute-optimal a smaller model is the better use of
        the same FLOPs. The smallest shape always counts, so that there is an answer."""
        smallest = self._model(self.shapes[0])
        return (
            model.n_embd == smallest.n_embd and model.n_layer == smallest.n_layer
        ) or tokens >= compute_optimal_tokens(total_params(model.shape))

    # --- on the card as it is

    def run(self, shape: Shape) -> Candidate | None:
        """The best run of one shape in the budget; None where it does not fit or public runs are longer."""
        if shape not in self._runs:
            run = self._run(shape)
            covered = run is not None and self._covered(shape, run.tokens)
            self._runs[shape] = run if covered else None
        return self._runs[shape]

    def _run(self, shape: Shape) -> Candidate | None:
        """At the batch that should end lowest, of those that leave the schedule steps enough."""
        best: Candidate | None = None
        for sequences in self._batches(self._model(shape)):
            tuned = self.tuned(shape, sequences)
            if tuned is None:
                return None
            steps = self._steps(shape, tuned)
            if steps < FEWEST_STEPS:
                continue
            run = self._candidate(shape, tuned, steps)
            enough = best is not None and best.config.max_iters >= SCHEDULE_STEPS
            if best is not None and enough and self.score(run) >= self.score(best):
                break
            best = run
            if self._ends_the_choice(sequences, run.tokens):
                break
        return best

    def _candidate(self, shape: Shape, tuned: Tuned, steps: int) -> Candidate:
        tokens = steps * tuned.config.tokens_per_step
        estimate = self.estimate(tuned.config, tokens)
        config = scheduled(tuned, steps, self.corpus)
        seconds = run_seconds(config, tuned.time)
        return Candidate(tuned, config, self.params(shape), seconds, tokens, estimate)

    def tuned(self, shape: Shape, sequences: int) -> Tuned | None:
        key = shape, sequences
        if key not in self._tuned:
            model = variant(self._model(shape), batch_size=sequences, gradient_accumulation_steps=1)
            self._tuned[key] = fastest(model, self.device, self.dtype, micro_batches(model))
        return self._tuned[key]

    def _steps(self, shape: Shape, tuned: Tuned) -> int:
        """Steps that the budget allows. Each rule grows with the budget, so that more of it never trains less."""
        per_step = tuned.config.tokens_per_step
        most = int(self.most_tokens(shape) // per_step)
        if self.budget.loss is not None:
            reached = partial(self._final_loss, tuned.config)
            tokens = tokens_to(self.budget.loss, reached, self.most_tokens(shape))
            return 0 if tokens is None else max(FEWEST_STEPS, math.ceil(tokens / per_step))
        if self.budget.tokens is not None:
            if not self._feeds(tuned.config, self.budget.tokens):
                return 0
            return min(most, math.ceil(self.budget.tokens / per_step))
        assert self.budget.seconds is not None
        evaluations = EVALS + self.budget.seconds / HOUR
        reserve = evaluations * 1.1 * EVAL_TOKENS * EVALUATION_SHARE * tuned.seconds_per_token
        free = self.budget.seconds - tuned.time.compile_seconds - reserve
        return rounded_down(min(most, int(max(0.0, free) / (tuned.seconds_per_token * per_step))))

    def score(self, run: Candidate) -> float:
        """What is made as small as can be: the loss, or the time to reach one."""
        return run.seconds if self.budget.loss is not None else run.loss

    def best(self) -> Candidate:
        slack = {shape: self._ideal(shape, TIME_SLACK) for shape in self.shapes}
        best: Candidate | None = self.run(self.shapes[0])
        for shape in sorted(self.shapes, key=lambda each: slack[each]):
            if best is not None and slack[shape] >= self.score(best):
                break
            if self.budget.loss is None and slack[shape] == math.inf:
                break  # even with endless memory its tokens are too few
            run = self.run(shape)
            if run is not None and (best is None or self.score(run) < self.score(best)):
                best = run
        if best is None:
            model = self._model(self.shapes[0])
            smallest = self.tuned(self.shapes[0], self._wanted_sequences(model))
            lowest = min(
                self._loss(self._model(shape), self.most_tokens(shape)) for shape in self.shapes
            )
            raise why_nothing(self.device, self.budget, smallest, lowest)
        return best
