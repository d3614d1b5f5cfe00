"""The plan's sections on what comes of it: the expected loss, the cost, the data, the well-known runs beside it."""

from onecard.messages import Plural, T
from onecard.planner.result import Loss, RunPlan
from onecard.report.document import (
    Block,
    Column,
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
from onecard.report.plan_fit import Formulas
from onecard.report.plan_summary import cost, kwh_spec, ranged


def loss_section(plan: RunPlan, why: Formulas) -> Section:
    title = T("What result to expect?")
    loss = plan.loss
    if loss is None:
        return Section(title, (Notes((_no_loss(plan),)),))
    rows = [
        ranged(
            T("Loss at the end"),
            loss.expected,
            ".2f",
            note=T("nats per token, held-out {data}", data=loss.dataset),
            formula=why.get("loss.expected"),
        ),
        ranged(T("Perplexity"), loss.perplexity, ".1f", formula=why.get("loss.perplexity")),
    ]
    if loss.repetition > 0.0005:
        rows.append(
            Figure(
                T("Cost of repeated data"),
                Quantity(loss.repetition, ".3f"),
                note=T("nats above fresh data"),
                formula=why.get("loss.repetition"),
            )
        )
    if loss.hellaswag is not None:
        rows.append(
            ranged(
                T("HellaSwag"),
                loss.hellaswag,
                ".1%",
                note=T("completion style, normalised by length; chance is 25%, GPT-2 124M 29.6%"),
                formula=why.get("loss.hellaswag"),
            )
        )
    notes: list[Text] = [loss.beats_gpt2] if loss.beats_gpt2 else []
    if not loss.in_support:
        notes.append(T("No public run is near this size and length: the loss is a rough estimate."))
    blocks: list[Block] = [Figures(tuple(rows))]
    if notes:
        blocks.append(Notes(tuple(notes)))
    if len(loss.curve) > 1:
        blocks.append(_loss_curve(plan, loss))
    return Section(title, tuple(blocks))


def _no_loss(plan: RunPlan) -> T:
    if plan.config.init_from not in ("scratch", "resume"):
        return T(
            "No loss is predicted: the law is for runs from scratch, not from {start}.",
            start=plan.config.init_from,
        )
    return T("No loss is predicted: no public runs on data like this.")


def _loss_curve(plan: RunPlan, loss: Loss) -> LineChart:
    half_range = (loss.expected.high - loss.expected.low) / 2
    # The first twentieth falls so far that the rest would look flat.
    start = plan.config.max_iters / 20
    points = tuple((float(step), value) for step, value in loss.curve if step >= start)
    band = tuple((x, y - half_range, y + half_range) for x, y in points)
    return LineChart(
        title=T("Expected loss along the run"),
        series=(Series(T("expected loss"), points, band),),
        x_label=T("steps"),
        y_label=T("loss"),
        x_spec="int",
    )


def money_section(plan: RunPlan, why: Formulas) -> Section:
    energy = plan.energy
    low, mid, high = (
        cost(plan, end) for end in (energy.cost.low, energy.cost.mid, energy.cost.high)
    )
    rows = (
        Figure(T("Electricity"), mid, (low, high), formula=why.get("energy.cost")),
        ranged(
            T("Energy"),
            energy.kwh,
            kwh_spec(energy.kwh.mid),
            "kWh",
            formula=why.get("energy.kwh"),
            note=T("at {watts:int} W", watts=energy.watts),
        ),
        Figure(
            T("Price of a kWh"),
            Quantity(energy.price_per_kwh, ".3g", energy.currency),
            note=energy.price_source,
        ),
    )
    return Section(T("What does it cost?"), (Figures(rows),))


def data_section(plan: RunPlan, why: Formulas) -> Section:
    tokens, config = plan.tokens, plan.config
    rows = [
        Figure(
            T("Tokens per step"),
            Quantity(tokens.per_step, "int"),
            formula=why.get("tokens.per_step"),
            note=T(
                "{batch} × {block} × {accumulation} (batch × context × accumulation)",
                batch=config.batch_size,
                block=config.block_size,
                accumulation=config.gradient_accumulation_steps,
            ),
        ),
        Figure(
            T("Total tokens"),
            Quantity(tokens.total, "count"),
            formula=why.get("tokens.total"),
            note=Plural("in {n:int} step", "in {n:int} steps", n=config.max_iters),
        ),
    ]
    if tokens.epochs is not None and tokens.unique is not None:
        over = T(
            "over the {unique:count} tokens of {data}", unique=tokens.unique, data=tokens.dataset
        )
        if tokens.dataset is None:
            over = T("over {unique:count} tokens of data", unique=tokens.unique)
        rows.append(
            Figure(
                T("Epochs"),
                Quantity(tokens.epochs, ".2f"),
                note=over,
                formula=why.get("tokens.epochs"),
            )
        )
    else:
        rows.append(
            Figure(T("Epochs"), T("unknown"), note=T("--data names the data set or its size"))
        )
    ratio = tokens.total / tokens.compute_optimal if tokens.compute_optimal else 0.0
    rows.append(
        Figure(
            T("Tokens per parameter"),
            Quantity(tokens.per_param, ",.1f"),
            formula=why.get("tokens.per_param"),
            note=T(
                "{ratio:.1f} × compute-optimal, which is {optimal:count} tokens",
                ratio=ratio,
                optimal=tokens.compute_optimal,
            ),
        )
    )
    return Section(T("Tokens and data"), (Figures(tuple(rows)),))


def known_runs_section(plan: RunPlan, explain: bool = False) -> Section:
    if not plan.known_runs:
        return Section(T("Against well-known runs"), ())
    here: tuple[Value, ...] = (
        T("this run"),
        Quantity(plan.params.total, "count"),
        Quantity(plan.tokens.total, "count"),
        "",
        Quantity(plan.loss.expected.mid, ".2f") if plan.loss else "–",
    )
    others: list[tuple[Value, ...]] = []
    guesses: list[Text] = []
    for run in plan.known_runs:
        tokens: Value = Quantity(run.tokens, "count")
        if run.tokens_low < run.tokens_high:
            tokens = T("≈{tokens:count}", tokens=run.tokens)
            guesses.append(
                T(
                    "≈: the tokens of {run} were never published; estimates run from {low:count} to {high:count}",
                    run=run.name,
                    low=run.tokens_low,
                    high=run.tokens_high,
                )
            )
        others.append(
            (
                run.name,
                Quantity(run.params, "count"),
                tokens,
                Quantity(run.ratio, ".2f" if run.ratio >= 0.1 else ".2g", "×"),
                Quantity(run.loss, ".2f") if run.loss is not None else "–",
            )
        )
    columns = (
        Column(T("Run")),
        Column(T("parameters"), "right"),
        Column(T("tokens"), "right"),
        Column(T("FLOPs, this run ÷ that run"), "right"),
        Column(T("loss"), "right"),
    )
    blocks: list[Block] = [Table(columns, (here, *others), marked=(0,))]
    if plan.loss:
        guesses.insert(0, T("FLOPs as 6·N·D; losses on {data}", data=plan.loss.dataset))
    if explain:
        guesses += [
            T("{name}: {formula}", name=run.name, formula=run.source) for run in plan.known_runs
        ]
    if guesses:
        blocks.append(Notes(tuple(guesses)))
    return Section(T("Against well-known runs"), tuple(blocks))
