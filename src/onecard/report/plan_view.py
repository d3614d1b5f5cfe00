"""A RunPlan as a document, in the order a person asks: does it fit, how long, what comes out, what does it cost.

show(plan_document(plan(load("gpt2"), find_gpu("RTX 4070"))), "terminal")
"""

from onecard.messages import Plural, T
from onecard.planner.result import Range, RunPlan
from onecard.report.document import (
    Block,
    Column,
    Document,
    Figure,
    Figures,
    LineChart,
    Notes,
    Part,
    Quantity,
    Section,
    Series,
    StackedBar,
    Table,
    Text,
    Tone,
    Value,
)
from onecard.report.plan_summary import FITS, card_name, cost, finish, headline, kwh_spec, summary
from onecard.units import HOUR

BASIS: dict[str, T] = {
    "measured": T("measured on this card"),
    "fitted": T("fitted on runs of kindred cards"),
    "class": T("a guess from its class of card"),
}
SOURCES: dict[str, T] = {"your own price": T("your own price")}
PARTS: dict[str, T] = {
    # parameters
    "token_embedding": T("token embedding"),
    "position_embedding": T("position embedding"),
    "attention": T("attention"),
    "mlp": T("MLP"),
    "norms": T("norms"),
    "head": T("output head"),
    # memory
    "weights": T("weights"),
    "gradients": T("gradients"),
    "optimizer": T("optimizer"),
    "cast_weights": T("half-precision weights"),
    "activations": T("activations"),
    "logits_and_loss": T("logits and loss"),
    "context": T("CUDA context"),
    "slack": T("allocator slack"),
    # seconds of a step
    "matmul": T("matrix products"),
    "memory": T("memory traffic"),
    "launch": T("kernel launches"),
    "data": T("data loading"),
    "exchange": T("exchange between cards"),
}


def plan_document(plan: RunPlan, explain: bool = False) -> Document:
    """Every figure of the plan; with `explain`, each with its formula and source."""
    why = plan.formulas if explain else {}
    sections = [
        _memory(plan, why),
        _time(plan, why),
        _outcome(plan, why),
        _money(plan, why),
        _data(plan, why),
        _model(plan, why),
        _compute(plan, why),
        _known_runs(plan, explain),
    ]
    if plan.warnings:
        sections.append(Section(T("Warnings"), (Notes(tuple(plan.warnings), "fair"),)))
    return Document(
        title=T("What this run needs"),
        subtitle=_subtitle(plan),
        headline=headline(plan),
        sections=tuple(section for section in sections if section.blocks),
        summary=summary(plan),
        footer=T("Ranges are 80 %: one run in ten is expected below, one in ten above.")
        if explain
        else T(
            "Ranges are 80 %: one run in ten is expected below, one in ten above. --explain shows the formulas."
        ),
    )


def part_name(key: str) -> Text:
    """The words for a part of the model, the memory or the step."""
    return PARTS.get(key) or key.replace("_", " ")


def ranged(
    label: Text,
    value: Range,
    spec: str,
    unit: Text = "",
    *,
    note: Text | None = None,
    formula: str | None = None,
    tone: Tone | None = None,
) -> Figure:
    """A row whose value is the middle and whose span is the 80 % range."""
    low, mid, high = (Quantity(end, spec, unit) for end in (value.low, value.mid, value.high))
    return Figure(label, mid, None if value.low == value.high else (low, high), note, formula, tone)


def _subtitle(plan: RunPlan) -> T:
    c = plan.config
    return T(
        "{card} · {dtype} · {layers} layers, {heads} heads, {width} wide · "
        "batch {batch} × {block} × {accumulation}",
        card=card_name(plan),
        dtype=plan.dtype,
        layers=c.n_layer,
        heads=c.n_head,
        width=c.n_embd,
        batch=c.batch_size,
        block=c.block_size,
        accumulation=c.gradient_accumulation_steps,
    )


