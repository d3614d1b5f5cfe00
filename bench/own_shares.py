"""What the loss fit says of onecard's own comparisons of the two recipes (bench/lengths.py), beside what they measured."""

from fit.loss import fit_loss
from fit.loss_evidence import expected_share, own_rows
from fit.losses import all_losses

from bench.lengths_verdict import words_of
from onecard.planner.loss_settings import loss_fit


def lines() -> list[str]:
    """A row for each corpus and budget: the share of the GPT-2 recipe's tokens that the modern recipe needs to its loss."""
    fitted, public_alone = loss_fit(), fit_loss(all_losses(), ours=())
    found = [
        "| corpus, budget | parameters in matmuls | GPT-2's tokens | measured | the fit | fitted without these rows | "
        "with the cost of few tokens a parameter |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in own_rows():
        shares = (
            1 / row.worth,
            expected_share(row, fitted),
            expected_share(row, public_alone),
            expected_share(row, fitted, with_shortage=True),
        )
        figures = " | ".join(f"{share:.3f}" for share in shares)
        size, tokens = (f"{value / 1e6:.1f} M" for value in (row.size, row.gpt2_tokens))
        found.append(f"| {words_of((row.corpus, row.budget))} | {size} | {tokens} | {figures} |")
    return found
