"""A Comparison, or one run explained, as a document: the figures side by side, what changed, who wins at what, and why.

show(compare_document(compare([figures(a, card), figures(b, card)])), "terminal", lang="es")
"""

from collections.abc import Sequence

from onecard.messages import T
from onecard.planner.formulas import FORMULAS
from onecard.report.document import (
    Block,
    Column,
    Document,
    Figure,
    Figures,
    LineChart,
    Notes,
    Quantity,
    Section,
    Series,
    Table,
    Text,
    Value,
)
from onecard.runs.compare import AXES, DEPENDS, Comparison, EqualRow, amount_of
from onecard.runs.explain import Finding
from onecard.runs.figures import RunFigures, expected_at
from onecard.units import HOUR

_POINTS = 120  # of a plotted curve
_NONE = "–"

_AXIS: dict[
    str, tuple[T, T, str]
] = {  # title of the table, label of the plot, how the amount is printed
    "steps": (T("At equal steps"), T("steps"), "int"),
    "tokens": (T("At equal tokens"), T("tokens"), "count"),
    "hours": (T("At equal hours"), T("hours of training"), "hours"),
    "flops": (T("At equal FLOPs"), T("FLOPs"), ".2e"),
}
_KIND = {"val": T("validation"), "train": T("training"), "bits_per_byte": T("bits per byte")}
_WON: dict[str, T] = {
    "tokens_per_second": T("Tokens a second"),
    "mfu_card": T("Use of the card (MFU)"),
    "equal_steps": T("Loss at equal steps"),
    "equal_tokens": T("Loss at equal tokens"),
    "equal_hours": T("Loss at equal hours"),
    "equal_flops": T("Loss at equal FLOPs"),
    "projected_loss": T("Loss at the end, projected"),
}


_WORKED_OUT: dict[str, T] = {
    "params.nanogpt": T("parameters, as nanoGPT counts"),
    "tokens.per_step": T("tokens per step"),
    "flops.per_token_nanogpt": T("FLOPs per token"),
    "mfu.card": T("MFU of this card"),
    "mfu.nanogpt": T("MFU as nanoGPT prints it"),
    "energy.kwh": T("kWh so far"),
    "loss.expected": T("expected loss"),
}


def compare_document(c: Comparison, explain: bool = False) -> Document:
    """Everything the comparison holds; with `explain`, how the figures are worked out."""
    sections = [
        Section(T("Side by side"), (_side_by_side(c.runs),)),
        Section(T("What changed"), (_changed(c),)),
        Section(T("Who wins at what"), (_won(c),)),
        Section(T("Loss"), tuple(_equal(c))),
        Section(T("Why"), tuple(_findings(c.findings))),
        _formulas(explain),
    ]
    return Document(
        title=T("Runs compared"),
        subtitle=" · ".join(f.name for f in c.runs),
        sections=tuple(section for section in sections if section.blocks),
        footer=T(
            "≈: worked out from other figures, not logged. Times are of training alone: compilation and evaluations "
            "are left out."
        ),
    )


def explain_document(f: RunFigures, findings: Sequence[Finding], explain: bool = False) -> Document:
    sections = [
        Section(T("The run"), (_side_by_side([f]),)),
        Section(T("What it shows"), tuple(_findings(findings))),
        Section(T("Loss"), tuple(_own_chart(f))),
        _formulas(explain),
    ]
    return Document(
        title=T("The run explained"),
        subtitle=f.name,
        sections=tuple(section for section in sections if section.blocks),
        footer=T(
            "≈: worked out from other figures, not logged. Times are of training alone: compilation and evaluations "
            "are left out."
        ),
    )


def _formulas(wanted: bool) -> Section:
    named = tuple(
        T("{name}: {formula}", name=name, formula=FORMULAS[key])
        for key, name in _WORKED_OUT.items()
    )
    return Section(T("Compute"), (Notes(named),) if wanted else ())


