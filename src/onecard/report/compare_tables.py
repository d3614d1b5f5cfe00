"""The tables of a comparison: the runs side by side, what changed, who wins, the losses at equal amounts."""

from collections.abc import Sequence

from onecard.messages import T
from onecard.report.compare_charts import AXIS, charts, expected_loss
from onecard.report.document import (
    Block,
    Column,
    Figure,
    Figures,
    Notes,
    Paragraph,
    Quantity,
    Table,
    Text,
    Value,
)
from onecard.runs.compare import AXES, DEPENDS, Comparison, EqualRow
from onecard.runs.eval_results import TASK_TITLES, Result, main_figure, newest
from onecard.runs.explain.tune_findings import base_text_losses
from onecard.runs.figures import RunFigures
from onecard.units import HOUR

NONE = "–"
KIND = {"val": T("validation"), "train": T("training"), "bits_per_byte": T("bits per byte")}
WON: dict[str, T] = {
    "tokens_per_second": T("Tokens per second"),
    "mfu_card": T("Use of the card (MFU)"),
    "equal_steps": T("Loss at equal steps"),
    "equal_tokens": T("Loss at equal tokens"),
    "equal_hours": T("Loss at equal hours"),
    "equal_flops": T("Loss at equal FLOPs"),
    "projected_loss": T("Loss at the end, projected"),
}
Row = tuple[Value, ...]


def side_by_side(runs: Sequence[RunFigures]) -> Table:
    rows = [*_setup(runs), *_speed(runs), *_progress(runs), *_parts_of_loss(runs), *_cost(runs)]
    return _table(runs, rows)


def short_side_by_side(runs: Sequence[RunFigures]) -> Table:
    """The rows that most questions are about."""
    rows = [*_setup(runs)[:2], *_speed(runs)[:3], *_progress(runs)[2:6], *_parts_of_loss(runs)]
    return _table(runs, rows)


def _table(runs: Sequence[RunFigures], rows: list[Row]) -> Table:
    known = tuple(row for row in rows if any(value != NONE for value in row[1:]))
    return Table((Column(""), *(Column(f.name, "right") for f in runs)), known)


def _setup(runs: Sequence[RunFigures]) -> list[Row]:
    return [
        (T("card"), *(f.device.name if f.device else f.run.gpu or NONE for f in runs)),
        _row_of(runs, T("parameters, as nanoGPT counts"), "params_nanogpt", "count"),
        (T("micro-batch × accumulation"), *map(_batch, runs)),
        _row_of(runs, T("tokens per step"), "tokens_per_step", "int"),
        _row_of(runs, T("FLOPs per token"), "flops_per_token", "count"),
    ]


def _speed(runs: Sequence[RunFigures]) -> list[Row]:
    tflops = (_figure(f, "tflops", ",.1f" if (f.tflops or 1) >= 1 else ".2g") for f in runs)
    return [
        _row_of(runs, T("one step"), "step_seconds", "duration"),
        _row_of(runs, T("tokens/s"), "tokens_per_second", "int"),
        _row_of(runs, T("MFU of this card"), "mfu_card", ".1%"),
        (
            T("one step, predicted"),
            *(_quantity(f.predicted.get("step_seconds"), "duration") for f in runs),
        ),
        (T("TFLOPS"), *tflops),
        _row_of(runs, T("MFU as printed"), "mfu_printed", ".1%"),
    ]


def _progress(runs: Sequence[RunFigures]) -> list[Row]:
    return [
        (T("steps done"), *(_quantity(f.run.last_step, "int") for f in runs)),
        _row_of(runs, T("tokens seen"), "tokens_seen", "count"),
        (T("hours of training"), *map(_hours, runs)),
        (T("loss"), *map(_loss, runs)),
        (T("expected loss"), *(_quantity(expected_loss(f, f.run.last_step), ".2f") for f in runs)),
        (T("loss at the end, projected"), *(_quantity(f.projected_loss, ".2f") for f in runs)),
        _row_of(runs, T("bits per byte"), "final_bits_per_byte", ".4f"),
        *_benchmarks(runs),
        (T("time left"), *(_quantity(f.seconds_left, "duration") for f in runs)),
    ]


def _parts_of_loss(runs: Sequence[RunFigures]) -> list[Row]:
    """Of mixes the loss of each source; of tuned runs that on the base's text, before and after."""
    last = [next((e.sources for e in reversed(f.run.evals) if e.sources), {}) for f in runs]
    names = dict.fromkeys(name for sources in last for name in sources)
    rows: list[Row] = [
        (
            T("loss of {source}", source=name),
            *(_quantity(sources.get(name), ".4f") for sources in last),
        )
        for name in names
    ]
    return [*rows, (T("loss on the base's own text"), *map(_base_text, runs))]


def _base_text(f: RunFigures) -> Value:
    known = base_text_losses(f.run)
    if known is None:
        return NONE
    return T("{before:.4f} → {after:.4f}", before=known[0], after=known[1])


