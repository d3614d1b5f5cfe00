"""A mix's sources: which got better, and which was paid for it. And a run whose rate rose again after it had decayed."""

from collections.abc import Iterator

from onecard.messages import Note
from onecard.runs.compare import Comparison
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding

_SAME = 0.005  # nats: less is noise between two evaluations of a small split
_BUMP = 0.01  # nats


def sources(f: RunFigures) -> Iterator[Finding]:
    """The loss of each source at the end, the hardest first, and how it changed in the second half. Only for mixes."""
    evals = [e for e in f.run.evals if e.sources]
    if not evals:
        return
    last = evals[-1].sources
    ordered = sorted(last, key=lambda name: -last[name])
    half = min(evals, key=lambda e: abs(e.step - evals[-1].step / 2))
    if half is evals[-1]:
        listed = ", ".join(f"{name} {last[name]:.4f}" for name in ordered)
    else:
        listed = ", ".join(
            f"{name} {last[name]:.4f} ({last[name] - half.sources.get(name, last[name]):+.3f})"
            for name in ordered
        )
    evidence = {"step": evals[-1].step, **{f"loss {name}": last[name] for name in ordered}}
    best = {name: min(e.sources[name] for e in evals if name in e.sources) for name in last}
    worse = [name for name in ordered if last[name] - best[name] > _SAME]
    yield Finding(
        Note("source-losses", step=evals[-1].step, listed=listed)
        if half is evals[-1]
        else Note("source-changes", step=evals[-1].step, half=half.step, listed=listed),
        evidence,
    )
    for source in worse:
        yield Finding(
            Note(
                "source-overfits",
                source=source,
                rise=last[source] - best[source],
                best=best[source],
            ),
            {"source": source, "best": best[source], "last": last[source]},
        )


def rewarmed(f: RunFigures) -> Iterator[Finding]:
    """A finished run that was lengthened by moving its schedule's end: the rate rises again and the loss with it."""
    moved = [c for c in f.run.changes if c.key in ("lr_decay_iters", "max_iters")]
    if not moved or any(c.key == "branched" for c in f.run.changes):
        return
    at = moved[-1].step
    evals = [(e.step, e.val_loss) for e in f.run.evals if e.val_loss is not None]
    before = [loss for step, loss in evals if step <= at]
    after = [(step, loss) for step, loss in evals if step > at]
    if not before or not after:
        return
    worst = max(loss for _, loss in after)
    if worst - before[-1] < _BUMP:
        return
    back = next((step for step, loss in after if loss < before[-1]), None)
    evidence = {"step": at, "before": before[-1], "worst": worst, "back_at": back}
    values = {"step": at, "rise": worst - before[-1], "before": before[-1]}
    yield Finding(
        Note("rate-rewarmed", **values)
        if back is None
        else Note("rewarmed-back", **values, back=back),
        evidence,
    )


def sources_compared(c: Comparison) -> Iterator[Finding]:
    """Two runs on mixes with sources of the same names: who is better at what, and what was paid for it."""
    with_sources = [f for f in c.runs if any(e.sources for e in f.run.evals)]
    if len(with_sources) != 2 or c.comparable is not None:
        return
    a, b = with_sources
    first, second = (next(e for e in reversed(f.run.evals) if e.sources).sources for f in (a, b))
    shared = [name for name in first if name in second]
    change = {name: second[name] - first[name] for name in shared}
    better = sorted((n for n in shared if change[n] < -_SAME), key=lambda n: change[n])
    worse = sorted((n for n in shared if change[n] > _SAME), key=lambda n: -change[n])
    if not better and not worse:
        return

    def listed(names: list[str]) -> str:
        return ", ".join(f"{name} ({change[name]:+.3f})" for name in names)

    values = {"b": b.name, "a": a.name, "better": listed(better), "worse": listed(worse)}
    if better and worse:
        note = Note("sources-traded", **values)
    elif better:
        note = Note("sources-better", **values)
    else:
        note = Note("sources-worse", **values)
    yield Finding(note, {f"change {name}": change[name] for name in shared}, (a.name, b.name))


RULES = (sources, rewarmed)
PAIR_RULES = (sources_compared,)
