"""Common misreadings of one log, corrected with its own figures."""

import math
from collections.abc import Iterator

from onecard.messages import Note
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding


def mfu_of_an_a100(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to an A100, to other formats (they name the card they divide by), or where the card is unknown."""
    if (
        f.run.format != "nanogpt"
        or f.mfu_printed is None
        or f.mfu_card is None
        or f.device is None
        or not f.dtype
    ):
        return
    peak = f.device.matmul_flops(f.dtype)
    if abs(peak / 312e12 - 1) < 0.02:
        return
    yield Finding(
        Note(
            "mfu-against-a100",
            "the printed MFU of {printed:.1%} is against an A100's 312 TFLOPS; against the "
            "{card}'s own {peak:.1f} TFLOPS it is {true:.1%}",
            printed=f.mfu_printed,
            card=f.device.name,
            peak=peak / 1e12,
            true=f.mfu_card,
        ),
        {"mfu_printed": f.mfu_printed, "mfu_card": f.mfu_card, "peak_tflops": peak / 1e12},
    )


def perplexity_for_loss(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to the first steps, nor to a loss that an untrained model could have."""
    values = [e.val_loss for e in f.run.evals if e.val_loss is not None] or f.run.curve.losses
    if not values or f.run.last_step < 100:
        return
    vocab = f.config.shape.vocab_size if f.config is not None else f.run.vocab_size or 50304
    last = values[-1]
    if (
        last > math.log(vocab) + 1
        and math.log(last) < math.log(vocab)
        and min(values) > math.log(vocab)
    ):
        yield Finding(
            Note(
                "perplexity-for-loss",
                "{value:.2f} is not a loss in nats: an untrained model has {untrained:.1f}; "
                "as a perplexity it is a loss of {loss:.2f}",
                value=last,
                untrained=math.log(vocab),
                loss=math.log(last),
            ),
            {"value": last, "loss": math.log(last)},
        )


RULES = (mfu_of_an_a100, perplexity_for_loss)
