"""A Comparison, or one run explained, as a document: the answer, who wins at what and why, then the figures.

show(compare_document(compare([figures(a, card), figures(b, card)])), "terminal", lang="es")
"""

from collections.abc import Sequence

from onecard.messages import Formula, T
from onecard.planner.formulas import FORMULAS
from onecard.report.compare_charts import expected_loss, own_chart
from onecard.report.compare_tables import (
    changed,
    changed_in_brief,
    equal,
    short_side_by_side,
    side_by_side,
    won,
)
from onecard.report.document import (
    Block,
    Column,
    Document,
    Notes,
    Quantity,
    Section,
    Table,
    Text,
    always,
)
from onecard.runs.compare import DEPENDS, Comparison
from onecard.runs.explain import Finding
from onecard.runs.explain.tune_findings import FORGOTTEN
from onecard.runs.figures import RunFigures

FOOTER = T(
    "≈: worked out from other figures, not logged. Times are of training alone: compilation and evaluations "
    "are left out."
)
_ALWAYS = FORGOTTEN | {"config-changed", "source-overfits"}
SAME_SPEED = 1.02  # a ratio below this is no difference
WORKED_OUT: dict[str, T] = {
    "params.nanogpt": T("parameters, as nanoGPT counts"),
    "tokens.per_step": T("tokens per step"),
    "flops.per_token_nanogpt": T("FLOPs per token"),
    "mfu.card": T("MFU of this card"),
    "mfu.nanogpt": T("MFU as printed"),
    "energy.kwh": T("kWh so far"),
    "loss.expected": T("expected loss"),
}


def compare_document(comparison: Comparison, explain: bool = False) -> Document:
    """Everything the comparison holds; with `explain`, how the figures are worked out."""
    # Findings about the runs together answer the question; most of those about one run are details, unless its log or
    # config cannot be trusted.
    kept = _ALWAYS | {problem.code for run in comparison.runs for problem in run.problems}
    between = [
        finding
        for finding in comparison.findings
        if len(finding.runs) != 1 or (finding.gain or 0) > 0 or finding.note.code in kept
    ]
    sections = [
        always(T("Who wins at what"), won(comparison)),
        Section(T("Why"), _findings(comparison.findings, True), short=_findings(between, True)),
        Section(T("What changed"), (changed(comparison),), short=(changed_in_brief(comparison),)),
        Section(
            T("Side by side"),
            (side_by_side(comparison.runs),),
            short=(short_side_by_side(comparison.runs),),
        ),
        Section(T("Loss"), tuple(equal(comparison))),
        _formulas(explain),
    ]
    return Document(
        title=T("Runs compared"),
        subtitle=" · ".join(figures.name for figures in comparison.runs),
        answer=_compared(comparison),
        sections=tuple(section for section in sections if section.blocks),
        footer=FOOTER,
    )


def explain_document(
    figures: RunFigures, findings: Sequence[Finding], explain: bool = False
) -> Document:
    sections = [
        always(T("What it shows"), *_findings(findings)),
        Section(T("Loss"), tuple(own_chart(figures))),
        Section(T("The run"), (side_by_side([figures]),), short=(short_side_by_side([figures]),)),
        _formulas(explain),
    ]
    return Document(
        title=T("The run explained"),
        subtitle=figures.name,
        answer=_explained(figures, findings),
        sections=tuple(section for section in sections if section.blocks),
        footer=FOOTER,
    )


def _compared(comparison: Comparison) -> Text:
    """Who has the lower loss, who is faster, who should end lower."""
    clauses = [_lower_loss(comparison), _faster(comparison)]
    final = comparison.winners.get("projected_loss")
    losses = {figures.name: figures.projected_loss for figures in comparison.runs}
    if final in losses and losses[final] is not None:
        clauses.append(
            T("{run} is expected to end lower, at {loss:.2f}", run=final, loss=losses[final])
        )
    return _joined([clause for clause in clauses if clause is not None])