def _memory(plan: RunPlan, why: dict[str, str]) -> Section:
    m = plan.memory
    on_cpu = plan.device.kind == "cpu"
    fits, tone = FITS[m.fits]
    bar = StackedBar(
        parts=tuple(
            Part(_memory_part(plan, key), Quantity(size, "bytes"))
            for key, size in m.parts.items()
            if size
        ),
        limit=Quantity(m.card_bytes, "bytes"),
        limit_label=T("the machine has") if on_cpu else T("the card has"),
        total=Quantity(sum(m.parts.values()), "bytes"),
        total_label=T("all parts"),
        title=T("Peak memory, part by part, against the card"),
        formula=why.get("memory.parts"),
    )
    rows = [
        Figure(T("Verdict"), fits, tone=tone, formula=why.get("memory.fits")),
        ranged(
            T("Allocated by torch"),
            m.allocated_bytes,
            "bytes",
            formula=why.get("memory.allocated_bytes"),
        ),
        ranged(
            _process_label(plan), m.process_bytes, "bytes", formula=why.get("memory.process_bytes")
        ),
        Figure(
            T("The machine") if on_cpu else T("The card"),
            Quantity(m.card_bytes, "bytes"),
            formula=why.get("memory.card_bytes"),
            note=_others(plan),
        ),
    ]
    blocks: list[Block] = [Figures(tuple(rows)), bar]
    if m.changes:
        blocks.append(Notes(tuple(m.changes)))
    return Section(T("Does it fit?"), tuple(blocks))


def _memory_part(plan: RunPlan, key: str) -> Text:
    return (
        T("torch and driver")
        if key == "context" and plan.device.vendor != "NVIDIA"
        else part_name(key)
    )


def _process_label(plan: RunPlan) -> T:
    """Who shows this figure to the person: the driver's own tool, or whatever lists processes."""
    tools = {"NVIDIA": T("As nvidia-smi shows it"), "AMD": T("As rocm-smi shows it")}
    return tools.get(plan.device.vendor, T("The whole process"))


def _others(plan: RunPlan) -> T | None:
    """What else needs memory: told by the driver, or left free in case."""
    taken = plan.memory.desktop_bytes
    if not taken:
        return None
    if plan.device.taken_bytes is not None:
        return T("{taken:bytes} in use by other programs", taken=taken)
    return T("{free:bytes} kept for the desktop", free=taken)


def _time(plan: RunPlan, why: dict[str, str]) -> Section:
    t = plan.time
    peak = plan.device.matmul_flops(plan.dtype) * plan.gpus / 1e12
    rows = (
        ranged(T("In all"), t.total_seconds, "duration", formula=why.get("time.total_seconds")),
        Figure(T("Finishes, if started now"), finish(plan) or T("beyond the calendar")),
        ranged(
            T("One step"),
            t.step_seconds,
            "duration",
            note=BASIS.get(t.basis),
            formula=why.get("time.step_seconds"),
        ),
        ranged(
            T("Tokens a second"),
            t.tokens_per_second,
            "int",
            formula=why.get("time.tokens_per_second"),
        ),
        Figure(
            T("First step, compiling"),
            Quantity(t.compile_seconds, "duration"),
            formula=why.get("time.compile_seconds"),
        ),
        ranged(
            T("MFU of this card"),
            plan.mfu.card,
            "percent",
            formula=why.get("mfu.card"),
            note=T(
                "of its {peak} TFLOPS in {dtype}",
                dtype=plan.dtype,
                peak=Quantity(peak, ".0f" if peak >= 10 else ".2g"),
            ),
        ),
        Figure(
            T("MFU as nanoGPT prints it"),
            Quantity(plan.mfu.nanogpt.mid, ".1%"),
            note=T("of an A100's 312 TFLOPS, whatever the card"),
            formula=why.get("mfu.nanogpt"),
        ),
    )
    blocks: list[Block] = [Figures(rows), _what_if(plan)]
    if t.parts:
        spent = sum(t.parts.values())
        parts = sorted(
            ((key, value) for key, value in t.parts.items() if value > 0), key=lambda item: -item[1]
        )
        blocks.append(
            Table(
                (
                    Column(T("Where a step goes")),
                    Column(T("time"), "right"),
                    Column(T("share"), "right"),
                ),
                tuple(
                    (
                        part_name(key),
                        Quantity(value, "duration"),
                        Quantity(value / spent, "percent"),
                    )
                    for key, value in parts
                ),
                bar=1,
            )
        )
    return Section(T("How long?"), tuple(blocks))


