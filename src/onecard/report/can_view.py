"""`onecard can` as a document: the verdict, compute against need, memory against the card, and what to do instead.

show(can_document(can("gpt2-xl", "RTX 4070 Ti", utilization=0.9)), "terminal")
"""

from onecard.advise.can import Answer
from onecard.advise.delivered import Delivery, Needed
from onecard.advise.formulas import CAN
from onecard.advise.savers import SAVER_KEYS
from onecard.facts.card_names import short_name
from onecard.messages import T
from onecard.planner.memory import reserve
from onecard.report.advice_parts import how_found, saver_words
from onecard.report.document import (
    Block,
    Column,
    Document,
    Figure,
    Notes,
    Quantity,
    Section,
    Table,
    Text,
    Tone,
    Value,
    always,
)
from onecard.report.plan_summary import FITS, device_name

VERDICTS: dict[str, tuple[T, Tone]] = {
    "yes": (T("yes"), "good"),
    "with_savers": (T("yes, with savers"), "fair"),
    "no": (T("no"), "bad"),
}
DELIVERIES = {
    "tensor_peak": T("its {dtype} tensor peak"),
    "float32_peak": T("its fp32 peak"),
    "predicted": T("the predicted rate"),
}
READINGS = {
    "asked": T("the tokens asked for"),
    "compute_optimal": T("compute-optimal tokens"),
    "config": T("as its config says"),
}


def can_document(answer: Answer, explain: bool = False) -> Document:
    sections = []
    if answer.warnings:
        sections.append(always(T("Warnings"), Notes(tuple(answer.warnings), "fair")))
    if answer.instead:
        title = T("What to do instead") if answer.because else T("Other ways")
        sections.append(always(title, Notes(tuple(way.text for way in answer.instead))))
    if answer.outlooks:
        sections.append(always(T("The run"), _outlooks(answer), _config(answer)))
    sections += [_memory(answer), _compute(answer)]
    if explain:
        sections.append(how_found(CAN))
    return Document(
        title=T("Can {card} train {model}?", card=_card(answer), model=answer.model),
        subtitle=T(
            "{params:int} parameters, recipe {recipe}, in {time:duration}",
            params=answer.params,
            recipe=answer.config.recipe,
            time=answer.seconds,
        ),
        answer=answer.verdict_text,
        headline=_headline(answer),
        sections=tuple(sections),
        summary=(answer.verdict_text, *(way.text for way in answer.instead[:1])),
        short_summary=(),
        footer=T("FLOPs needed are 6·N·D, with N the true number of parameters and D the tokens."),
    )


def _card(answer: Answer) -> Text:
    if answer.gpus == 1:
        return device_name(answer.device)
    return T("{n:int} × {card}", n=answer.gpus, card=device_name(answer.device))


def _headline(answer: Answer) -> tuple[Figure, ...]:
    verdict, tone = VERDICTS[answer.verdict]
    compute, memory = answer.compute, answer.memory
    fits, fits_tone = FITS[memory.plain_fits]
    return (
        Figure(T("Verdict"), verdict, tone=tone),
        Figure(T("Compute"), Quantity(compute.ratio, ".3g", "×"), note=T("of what it needs")),
        Figure(
            T("Memory, no savers"),
            fits,
            note=T(
                "{used:bytes} of {card:bytes} at micro-batch 1",
                used=memory.plain_process_bytes,
                card=memory.card_bytes,
            ),
            tone=fits_tone,
        ),
        Figure(T("Time"), Quantity(answer.run_seconds, "duration"), note=T("predicted")),
    )


def _outlooks(answer: Answer) -> Table:
    """Hours and loss, for each number of tokens and why it is listed."""
    listed = {each.reading.tokens: each.reading.kind for each in reversed(answer.compute.readings)}
    columns = (
        Column(T("tokens"), "right"),
        Column(""),
        Column(T("time"), "right"),
        Column(T("expected loss"), "right"),
        Column(T("of text like")),
    )
    rows: list[tuple[Value, ...]] = []
    for outlook in answer.outlooks:
        loss: Value = "–"
        if outlook.loss is not None:
            low, mid, high = outlook.loss.low, outlook.loss.mid, outlook.loss.high
            loss = T("{mid:.2f} ({low:.2f} to {high:.2f})", mid=mid, low=low, high=high)
        time = Quantity(outlook.seconds.mid, "duration")
        kind = READINGS.get(listed.get(outlook.tokens, ""), T("for comparison"))
        tokens = Quantity(outlook.tokens, "count")
        rows.append((tokens, kind, time, loss, outlook.dataset or "–"))
    return Table(columns, tuple(rows))


