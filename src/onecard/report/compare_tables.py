"""The tables of a comparison: the runs side by side, what changed, who wins, the losses at equal amounts."""

from collections.abc import Sequence

from onecard.messages import T
from onecard.report.compare_charts import AXIS, charts, expected_loss
from onecard.report.document import (
    NONE,
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
    if_known,
)
from onecard.report.plan_summary import device_name
from onecard.runs.compare import AXES, DEPENDS, Comparison, EqualRow
from onecard.runs.eval_results import TASK_TITLES, Result, main_figure, newest
from onecard.runs.explain.tune_findings import base_text_losses
from onecard.runs.figures import RunFigures
from onecard.units import HOUR

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
    return Table((Column(""), *(Column(each.name, "right") for each in runs)), known)


def _setup(runs: Sequence[RunFigures]) -> list[Row]:
    return [
        (
            T("card"),
            *(device_name(each.device) if each.device else each.run.gpu or NONE for each in runs),
        ),
        _row_of(runs, T("parameters, as nanoGPT counts"), "params_nanogpt", "count"),
        (T("micro-batch × accumulation"), *map(_batch, runs)),
        _row_of(runs, T("tokens per step"), "tokens_per_step", "int"),
        _row_of(runs, T("FLOPs per token"), "flops_per_token", "count"),
    ]


def _speed(runs: Sequence[RunFigures]) -> list[Row]:
    tflops = (
        _figure(each, "tflops", ",.1f" if (each.tflops or 1) >= 1 else ".2g") for each in runs
    )
    return [
        _row_of(runs, T("one step"), "step_seconds", "duration"),
        _row_of(runs, T("tokens/s"), "tokens_per_second", "int"),
        _row_of(runs, T("MFU of this card"), "mfu_card", ".1%"),
        (
            T("one step, predicted"),
            *(if_known(each.predicted.get("step_seconds"), "duration") for each in runs),
        ),
        (T("TFLOPS"), *tflops),
        _row_of(runs, T("MFU as printed"), "mfu_printed", ".1%"),
    ]


def _progress(runs: Sequence[RunFigures]) -> list[Row]:
    return [
        (T("steps done"), *(if_known(each.run.last_step, "int") for each in runs)),
        _row_of(runs, T("tokens seen"), "tokens_seen", "count"),
        (T("hours of training"), *map(_hours, runs)),
        (T("loss"), *map(_loss, runs)),
        (
            T("expected loss"),
            *(if_known(expected_loss(each, each.run.last_step), ".2f") for each in runs),
        ),
        (
            T("loss at the end, projected"),
            *(if_known(each.projected_loss, ".2f") for each in runs),
        ),
        _row_of(runs, T("bits per byte"), "final_bits_per_byte", ".4f"),
        *_benchmarks(runs),
        (T("time left"), *(if_known(each.seconds_left, "duration") for each in runs)),
    ]


def _parts_of_loss(runs: Sequence[RunFigures]) -> list[Row]:
    """Of mixes the loss of each source; of tuned runs that on the base's text, before and after."""
    last = [
        next((entry.sources for entry in reversed(each.run.evals) if entry.sources), {})
        for each in runs
    ]
    names = dict.fromkeys(name for sources in last for name in sources)
    rows: list[Row] = [
        (
            T("loss of {source}", source=name),
            *(if_known(sources.get(name), ".4f") for sources in last),
        )
        for name in names
    ]
    return [*rows, (T("loss on the base's own text"), *map(_base_text, runs))]


def _base_text(figures: RunFigures) -> Value:
    known = base_text_losses(figures.run)
    if known is None:
        return NONE
    return T("{before:.4f} → {after:.4f}", before=known[0], after=known[1])


def _benchmarks(runs: Sequence[RunFigures]) -> list[Row]:
    """The newest kept result of each task, and nanochat's CORE metric."""
    newest_results = [newest(list(each.run.results)) for each in runs]
    core = (
        next((entry.core for entry in reversed(each.run.evals) if entry.core is not None), None)
        for each in runs
    )
    rows: list[Row] = [(T("CORE metric"), *(if_known(value, ".4f") for value in core))]
    for task in dict.fromkeys(task for results in newest_results for task in results):
        title = TASK_TITLES.get(task, task.removeprefix("text "))
        rows.append((title, *(_result(results.get(task)) for results in newest_results)))
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
    kwh = (_figure(each, "kwh", ",.2f" if (each.kwh or 1) >= 0.1 else ".2g") for each in runs)
    cost = (
        _marked(each, "cost", Quantity((each.cost, each.currency), "money"))
        if each.cost is not None
        else NONE
        for each in runs
    )
    return [
        (T("kWh so far"), *kwh),
        (T("cost so far"), *cost),
        (T("exported"), *("; ".join(each.run.exports) or NONE for each in runs)),
        (T("lines not read"), *(if_known(each.run.unreadable or None, "int") for each in runs)),
    ]


