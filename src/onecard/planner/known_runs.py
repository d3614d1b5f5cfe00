"""How a run compares with well-known ones: the released GPT-2s, and public runs on FineWeb."""

from onecard.facts.models import KnownModel, known_models
from onecard.messages import Note, T
from onecard.planner.corpus import Corpus
from onecard.planner.result import Flops, KnownRun, Params, Range


def _released(counts: Params) -> KnownModel:
    """The released GPT-2 nearest in size."""
    return min(
        (model for model in known_models() if model.preset),
        key=lambda model: max(model.params / counts.total, counts.total / model.params),
    )


def _loss_of(model: KnownModel, text: str) -> tuple[float, T] | None:
    """A released model's loss on this text, and its words.

    Only the smallest was measured on FineWeb-Edu: it is 0.13 easier there than on FineWeb, and the others are taken to
    gain the same.
    """
    if text in model.losses:
        return model.losses[text], T("{loss:.2f}", loss=model.losses[text])
    small = next(known for known in known_models() if known.preset == "gpt2")
    if text not in small.losses or "fineweb" not in model.losses:
        return None
    plain = model.losses["fineweb"]
    loss = plain + small.losses[text] - small.losses["fineweb"]
    return loss, T(
        "{loss:.2f} (estimated from its {plain:.2f} on fineweb)",
        loss=loss,
        plain=plain,
    )


def against_gpt2(counts: Params, corpus: Corpus, expected: Range) -> Note | None:
    """Whether the run should beat the released GPT-2 of its size on the same text; None where that is not known."""
    model = _released(counts)
    known = _loss_of(model, corpus.family or "")
    if known is None:
        return None
    theirs, words = known
    figures = {"model": model.name, "theirs": words, "mid": expected.mid, "dataset": corpus.family}
    if expected.high < theirs:
        return Note("beats-gpt2", **figures)
    if expected.low > theirs:
        return Note("behind-gpt2", **figures)
    return Note("near-gpt2", **figures)


_LANDMARKS = (
    "llm.c 124M on FineWeb 10B",
    "build-nanogpt 124M on FineWeb-Edu 10B",
    "modded-nanogpt speedrun 124M",
)


def known_runs(counts: Params, flops: Flops, corpus: Corpus) -> list[KnownRun]:
    """The released GPT-2 nearest in size and runs that people know, beside this one."""
    models = [_released(counts), *(model for model in known_models() if model.name in _LANDMARKS)]
    return [
        KnownRun(
            name=model.name,
            params=model.params,
            tokens=model.tokens,
            tokens_low=model.tokens_low,
            tokens_high=model.tokens_high,
            flops=model.flops,
            ratio=flops.total_6nd / model.flops,
            loss=model.losses.get(corpus.family or ""),
            source=model.source,
        )
        for model in models
    ]