def _config(answer: Answer) -> Notes:
    """What the config says beside the model's own shape, as `--out` writes it."""
    config = answer.config
    batch = f"batch_size = {config.batch_size}, gradient_accumulation_steps = {config.gradient_accumulation_steps}"
    savers = (f"{key} = {getattr(config, key)!r}" for key in SAVER_KEYS)
    chosen = [
        line for line, name in zip(savers, SAVER_KEYS, strict=True) if name in config.changed()
    ]
    settings = ", ".join([batch, *chosen])
    return Notes((T("config: {settings}; --out FILE writes it", settings=settings),))


def _compute(answer: Answer) -> Section:
    compute = answer.compute
    delivered = Table(
        (
            Column(T("Compute available in {time:duration}, at", time=answer.seconds)),
            Column("TFLOPS", "right"),
            Column(T("share used"), "right"),
            Column("FLOPs", "right"),
        ),
        tuple(
            (
                _delivery(delivery),
                Quantity(delivery.flops_per_second / 1e12, ",.1f"),
                Quantity(delivery.utilization, "percent") if delivery.name != "predicted" else "–",
                Quantity(delivery.flops, "power"),
            )
            for delivery in compute.deliveries
        ),
        marked=(0,),
    )
    columns = (
        Column(T("Needed")),
        Column(T("tokens"), "right"),
        Column("FLOPs", "right"),
        *(Column(_times(delivery), "right") for delivery in compute.deliveries),
    )
    needed = Table(
        columns,
        tuple(row for each in compute.readings for row in _needed(each, compute.deliveries)),
        marked=(0,),
    )
    blocks: list[Block] = [delivered, needed]
    if answer.notes:
        blocks.append(Notes(tuple(answer.notes)))
    return Section(T("Compute: available and needed"), tuple(blocks))


def _delivery(delivery: Delivery) -> Text:
    return (
        T("its {dtype} tensor peak", dtype=delivery.dtype)
        if delivery.name == "tensor_peak"
        else DELIVERIES[delivery.name]
    )


def _times(delivery: Delivery) -> Text:
    """The title of a column of ratios: how many times over each delivery does it."""
    if delivery.name == "predicted":
        return T("× as predicted")
    return (
        "× fp32"
        if delivery.name == "float32_peak"
        else "× " + delivery.dtype.replace("bfloat", "bf").replace("float", "fp")
    )


def _needed(needed: Needed, deliveries: list[Delivery]) -> list[tuple[Value, ...]]:
    """One row, or two where the tokens are a range: the lowest and the highest estimate."""
    reading = needed.reading
    label: Text = READINGS.get(reading.kind) or reading.name
    if reading.published:
        return [
            (
                label,
                Quantity(reading.tokens, "count"),
                Quantity(reading.needed_flops, "power"),
                *_ratios(needed, deliveries, reading.needed_flops),
            )
        ]
    return [
        (
            T("{name}, {end}", name=label, end=end),
            Quantity(tokens, "count"),
            Quantity(flops, "power"),
            *_ratios(needed, deliveries, flops),
        )
        for end, tokens, flops in (
            (T("low estimate"), reading.tokens_low, reading.needed_low),
            (T("high estimate"), reading.tokens_high, reading.needed_high),
        )
    ]


def _ratios(needed: Needed, deliveries: list[Delivery], flops: float) -> tuple[Value, ...]:
    ratios = (
        needed.ratios[delivery.name] * needed.reading.needed_flops / flops
        for delivery in deliveries
    )
    return tuple(
        Quantity(ratio, ",.0f" if ratio >= 100 else ",.1f" if ratio >= 10 else ",.2f")
        for ratio in ratios
    )


def _memory(answer: Answer) -> Section:
    memory = answer.memory
    rows: tuple[tuple[Value, ...], ...] = (
        (
            T("no savers"),
            Quantity(memory.plain_bytes, "bytes"),
            Quantity(memory.plain_process_bytes, "bytes"),
            FITS[memory.plain_fits][0],
            "–",
            "–",
        ),
        *(
            (
                saver_words(row.savers),
                Quantity(row.allocated_bytes, "bytes"),
                Quantity(row.process_bytes, "bytes"),
                FITS[row.fits][0],
                Quantity(row.largest_batch, "int") if row.largest_batch else "–",
                Quantity(row.host_bytes, "bytes") if row.host_bytes else "–",
            )
            for row in memory.with_savers
        ),
    )
    columns = (
        Column(T("At micro-batch 1, with")),
        Column(T("allocated"), "right"),
        Column(T("on the card"), "right"),
        Column(T("verdict")),
        Column(T("micro-batch"), "right"),
        Column(T("on the host"), "right"),
    )
    notes = (
        T(
            "The {card} has {total:bytes}, {reserve}.",
            card=short_name(answer.device.name),
            total=memory.card_bytes,
            reserve=reserve(answer.device, memory.desktop_bytes),
        ),
        T("The micro-batch is the fastest that fits; on the host: in the computer's memory."),
    )
    return Section(T("Memory: needed and available"), (Table(columns, rows), Notes(notes)))