def _what_if(plan: RunPlan) -> Table:
    asked = plan.time.what_if
    hours = plan.time.total_seconds.mid >= HOUR
    # Watts and price are fixed, so money goes with the hours.
    per_second = plan.energy.cost.mid / plan.time.total_seconds.mid
    rows = tuple(
        (
            Quantity(row.step_seconds, "duration"),
            Quantity(row.tokens_per_second, "int"),
            Quantity(row.total_seconds / HOUR, ",.1f")
            if hours
            else Quantity(row.total_seconds, "duration"),
            cost(plan, row.total_seconds * per_second),
        )
        for row in asked
    )
    nearest = min(
        range(len(asked)), key=lambda i: abs(asked[i].step_seconds - plan.time.step_seconds.mid)
    )
    columns = (
        Column(T("What if a step takes"), "right"),
        Column(T("tokens/s"), "right"),
        Column(T("hours in all") if hours else T("time in all"), "right"),
        Column(T("electricity"), "right"),
    )
    return Table(columns, rows, marked=(nearest,), bar=2)


def _outcome(plan: RunPlan, why: dict[str, str]) -> Section:
    loss = plan.loss
    if loss is None and plan.config.init_from not in ("scratch", "resume"):
        return Section(
            T("What comes out?"),
            (
                Notes(
                    (
                        T(
                            "No loss is predicted: the law is for runs from scratch, not from {start}.",
                            start=plan.config.init_from,
                        ),
                    )
                ),
            ),
        )
    if loss is None:
        return Section(
            T("What comes out?"),
            (Notes((T("No loss is predicted: no public runs on data like this."),)),),
        )
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
    notes: list[Text] = [loss.beats_gpt2] if loss.beats_gpt2 else []
    if not loss.in_support:
        notes.append(T("No public run is near this size and length: take the loss as a guess."))
    blocks: list[Block] = [Figures(tuple(rows))]
    if notes:
        blocks.append(Notes(tuple(notes)))
    if len(loss.curve) > 1:
        width = (loss.expected.high - loss.expected.low) / 2
        # The first twentieth falls so far that the rest would look flat.
        points = tuple(
            (float(step), value) for step, value in loss.curve if step >= plan.config.max_iters / 20
        )
        blocks.append(
            LineChart(
                title=T("Expected loss along the run"),
                series=(
                    Series(
                        T("expected loss"),
                        points,
                        tuple((x, y - width, y + width) for x, y in points),
                    ),
                ),
                x_label=T("steps"),
                y_label=T("loss"),
                x_spec="int",
            )
        )
    return Section(T("What comes out?"), tuple(blocks))


def _money(plan: RunPlan, why: dict[str, str]) -> Section:
    e = plan.energy
    low, mid, high = (cost(plan, end) for end in (e.cost.low, e.cost.mid, e.cost.high))
    rows = (
        Figure(T("Electricity"), mid, (low, high), formula=why.get("energy.cost")),
        ranged(
            T("Energy"),
            e.kwh,
            kwh_spec(e.kwh.mid),
            "kWh",
            formula=why.get("energy.kwh"),
            note=T("at {watts:int} W", watts=e.watts),
        ),
        Figure(
            T("Price of a kWh"),
            Quantity(e.price_per_kwh, ".3g", e.currency),
            note=SOURCES.get(e.price_source) or e.price_source,
        ),
    )
    return Section(T("What does it cost?"), (Figures(rows),))