def _benchmarks(runs: Sequence[RunFigures]) -> list[Row]:
    """The newest kept result of each task, and nanochat's CORE metric."""
    found = [newest(list(f.run.results)) for f in runs]
    core = (next((e.core for e in reversed(f.run.evals) if e.core is not None), None) for f in runs)
    rows: list[Row] = [(T("CORE metric"), *(_quantity(value, ".4f") for value in core))]
    for task in dict.fromkeys(task for results in found for task in results):
        title = TASK_TITLES.get(task, task.removeprefix("text "))
        rows.append((title, *(_result(results.get(task)) for results in found)))
    return rows


def _result(result: Result | None) -> Value:
    figure = main_figure(result) if result is not None else None
    if result is None or figure is None:
        return NONE
    if figure.low is None:
        return T("{value:.4f} bits per byte", value=figure.value)
    return T(
        "{value:.1%} ± {half:.1%}", value=figure.value, half=(figure.high or 0) / 2 - figure.low / 2
    )


def _cost(runs: Sequence[RunFigures]) -> list[Row]:
    kwh = (_figure(f, "kwh", ",.2f" if (f.kwh or 1) >= 0.1 else ".2g") for f in runs)
    cost = (Quantity((f.cost, f.currency), "money") if f.cost is not None else NONE for f in runs)
    return [
        (T("kWh so far"), *kwh),
        (T("cost so far"), *cost),
        (T("exported"), *("; ".join(f.run.exports) or NONE for f in runs)),
        (T("lines not read"), *(_quantity(f.run.unreadable or None, "int") for f in runs)),
    ]


def _row_of(runs: Sequence[RunFigures], label: Text, name: str, spec: str) -> Row:
    return (label, *(_figure(f, name, spec) for f in runs))


def _figure(f: RunFigures, name: str, spec: str) -> Value:
    value = _quantity(getattr(f, name), spec)
    return T("≈ {value}", value=value) if name in f.inferred and value != NONE else value


def _quantity(value: float | None, spec: str) -> Value:
    return NONE if value is None else Quantity(value, spec)


def _hours(f: RunFigures) -> Value:
    if not f.seconds:
        return NONE
    return Quantity(f.seconds / HOUR, ",.2f" if f.seconds > HOUR / 10 else ".2g")


def _batch(f: RunFigures) -> Value:
    config = f.config
    if config is None or f.tokens_per_step is None or config.tokens_per_step != f.tokens_per_step:
        return NONE
    return f"{config.batch_size}\u00a0×\u00a0{config.gradient_accumulation_steps}"


def _loss(f: RunFigures) -> Value:
    if f.final_loss is None or f.final_loss_kind is None:
        return NONE
    return T("{loss:.4f} ({kind})", loss=f.final_loss, kind=KIND[f.final_loss_kind])


def changed(c: Comparison) -> Block:
    if not c.differences:
        same = all(f.config is not None for f in c.runs)
        words = (
            T("Nothing in the configs differs.")
            if same
            else T("The logs do not contain the configs.")
        )
        return Notes((words,))
    values = (Column(f.name, breaks=True) for f in c.runs)  # paths among them
    columns = (Column(T("key")), *values, Column(T("effect")))
    rows: list[Row] = [(d.key, *map(str, d.values), d.effect) for d in c.differences]
    return Table(columns, tuple(rows))


def changed_in_brief(c: Comparison) -> Block:
    """The keys and their values, without the effects."""
    if not c.differences:
        return changed(c)
    return Paragraph(", ".join(f"{d.key} {' → '.join(map(str, d.values))}" for d in c.differences))


def won(c: Comparison) -> Figures:
    def name(key: str) -> Value:
        winner = c.winners.get(key)
        if winner is None:
            close = key.startswith("equal_") and c.at_equal[key.removeprefix("equal_")]
            return T("too close to call") if close and c.comparable is None else T("not known")
        return T("it depends") if winner == DEPENDS else winner

    return Figures(
        tuple(Figure(label, name(key)) for key, label in WON.items() if key in c.winners)
    )


def equal(c: Comparison) -> list[Block]:
    """The losses after equal steps, tokens, hours and FLOPs, then the curves."""
    blocks: list[Block] = []
    for axis in AXES:
        title, _, spec = AXIS[axis]
        if c.at_equal[axis]:
            columns = (
                Column(title, "right"),
                *(Column(f.name, "right") for f in c.runs),
                Column(T("loss of")),
                Column(T("ahead")),
            )
            blocks.append(
                Table(columns, tuple(_equal_row(c, row, spec) for row in c.at_equal[axis]))
            )
    if c.comparable is None or c.comparable.code != "tokenizers-differ":
        blocks += charts(c.runs)
    return blocks


def _equal_row(c: Comparison, row: EqualRow, spec: str) -> Row:
    losses: list[Value] = [
        T("{loss:.4f} ± {error:.3f}", loss=e.value, error=e.error) if e is not None else NONE
        for e in row.losses
    ]
    ahead: Value = c.runs[row.winner].name if row.winner is not None else T("too close to call")
    at = Quantity(row.at * HOUR, "duration") if spec == "hours" else Quantity(row.at, spec)
    return (at, *losses, KIND[row.kind], ahead if c.comparable is None else NONE)