def _lower_loss(comparison: Comparison) -> T:
    after = {
        "equal_hours": T("{run} has the lower loss after the same hours"),
        "equal_tokens": T("{run} has the lower loss after the same tokens"),
        "equal_steps": T("{run} has the lower loss after the same steps"),
    }
    if comparison.comparable is not None:
        cost = next(
            (finding.note for finding in comparison.findings if finding.note.code in FORGOTTEN),
            None,
        )
        return cost or T("the losses cannot be compared")
    for key, words in after.items():
        winner = comparison.winners.get(key)
        if winner == DEPENDS:
            return T("which run has the lower loss depends on when you look")
        if winner is not None:
            words.values["run"] = winner
            return words
    if any(comparison.at_equal[key.removeprefix("equal_")] for key in after):
        return T("the losses are too close to call")
    return T("the losses cannot be compared")


def _faster(comparison: Comparison) -> T | None:
    speeds = {
        figures.name: figures.tokens_per_second
        for figures in comparison.runs
        if figures.tokens_per_second and not figures.beyond_its_card
    }
    if len(speeds) < 2:
        return None
    fastest, slowest = max(speeds, key=speeds.__getitem__), min(speeds, key=speeds.__getitem__)
    ratio = speeds[fastest] / speeds[slowest]
    if ratio < SAME_SPEED:
        return T("the runs are equally fast")
    return T(
        "{fast} processes {ratio:.1f} times the tokens per second of {slow}",
        fast=fastest,
        ratio=ratio,
        slow=slowest,
    )


def _explained(figures: RunFigures, findings: Sequence[Finding]) -> Text | None:
    """How fast, how good, and what would help most."""
    clauses: list[T] = []
    if figures.beyond_its_card:
        clauses.append(
            T(
                "its log says {tokens:int} tokens per second, which that card cannot reach",
                tokens=figures.tokens_per_second,
            )
        )
    elif figures.tokens_per_second and figures.mfu_card:
        rates = {"tokens": figures.tokens_per_second, "mfu": figures.mfu_card}
        clauses.append(
            T(
                "it processes {tokens:int} tokens per second, {mfu:percent} of the processor's peak",
                **rates,
            )
            if figures.device is not None and figures.device.kind == "cpu"
            else T(
                "it processes {tokens:int} tokens per second, {mfu:percent} of the card's peak",
                **rates,
            )
        )
    elif figures.tokens_per_second:
        clauses.append(
            T("it processes {tokens:int} tokens per second", tokens=figures.tokens_per_second)
        )
    expected = expected_loss(figures, figures.run.last_step)
    early = any(finding.note.code == "loss-early" for finding in findings)
    if figures.final_loss is not None and expected is not None and not early:
        clauses.append(
            T(
                "its loss is {loss:.2f} ({expected:.2f} expected)",
                loss=figures.final_loss,
                expected=expected,
            )
        )
    gains = [finding for finding in findings if (finding.gain or 0) > 0]
    if gains:
        best = max(gains, key=lambda finding: finding.gain or 0.0)
        clauses.append(T("the largest gain to try is {gain:percent}, see below", gain=best.gain))
    return _joined(clauses) if clauses else None


def _joined(clauses: list[T]) -> T:
    whole = clauses[0]
    for clause in clauses[1:]:
        whole = T("{first}; {second}", first=whole, second=clause)
    return whole


def _formulas(wanted: bool) -> Section:
    named = tuple(
        T("{name}: {formula}", name=name, formula=Formula(FORMULAS[key]))
        for key, name in WORKED_OUT.items()
    )
    return Section(T("How this was found"), (Notes(named),) if wanted else ())


def _found(finding: Finding, several: bool) -> T:
    """A finding's sentence, with the run that it is about where several are shown."""
    if not several or len(finding.runs) != 1:
        return finding.note
    return T("{run}: {finding}", run=finding.runs[0], finding=finding.note)


def _findings(findings: Sequence[Finding], several: bool = False) -> tuple[Block, ...]:
    """What was found; then what to try, the largest gain first."""
    gains = sorted(
        (finding for finding in findings if finding.gain is not None and finding.gain > 0),
        key=lambda finding: -(finding.gain or 0.0),
    )
    rest = [finding for finding in findings if finding not in gains]
    blocks: list[Block] = []
    if rest:
        # a sentence without a name may hold for several pairs of runs: it is shown once
        blocks.append(Notes(tuple(dict.fromkeys(_found(finding, several) for finding in rest))))
    if gains:
        columns = (Column(T("What to try, and what it should gain")), Column(T("gain"), "right"))
        blocks.append(
            Table(
                columns,
                tuple(
                    (_found(finding, several), Quantity(finding.gain, "percent"))
                    for finding in gains
                ),
            )
        )
    return tuple(blocks)
