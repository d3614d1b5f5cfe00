"""A run that no public loss covers (little time, a CPU, another text): the size that suits the compute and the text.

Of small shapes in GPT-2's proportions it is the one for which the Chinchilla law, with the tokens that the time allows, is
lowest. The law only ranks the sizes; no loss is predicted.

>>> answer = small_run("cpu", 180, data=11_000_000, changes={"vocab_size": 2048})
>>> answer.plan.loss is None and answer.plan.time.total_seconds.mid <= 180
True
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onecard.advise.own_runs import recipe_reason
from onecard.advise.savers import fastest, micro_batches, own_step_time, savers_of, variant
from onecard.advise.schedule import SCHEDULE_STEPS, base_config
from onecard.advise.shapes import matmul_params, total_params
from onecard.config import RunConfig
from onecard.config.model_rules import padded_vocab, slice_rows
from onecard.config.recipes import RECIPES, recipe_values
from onecard.errors import UserError
from onecard.facts.card_names import short_name
from onecard.facts.gpus import Device
from onecard.facts.prices import Price
from onecard.messages import Note
from onecard.planner import RunPlan, plan, resolve_device
from onecard.planner.corpus import Corpus, corpus_of
from onecard.planner.expected_loss import GPT2_VOCABULARY, effective_tokens, known_dataset
from onecard.planner.loss_settings import loss_fit
from onecard.planner.memory import peak_memory
from onecard.planner.optimal import ALPHA, BETA, A, B, useful_parameters
from onecard.planner.result import JsonAnswer
from onecard.planner.warnings import usual_learning_rate
from onecard.units import HOUR

SCHEMA = "onecard.small-run/1"
WIDTHS = (64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768)
FEWEST_STEPS = 20  # of the smallest model; less shows nothing
MOST_OVERRUN = 5  # times the time for those steps: a machine measured while it was busy; max_hours ends the run anyway
SMALLEST_BATCH, LARGEST_BATCH = 2**9, 2**17  # tokens a step
EVALUATIONS = 5
# of the run's tokens, each time: a tenth of them read, at a third of a step's work
EVALUATION_SHARE = 0.02
FEWEST_HELD_OUT = 2**13  # tokens: less is mostly noise
# over the same text: after that many, another one teaches nothing (Muennighoff et al. 2023)
MOST_PASSES = 40
PLANNED_SHARE = 0.9  # of the time: evaluations, checkpoints and the first steps take the rest
# of a small BPE trained on the text itself: 2.5 to 4, enough to count epochs with
BYTES_PER_TOKEN = 3.0
VOCABULARIES = (1024, 2048, 4096, 8192)  # to train a BPE of, where the text has no tokeniser yet


@dataclass(frozen=True)
class SmallRun(JsonAnswer):
    """The config and its plan. `plan.loss` is None: nothing public says what it should be."""

    schema: str
    config: RunConfig
    plan: RunPlan
    reasons: list[Note]


def small_run(
    gpu: Device | str | None,
    seconds: float,
    *,
    data: str | int | None = None,
    recipe: str | None = None,
    changes: dict[str, Any] | None = None,
    price: Price | str | None = None,
) -> SmallRun:
    """The modern recipe where none is asked for: own_runs.py says why. `changes`: config keys that are not up for choice,
    such as vocab_size where the data does not say it."""
    device = resolve_device(gpu)
    corpus = Corpus(None, None, None) if data is None else corpus_of(data)
    known = corpus.vocab_size
    vocabulary = {} if known is None else {"vocab_size": padded_vocab(known)}
    chosen = recipe or recipe_for(changes or {})
    own = {**recipe_values(chosen), "recipe": chosen}
    fixed = {**own, **vocabulary, **(changes or {})}
    base = base_config(device, **fixed)
    runs = [run for run in _candidates(base, device, seconds, corpus.tokens) if run is not None]
    if not runs:
        raise UserError(
            f"that time is too little to train anything on the {short_name(device.name)}",
            hint=f"even the smallest model needs {FEWEST_STEPS} steps: give it more time",
        )
    best = _in_quick_pieces(min(runs, key=lambda run: _chinchilla(run, corpus.tokens)), device)
    config = best.replace(
        dataset=data if isinstance(data, str) and corpus.name else base.dataset,
        max_hours=float(f"{seconds / HOUR:.4g}"),
        out_dir=f"out-{total_params(best.shape) / 1e6:.1f}M",
    )
    answer = plan(config, device, data=data, price=price)
    figures = {"params": answer.params.total, "tokens": answer.tokens.total, "time": seconds}
    epochs = answer.tokens.epochs or 0.0
    if epochs > 0.9 * MOST_PASSES:
        reasons = [Note("small-run-repeats", **figures, epochs=epochs)]
    else:
        reasons = [Note("small-run", **figures)]
    reasons.append(Note("unknown-text-loss" if _unknown_text(config, corpus) else "small-run-loss"))
    if config.shape.modern:
        if recipe is None:
            reasons.append(recipe_reason(matmul_params(config.shape)))
        reasons.append(Note("modern-exports"))
    return SmallRun(SCHEMA, answer.config, answer, reasons)


def _unknown_text(run: RunConfig, corpus: Corpus) -> bool:
    """Whether the text or its tokens are none that public losses are of; a run on theirs is merely too small for them."""
    name = corpus.family or run.dataset
    return known_dataset(name) is None or run.shape.vocab_size not in GPT2_VOCABULARY


def recipe_for(changes: Mapping[str, Any]) -> str:
    """Of a small run whose recipe nobody named; an optimizer is part of one.

    >>> recipe_for({}), recipe_for({"optimizer": "adamw"})
    ('modern', 'gpt2')
    """
    return "gpt2" if "optimizer" in changes else "modern"


def vocabulary_for(
    gpu: Device | str | None, seconds: float, *, text_bytes: float, recipe: str | None = None
) -> int:
    """How large a BPE to train on text that is to be learned in that time: the largest whose table stays below half of
    what the blocks hold, for a table that is seldom seen whole learns little.

    >>> vocabulary_for("cpu", 60, text_bytes=25e6)
    1024
    """
    chosen = VOCABULARIES[0]
    for vocabulary in VOCABULARIES:
        run = small_run(
            gpu,
            seconds,
            data=max(1, round(text_bytes / BYTES_PER_TOKEN)),
            recipe=recipe,
            changes={"vocab_size": vocabulary},
        ).config
        blocks = total_params(variant(run, vocab_size=1).shape)
        if vocabulary * run.n_embd <= blocks / 2:
            chosen = vocabulary
    return chosen


def _candidates(
    base: RunConfig, device: Device, seconds: float, unique_tokens: int | None
) -> Iterator[RunConfig | None]:
    dtype = device.dtype_of(base.matmul_dtype)
    for width in WIDTHS:
        head = 32 if width < 256 else 64
        context = 128 if width < 192 else 256 if width < 384 else 512
        shape = {
            "n_layer": max(2, round(width / 43)),
            "n_head": width // head,
            "n_embd": width,
            "block_size": min(context, base.block_size),
        }
        for compiled in {False, base.compile}:  # a short run does not earn back its compilation
            model = variant(base, compile=compiled, **shape)
            yield _run_of(model, device, dtype, seconds, unique_tokens)


def _run_of(
    model: RunConfig, device: Device, dtype: str, seconds: float, unique_tokens: int | None
) -> RunConfig | None:
    """The whole run of one shape, in the time and without endless repetition; None if it does not fit, or would be too short."""
    batch = LARGEST_BATCH
    while True:
        rows = max(1, batch // model.block_size)
        whole = variant(model, batch_size=rows, gradient_accumulation_steps=1)
        choices = [_micro_batched(each, device, dtype) for each in _losses(whole, device)]
        fitting = [(own_step_time(each, device, dtype), each) for each in choices if each]
        if not fitting:
            return None
        time, run = min(fitting, key=lambda choice: choice[0].seconds.mid)
        steps = int((PLANNED_SHARE * seconds - time.compile_seconds) / time.seconds.mid)
        if unique_tokens:
            useful = MOST_PASSES * unique_tokens // run.tokens_per_step
            steps = min(steps, max(useful, FEWEST_STEPS))
        if steps >= SCHEDULE_STEPS or batch <= SMALLEST_BATCH:
            break
        batch //= 2
    if steps < FEWEST_STEPS:
        smallest = model.n_embd == WIDTHS[0] and MOST_OVERRUN * steps >= FEWEST_STEPS
        return _scheduled(run, FEWEST_STEPS) if smallest else None
    return _scheduled(run, steps)


def _losses(run: RunConfig, device: Device) -> Iterator[RunConfig]:
    """With the loss as asked for, and in slices where there would be more than one: on a CPU, pages for all logits can take
    as long as the rest of the step."""
    yield run
    rows = slice_rows(run.shape.vocab_size, on_card=device.kind != "cpu")
    if not run.chunked_loss and run.tokens_per_micro_batch > rows:
        yield variant(run, chunked_loss=True)


def _micro_batched(run: RunConfig, device: Device, dtype: str) -> RunConfig | None:
    """The same step in as few pieces as fit."""
    while peak_memory(run, device, dtype, 1, advice=False).fits != "yes":
        if run.batch_size == 1:
            return None
        run = variant(
            run,
            batch_size=run.batch_size // 2,
            gradient_accumulation_steps=2 * run.gradient_accumulation_steps,
        )
    return run


def _in_quick_pieces(run: RunConfig, device: Device) -> RunConfig:
    """The same steps in the micro-batches that are the quickest: the largest that fit need not be, on a CPU above all."""
    dtype = device.dtype_of(run.matmul_dtype)
    tuned = fastest(run, device, dtype, micro_batches(run), choices=(savers_of(run),))
    if tuned is None or tuned.config.batch_size >= run.batch_size:
        return run
    held_out = run.eval_iters * run.batch_size
    return variant(tuned.config, eval_iters=max(1, held_out // tuned.config.batch_size))


def _scheduled(run: RunConfig, steps: int) -> RunConfig:
    held_out = max(FEWEST_HELD_OUT, EVALUATION_SHARE * steps * run.tokens_per_step)
    changes: dict[str, Any] = {
        "max_iters": steps,
        "lr_decay_iters": steps,
        "eval_interval": max(1, -(-steps // EVALUATIONS)),
        "eval_iters": max(1, round(held_out / run.tokens_per_micro_batch)),
        "log_interval": max(1, min(10, steps // 100)),
    }
    if RECIPES[run.recipe].rate_by_size:
        rate = usual_learning_rate(run.optimizer, total_params(run.shape))
        changes |= {
            "learning_rate": float(f"{rate:.1e}"),
            "min_lr": float(f"{rate / 10:.1e}"),
            "warmup_iters": max(1, round(0.03 * steps)),
        }
    return variant(run, **changes)


def _chinchilla(run: RunConfig, unique_tokens: float | None) -> tuple[float, int]:
    """What size and tokens leave above the law's floor, then the size. Tokens seen again count less, and so do parameters
    beyond what the text feeds; sizes that leave the same to a thousandth are ranked by their parameters."""
    read, size = float(run.max_iters * run.tokens_per_step), total_params(run.shape)
    worth = effective_tokens(read, unique_tokens, loss_fit())
    useful = size if unique_tokens is None else useful_parameters(size, unique_tokens)
    return round(A * math.pow(useful, -ALPHA) + B * math.pow(worth, -BETA), 3), size