def _row_of(runs: Sequence[RunFigures], label: Text, name: str, spec: str) -> Row:
    return (label, *(_figure(each, name, spec) for each in runs))


def _figure(figures: RunFigures, name: str, spec: str) -> Value:
    value = if_known(getattr(figures, name), spec)
    return _marked(figures, name, value)


def _marked(figures: RunFigures, name: str, value: Value) -> Value:
    return T("≈ {value}", value=value) if name in figures.inferred and value != NONE else value


def _hours(figures: RunFigures) -> Value:
    if not figures.seconds:
        return NONE
    spec = ",.2f" if figures.seconds > HOUR / 10 else ".2g"
    return _marked(figures, "seconds", Quantity(figures.seconds / HOUR, spec))


def _batch(figures: RunFigures) -> Value:
    config = figures.config
    if (
        config is None
        or figures.tokens_per_step is None
        or config.tokens_per_step != figures.tokens_per_step
    ):
        return NONE
    return f"{config.batch_size}\u00a0×\u00a0{config.gradient_accumulation_steps}"


def _loss(figures: RunFigures) -> Value:
    if figures.final_loss is None or figures.final_loss_kind is None:
        return NONE
    return T("{loss:.4f} ({kind})", loss=figures.final_loss, kind=KIND[figures.final_loss_kind])


def changed(comparison: Comparison) -> Block:
    if not comparison.differences:
        same = all(each.config is not None for each in comparison.runs)
        words = (
            T("Nothing in the configs differs.")
            if same
            else T("Not every run has a config that its log confirms.")
        )
        return Notes((words,))
    values = (Column(each.name, breaks=True) for each in comparison.runs)  # paths among them
    columns = (Column(T("key")), *values, Column(T("effect")))
    rows: list[Row] = [
        (each.key, *map(str, each.values), each.effect) for each in comparison.differences
    ]
    return Table(columns, tuple(rows))


def changed_in_brief(comparison: Comparison) -> Block:
    """The keys and their values, without the effects."""
    if not comparison.differences:
        return changed(comparison)
    return Paragraph(
        ", ".join(
            f"{each.key} {' → '.join(map(str, each.values))}" for each in comparison.differences
        )
    )


def won(comparison: Comparison) -> Figures:
    def known(key: str) -> bool:
        if key.startswith("equal_"):
            at_equal = comparison.at_equal[key.removeprefix("equal_")]
            return comparison.comparable is None and bool(at_equal)
        if key == "tokens_per_second" and any(run.beyond_its_card for run in comparison.runs):
            return False
        return all(getattr(run, key) is not None for run in comparison.runs)

    def name(key: str) -> Value:
        winner = comparison.winners.get(key)
        if winner is None:
            return T("too close to call") if known(key) else T("not known")
        return T("it depends") if winner == DEPENDS else winner

    return Figures(
        tuple(Figure(label, name(key)) for key, label in WON.items() if key in comparison.winners)
    )


def equal(comparison: Comparison) -> list[Block]:
    """The losses after equal steps, tokens, hours and FLOPs, then the curves."""
    blocks: list[Block] = []
    for axis in AXES:
        title, _, spec = AXIS[axis]
        if comparison.at_equal[axis]:
            columns = (
                Column(title, "right"),
                *(Column(each.name, "right") for each in comparison.runs),
                Column(T("loss of")),
                Column(T("ahead")),
            )
            blocks.append(
                Table(
                    columns,
                    tuple(_equal_row(comparison, row, spec) for row in comparison.at_equal[axis]),
                )
            )
    if comparison.comparable is None or comparison.comparable.code != "tokenizers-differ":
        blocks += charts(comparison.runs)
    return blocks


def _equal_row(comparison: Comparison, row: EqualRow, spec: str) -> Row:
    losses: list[Value] = [
        T("{loss:.4f} ± {error:.3f}", loss=loss.value, error=loss.error)
        if loss is not None
        else NONE
        for loss in row.losses
    ]
    ahead: Value = (
        comparison.runs[row.winner].name if row.winner is not None else T("too close to call")
    )
    at = Quantity(row.at * HOUR, "duration") if spec == "hours" else Quantity(row.at, spec)
    return (at, *losses, KIND[row.kind], ahead if comparison.comparable is None else NONE)