def _data(plan: RunPlan, why: dict[str, str]) -> Section:
    k, c = plan.tokens, plan.config
    rows = [
        Figure(
            T("Tokens a step"),
            Quantity(k.per_step, "int"),
            formula=why.get("tokens.per_step"),
            note=T(
                "{batch} × {block} × {accumulation} (batch × context × accumulation)",
                batch=c.batch_size,
                block=c.block_size,
                accumulation=c.gradient_accumulation_steps,
            ),
        ),
        Figure(
            T("Tokens in all"),
            Quantity(k.total, "count"),
            formula=why.get("tokens.total"),
            note=Plural("in {n:int} step", "in {n:int} steps", n=c.max_iters),
        ),
    ]
    if k.epochs is not None and k.unique is not None:
        over = T("over the {unique:count} tokens of {data}", unique=k.unique, data=k.dataset)
        if k.dataset is None:
            over = T("over {unique:count} tokens of data", unique=k.unique)
        rows.append(
            Figure(
                T("Epochs"), Quantity(k.epochs, ".2f"), note=over, formula=why.get("tokens.epochs")
            )
        )
    else:
        rows.append(
            Figure(T("Epochs"), T("unknown"), note=T("--data says how large the data set is"))
        )
    ratio = k.total / k.compute_optimal if k.compute_optimal else 0.0
    rows.append(
        Figure(
            T("Tokens per parameter"),
            Quantity(k.per_param, ",.1f"),
            formula=why.get("tokens.per_param"),
            note=T(
                "{ratio:.1f} × compute-optimal, which is {optimal:count} tokens",
                ratio=ratio,
                optimal=k.compute_optimal,
            ),
        )
    )
    return Section(T("Tokens and data"), (Figures(tuple(rows)),))


def _model(plan: RunPlan, why: dict[str, str]) -> Section:
    p = plan.params
    rows = (
        Figure(T("Parameters"), Quantity(p.total, "int"), formula=why.get("params.total")),
        Figure(
            T("As nanoGPT prints it"),
            Quantity(p.nanogpt, "count"),
            note=T("without position embeddings"),
            formula=why.get("params.nanogpt"),
        ),
        Figure(
            T("Without embeddings"),
            Quantity(p.non_embedding, "count"),
            formula=why.get("params.non_embedding"),
        ),
    )
    parts = Table(
        (
            Column(T("Part of the model")),
            Column(T("parameters"), "right"),
            Column(T("share"), "right"),
        ),
        tuple(
            (part_name(key), Quantity(size, "int"), Quantity(size / p.total, "percent"))
            for key, size in p.parts.items()
            if size
        ),
        bar=1,
    )
    return Section(T("The model"), (Figures(rows), parts))


def _compute(plan: RunPlan, why: dict[str, str]) -> Section:
    f = plan.flops
    rows: tuple[tuple[Text, float, float, str], ...] = (
        (T("nanoGPT's (6N + 12·L·C·T)"), f.per_token_nanogpt, f.total_nanogpt, "nanogpt"),
        (T("rough rule (6·N·D)"), f.per_token_6n, f.total_6nd, "6nd"),
        (
            T("as computed (every matmul, causal attention)"),
            f.per_token_exact,
            f.total_exact,
            "exact",
        ),
    )
    table = Table(
        (
            Column(T("Convention")),
            Column(T("FLOPs per token"), "right"),
            Column(T("FLOPs in all"), "right"),
        ),
        tuple(
            (label, Quantity(each, "power"), Quantity(total, "power"))
            for label, each, total, _ in rows
        ),
    )
    blocks: list[Block] = [table]
    formulas = [
        (
            label,
            why.get(f"flops.per_token_{name.replace('6nd', '6n')}")
            or why.get(f"flops.total_{name}"),
        )
        for label, _, _, name in rows
    ]
    if any(formula for _, formula in formulas):
        blocks.append(
            Notes(
                tuple(
                    T("{name}: {formula}", name=label, formula=formula)
                    for label, formula in formulas
                    if formula
                )
            )
        )
    return Section(T("Compute"), tuple(blocks))


def _known_runs(plan: RunPlan, explain: bool = False) -> Section:
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
        Column(T("our FLOPs"), "right"),
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