def _side_by_side(runs: Sequence[RunFigures]) -> Table:
    rows: list[tuple[Value, ...]] = []

    def row(label: Text, *values: Value) -> None:
        if any(value != _NONE for value in values):
            rows.append((label, *values))

    row(T("card"), *(f.device.name if f.device else f.run.gpu or _NONE for f in runs))
    row(T("parameters, as nanoGPT counts"), *(_figure(f, "params_nanogpt", "count") for f in runs))
    row(T("micro-batch × accumulation"), *(_batch(f) for f in runs))
    row(T("tokens per step"), *(_figure(f, "tokens_per_step", "int") for f in runs))
    row(T("FLOPs per token"), *(_figure(f, "flops_per_token", "count") for f in runs))
    row(T("one step"), *(_figure(f, "step_seconds", "duration") for f in runs))
    row(T("predicted"), *(_quantity(f.predicted.get("step_seconds"), "duration") for f in runs))
    row(T("tokens/s"), *(_figure(f, "tokens_per_second", "int") for f in runs))
    row(
        T("TFLOPS"),
        *(_figure(f, "tflops", ",.1f" if (f.tflops or 1) >= 1 else ".2g") for f in runs),
    )
    row(T("MFU of this card"), *(_figure(f, "mfu_card", ".1%") for f in runs))
    row(T("MFU as printed"), *(_figure(f, "mfu_printed", ".1%") for f in runs))
    row(T("steps done"), *(_quantity(f.run.last_step, "int") for f in runs))
    row(T("tokens seen"), *(_figure(f, "tokens_seen", "count") for f in runs))
    row(
        T("hours of training"),
        *(
            _quantity(
                f.seconds / HOUR if f.seconds else None,
                ",.2f" if (f.seconds or 0) > HOUR / 10 else ".2g",
            )
            for f in runs
        ),
    )
    row(T("loss"), *(_loss(f) for f in runs))
    row(T("expected loss"), *(_quantity(_expected(f, f.run.last_step), ".2f") for f in runs))
    row(T("bits per byte"), *(_figure(f, "final_bits_per_byte", ".4f") for f in runs))
    row(T("loss at the end, projected"), *(_quantity(f.projected_loss, ".2f") for f in runs))
    row(T("time left"), *(_quantity(f.seconds_left, "duration") for f in runs))
    row(
        T("kWh so far"),
        *(_figure(f, "kwh", ",.2f" if (f.kwh or 1) >= 0.1 else ".2g") for f in runs),
    )
    row(
        T("cost so far"),
        *(Quantity((f.cost, f.currency), "money") if f.cost is not None else _NONE for f in runs),
    )
    row(T("lines not read"), *(_quantity(f.run.unreadable or None, "int") for f in runs))
    return Table((Column(""), *(Column(f.name, "right") for f in runs)), tuple(rows))


def _figure(f: RunFigures, name: str, spec: str) -> Value:
    value = _quantity(getattr(f, name), spec)
    return T("≈ {value}", value=value) if name in f.inferred and value != _NONE else value


def _quantity(value: float | None, spec: str) -> Value:
    return _NONE if value is None else Quantity(value, spec)


def _batch(f: RunFigures) -> Value:
    if (
        f.config is None
        or f.tokens_per_step is None
        or f.config.tokens_per_step != f.tokens_per_step
    ):
        return _NONE
    return f"{f.config.batch_size} × {f.config.gradient_accumulation_steps}"


def _loss(f: RunFigures) -> Value:
    if f.final_loss is None or f.final_loss_kind is None:
        return _NONE
    return T("{loss:.4f} ({kind})", loss=f.final_loss, kind=_KIND[f.final_loss_kind])


def _changed(c: Comparison) -> Block:
    if not c.differences:
        same = all(f.config is not None for f in c.runs)
        return Notes(
            (
                T("Nothing in the configs differs.")
                if same
                else T("The logs do not tell the configs."),
            )
        )
    columns = (Column(T("key")), *(Column(f.name) for f in c.runs), Column(T("effect")))
    rows: list[tuple[Value, ...]] = [(d.key, *map(str, d.values), d.effect) for d in c.differences]
    return Table(columns, tuple(rows))


def _won(c: Comparison) -> Figures:
    def name(key: str) -> Value:
        winner = c.winners.get(key)
        if winner is None:
            told = key.startswith("equal_") and c.at_equal[key.removeprefix("equal_")]
            return T("too close to call") if told and c.comparable is None else T("I can't tell")
        return T("it depends") if winner == DEPENDS else winner

    return Figures(
        tuple(Figure(label, name(key)) for key, label in _WON.items() if key in c.winners)
    )


