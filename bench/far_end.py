"""The far end of the plot of shares: 124 M parameters on 10 B tokens of FineWeb, by public runs and by the shipped loss fit."""

import csv
from dataclasses import dataclass
from pathlib import Path

from bench.plots import short
from onecard.config import RunConfig
from onecard.config.recipes import recipe_values
from onecard.planner.expected_loss import LossEstimate, expected_loss
from onecard.planner.loss_settings import best_rate, loss_fit

PUBLIC_LOSSES = Path(__file__).parents[1] / "fit" / "data" / "public_losses.csv"
OPPONENT = "llmc-124M-10B"  # llm.c's GPT-2
RUNS = {  # modded-nanogpt's of the same size, by what they are: those nearest to the modern recipe
    "Muon, modern blocks, untied": "mng-untie-2.4B",
    "the same, tuned in 2025": "mng3-muon-tuned-1.70B",
}
MICRO_BATCH = 16


@dataclass(frozen=True)
class PublicRun:
    tokens: float
    loss: float
    rate: str  # as published


@dataclass(frozen=True)
class FarEnd:
    opponent: PublicRun
    runs: dict[str, PublicRun]

    def share(self, run: PublicRun) -> float:
        return run.tokens / self.opponent.tokens


@dataclass(frozen=True)
class Predicted:
    rate: float
    loss: float  # of the opponent
    share: float | None  # of its tokens; None: not with as many
    error: tuple[float, float]  # of a loss, 80 %


def far_end() -> FarEnd:
    with PUBLIC_LOSSES.open(encoding="utf-8", newline="") as table:
        rows = {row["id"]: row for row in csv.DictReader(table)}

    def run(name: str) -> PublicRun:
        row = rows[name]
        return PublicRun(float(row["tokens_seen_b"]) * 1e9, float(row["loss_nats"]), row["lr"])

    return FarEnd(run(OPPONENT), {words: run(name) for words, name in RUNS.items()})


def predicted(opponent: PublicRun, tuned: bool) -> Predicted:
    """The share of the opponent's tokens that the modern recipe needs to its loss by the fit, with the opponent at its published
    rate or, `tuned`, at the one that the fit holds for best."""
    theirs = _ended(opponent.tokens, learning_rate=float(opponent.rate))
    rate = theirs.config.learning_rate
    if tuned:
        rate = best_rate(theirs.size, opponent.tokens, loss_fit())
        theirs = _ended(opponent.tokens, learning_rate=rate)
    final = theirs.final
    return Predicted(
        rate=rate,
        loss=final.mid,
        share=_share_to(final.mid, opponent.tokens),
        error=(final.low - final.mid, final.high - final.mid),
    )


def _ended(tokens: float, **keys: object) -> LossEstimate:
    """A whole schedule of GPT-2 small's shape, half a million tokens a step."""
    plain = RunConfig(batch_size=MICRO_BATCH, gradient_accumulation_steps=512 // MICRO_BATCH)
    steps = round(tokens / plain.tokens_per_step)
    found = expected_loss(
        plain.replace(max_iters=steps, lr_decay_iters=steps, **keys), tokens, "fineweb", None
    )
    assert found is not None  # FineWeb with GPT-2's vocabulary is what the fit is of
    return found


def _share_to(loss: float, tokens: float) -> float | None:
    """By halving: the loss falls as tokens grow."""

    def modern(share: float) -> float:
        return _ended(share * tokens, recipe="modern", **recipe_values("modern")).final.mid

    few, enough = 0.01, 1.0
    if modern(enough) > loss:
        return None
    for _ in range(30):
        half = (few * enough) ** 0.5
        few, enough = (few, half) if modern(half) <= loss else (half, enough)
    return enough


def far_end_words(end: FarEnd, published: Predicted, best: Predicted) -> list[str]:
    """What the marks on the right are, and what they are not."""
    shares = " and ".join(f"{end.share(run):.2f}" for run in end.runs.values())
    losses = " and ".join(f"{run.loss:.3f}" for run in end.runs.values())
    opponent = end.opponent

    def share(found: Predicted) -> str:
        return "more than all" if found.share is None else f"{found.share:.2f}"

    return [
        "Our own points, on the left, are against a GPT-2 recipe whose rate was tuned for the length (but where the table says not tuned). "
        f"The far end on the right is 124 M parameters on FineWeb, against llm.c's GPT-2 after {short(opponent.tokens)} tokens:",
        "",
        f"- Public runs, **opponent's rate not tuned** (the paper's, {float(opponent.rate):g}): modded-nanogpt's two nearest to this recipe took "
        f"{shares} of the tokens. They end at {losses}, a little short of llm.c's {opponent.loss:.3f}, and they have no short convolutions as this "
        "recipe has. A tuned opponent would end lower, and both shares would be larger.",
        f"- A **prediction** of the shipped loss fit (`onecard.planner.expected_loss`), not a run: {share(best)} of the tokens against GPT-2's recipe "
        f"at the fit's best rate ({best.rate:.2g}, expected loss {best.loss:.3f}), {share(published)} at the paper's rate "
        f"({published.loss:.3f}). The fit saw these public runs; a loss of its is within {best.error[0]:+.2f} to {best.error[1]:+.2f} nats in "
        "80 % of cases, which moves such a share a lot.",
    ]
