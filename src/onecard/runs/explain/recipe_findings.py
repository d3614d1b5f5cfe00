"""Is the recipe right for the model: data seen again and again, memorised, a learning rate far from the usual?"""

from collections.abc import Iterator

from onecard.config import RunConfig
from onecard.messages import Note
from onecard.planner.warnings import usual_learning_rate
from onecard.runs.explain.loss_findings import diverging, spikes
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding


def repeating(f: RunFigures) -> Iterator[Finding]:
    """Does not apply where the data set's size is unknown and validation does not rise."""
    unique = f.run.dataset_tokens or (f.plan.tokens.unique if f.plan is not None else None)
    epochs = f.tokens_seen / unique if unique and f.tokens_seen else None
    if epochs is not None and epochs > 4:
        yield Finding(
            Note("data-repeats", tokens=unique, epochs=epochs),
            {"epochs": epochs, "unique_tokens": unique},
        )
    both = [
        (e.train_loss, e.val_loss)
        for e in f.run.evals
        if e.train_loss is not None and e.val_loss is not None
    ]
    if len(both) >= 4:
        lowest = min(range(len(both)), key=lambda i: both[i][1])
        rise, fall = both[-1][1] - both[lowest][1], both[lowest][0] - both[-1][0]
        if lowest <= len(both) - 3 and rise > 0.02 and fall > 0.02:
            yield Finding(
                Note("overfitting", step=f.run.evals[lowest].step, fall=fall, rise=rise),
                {"rise": rise, "fall": fall, "best_step": f.run.evals[lowest].step},
            )


def learning_rate(f: RunFigures) -> Iterator[Finding]:
    """Against the optimizer's usual one. Does not apply to fine-tuning, which wants a lower one, nor within a factor of three."""
    if (
        f.config is None
        or not f.params_nanogpt
        or f.config.init_from.startswith("gpt2")
        or f.config.learn_from == "answers"
    ):
        return
    usual = usual_learning_rate(f.config.optimizer, f.params_nanogpt)
    ratio = f.config.learning_rate / usual
    evidence = {"learning_rate": f.config.learning_rate, "usual": usual}
    figures = {
        "rate": f.config.learning_rate,
        "usual": usual,
        "optimizer": f.config.optimizer,
        "size": f.params_nanogpt,
    }
    hurt = bool(f.run.not_finite) or any(True for _ in diverging(f)) or any(True for _ in spikes(f))
    if ratio > 3:
        yield Finding(
            Note("learning-rate-high", **figures)
            if hurt
            else Note("learning-rate-high-calm", **figures),
            evidence,
        )
    elif ratio < 1 / 3:
        yield Finding(Note("learning-rate-low", **figures), evidence)
    yield from _never_decays(f, f.config)


def _never_decays(f: RunFigures, config: RunConfig) -> Iterator[Finding]:
    if config.decay_lr and config.lr_decay_iters > 1.5 * config.max_iters:
        yield Finding(
            Note("never-decays", decay=config.lr_decay_iters, last=config.max_iters),
            {"lr_decay_iters": config.lr_decay_iters, "max_iters": config.max_iters},
        )


RULES = (repeating, learning_rate)