def _equal(c: Comparison) -> list[Block]:
    blocks: list[Block] = []
    for axis in AXES:
        title, _, spec = _AXIS[axis]
        if c.at_equal[axis]:
            columns = (
                Column(title, "right"),
                *(Column(f.name, "right") for f in c.runs),
                Column(T("loss of")),
                Column(T("ahead")),
            )
            blocks.append(Table(columns, tuple(_row(c, row, spec) for row in c.at_equal[axis])))
    if c.comparable is None or c.comparable.code != "tokenizers-differ":
        blocks += _charts(c.runs)
    return blocks


def _row(c: Comparison, row: EqualRow, spec: str) -> tuple[Value, ...]:
    losses: list[Value] = [
        T("{loss:.4f} ± {error:.3f}", loss=e.value, error=e.error) if e is not None else _NONE
        for e in row.losses
    ]
    ahead: Value = c.runs[row.winner].name if row.winner is not None else T("too close to call")
    at = Quantity(row.at * HOUR, "duration") if spec == "hours" else Quantity(row.at, spec)
    return (at, *losses, _KIND[row.kind], ahead if c.comparable is None else _NONE)


def _expected(f: RunFigures, step: float) -> float | None:
    return expected_at(f.plan, step) if f.plan is not None and step > 0 else None


def _own_chart(f: RunFigures) -> list[Block]:
    """One run against what the plan expects of it."""
    points = _curve(f, "tokens")
    if len(points) < 2 or not f.tokens_per_step:
        return _charts([f])
    steps = [f.run.last_step * i / 60 for i in range(1, 61)]
    known = [
        (step * f.tokens_per_step, loss)
        for step in steps
        if (loss := _expected(f, step)) is not None
    ]
    series = [
        Series(f.name, points),
        *([Series(T("expected loss"), tuple(known))] if len(known) > 1 else []),
    ]
    return [LineChart(T("Loss against tokens"), tuple(series), T("tokens"), T("loss"))]


def _charts(runs: Sequence[RunFigures]) -> list[Block]:
    blocks: list[Block] = []
    for axis, title in (
        ("tokens", T("Loss against tokens")),
        ("hours", T("Loss against hours")),
        ("flops", T("Loss against FLOPs")),
    ):
        series = [Series(f.name, points) for f in runs if len(points := _curve(f, axis)) > 1]
        if len(series) == len(runs):
            _, label, spec = _AXIS[axis]
            blocks.append(
                LineChart(
                    title,
                    tuple(series),
                    label,
                    T("loss"),
                    x_spec=".3g" if spec == "hours" else spec,
                )
            )
    return blocks


def _curve(f: RunFigures, axis: str) -> tuple[tuple[float, float], ...]:
    """A run's training losses against an amount, thinned to what a plot shows; its evaluations where there are none."""
    steps: Sequence[float] = f.run.curve.steps
    losses: Sequence[float] = f.run.curve.losses
    if len(steps) < 2:
        known = [(float(e.step), e.val_loss) for e in f.run.evals if e.val_loss is not None]
        steps, losses = [step for step, _ in known], [loss for _, loss in known]
    every = max(1, len(steps) // _POINTS)
    points = []
    for i in range(0, len(steps), every):
        amount = amount_of(f, axis, steps[i])
        if amount is not None:
            points.append((amount, sum(losses[i : i + every]) / len(losses[i : i + every])))
    return tuple(points)


def _findings(findings: Sequence[Finding]) -> list[Block]:
    """What to try first, by its gain; then what was found."""
    gains = sorted(
        (f for f in findings if f.gain is not None and f.gain > 0), key=lambda f: -(f.gain or 0.0)
    )
    rest = [f for f in findings if f not in gains]
    blocks: list[Block] = []
    if rest:
        blocks.append(Notes(tuple(f.note for f in rest)))
    if gains:
        columns = (Column(T("What to try, and what it should gain")), Column(T("gain"), "right"))
        blocks.append(Table(columns, tuple((f.note, Quantity(f.gain, "percent")) for f in gains)))
    return blocks
