"""A mix in a plan: how often a run goes through each source, and what its repetition costs.

>>> [round(s.epochs, 1) for s in source_epochs([("web", 0.9, 9_000), ("notes", 0.1, 100)], 10_000)]
[1.0, 10.0]
"""

from collections.abc import Iterator, Sequence

from onecard.config import RunConfig
from onecard.messages import Note
from onecard.planner.corpus import Corpus
from onecard.planner.expected_loss import effective_tokens
from onecard.planner.loss_settings import loss_fit
from onecard.planner.optimal import compute_optimal_tokens
from onecard.planner.result import Params, SourceEpochs, Tokens

_MANY = 4  # Muennighoff et al. 2023: up to 4 epochs are almost as good as fresh data


def source_epochs(
    sources: Sequence[tuple[str, float, int]], total_tokens: int
) -> list[SourceEpochs]:
    """For (name, share, distinct tokens) each, in a run of so many tokens."""
    out = []
    for name, share, unique in sources:
        seen = share * total_tokens
        worth = effective_tokens(seen, unique, loss_fit()) / seen if seen else 1.0
        out.append(SourceEpochs(name, share, unique, seen / max(unique, 1), worth))
    return out


def source_notes(sources: Sequence[SourceEpochs]) -> Iterator[Note]:
    """One line for all sources, one more for each that is repeated too often."""
    if not sources:
        return
    listed = ", ".join(f"{s.name} {s.epochs:.2f}" for s in sources)
    yield Note("source-epochs", listed=listed)
    for source in sources:
        if source.epochs > _MANY:
            yield Note(
                "source-repeated",
                name=source.name,
                epochs=source.epochs,
                worth=source.worth,
            )


def tokens_of(config: RunConfig, counts: Params, corpus: Corpus) -> Tokens:
    total = config.total_tokens
    return Tokens(
        per_step=config.tokens_per_step,
        total=total,
        per_param=total / counts.total,
        compute_optimal=compute_optimal_tokens(counts.total),
        dataset=corpus.name,
        unique=corpus.tokens,
        epochs=total / corpus.tokens if corpus.tokens else None,
        sources=source_epochs(corpus.sources, total),
    )
