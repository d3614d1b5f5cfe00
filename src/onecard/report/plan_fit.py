"""The plan's sections on memory, time and several cards: does it fit, how long does it take, what do cards share out?"""

from onecard.messages import Formula, T
from onecard.planner.memory import reserve
from onecard.planner.result import RunPlan
from onecard.report.document import (
    Block,
    Column,
    Figure,
    Figures,
    Notes,
    Part,
    Quantity,
    Section,
    StackedBar,
    Table,
    Text,
)
from onecard.report.plan_summary import FITS, cost, finish, part_name, ranged
from onecard.units import HOUR

Formulas = dict[str, Formula]  # by the path of the figure; empty without --explain
BASIS: dict[str, T] = {
    "measured": T("measured on this card"),
    "fitted": T("fitted on runs of similar cards"),
    "class": T("estimated from its class of card"),
}
CPU_BASIS = BASIS | {
    "measured": T("measured on this machine"),
    "class": T("estimated from its class of processor"),
}


def memory_section(plan: RunPlan, why: Formulas) -> Section:
    memory = plan.memory
    on_cpu = plan.device.kind == "cpu"
    fits, tone = FITS[memory.fits]
    bar = StackedBar(
        parts=tuple(
            Part(_memory_part(plan, key), Quantity(size, "bytes"))
            for key, size in memory.parts.items()
            if size
        ),
        limit=Quantity(memory.card_bytes, "bytes"),
        limit_label=T("the machine has") if on_cpu else T("the card has"),
        total=Quantity(sum(memory.parts.values()), "bytes"),
        total_label=T("all parts"),
        title=T("Peak memory, part by part, against the machine")
        if on_cpu
        else T("Peak memory, part by part, against the card"),
        formula=why.get("memory.parts"),
    )
    rows = [
        Figure(T("Verdict"), fits, tone=tone, formula=why.get("memory.fits")),
        ranged(
            T("Allocated by torch"),
            memory.allocated_bytes,
            "bytes",
            formula=why.get("memory.allocated_bytes"),
        ),
        ranged(
            _process_label(plan),
            memory.process_bytes,
            "bytes",
            formula=why.get("memory.process_bytes"),
        ),
        Figure(
            T("The machine") if on_cpu else T("The card"),
            Quantity(memory.card_bytes, "bytes"),
            formula=why.get("memory.card_bytes"),
            note=reserve(plan.device, plan.memory.desktop_bytes),
        ),
    ]
    if not memory.changes:
        return Section(T("Does it fit?"), (Figures(tuple(rows)), bar))
    fitting = tuple(note for note in memory.changes if note.code == "memory.change.yes")
    others = tuple(note for note in memory.changes if note not in fitting)
    blocks = (Figures(tuple(rows)), bar, Notes((*fitting, *others)))
    return Section(T("Does it fit?"), blocks, short=(Notes(fitting or others),))


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


def time_section(plan: RunPlan, why: Formulas) -> Section:
    time, on_cpu = plan.time, plan.device.kind == "cpu"
    peak = plan.device.matmul_flops(plan.dtype) / 1e12  # of one, where there are several
    rows = (
        ranged(T("Total"), time.total_seconds, "duration", formula=why.get("time.total_seconds")),
        Figure(T("Finishes, if started now"), finish(plan) or T("too far away for a date")),
        ranged(
            T("One step"),
            time.step_seconds,
            "duration",
            note=(CPU_BASIS if on_cpu else BASIS).get(time.basis),
            formula=why.get("time.step_seconds"),
        ),
        ranged(
            T("Tokens per second"),
            time.tokens_per_second,
            "int",
            formula=why.get("time.tokens_per_second"),
        ),
        Figure(
            T("Compiling, before the first step"),
            Quantity(time.compile_seconds, "duration"),
            formula=why.get("time.compile_seconds"),
        ),
        ranged(
            T("MFU of this machine") if on_cpu else T("MFU of this card"),
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
    blocks: tuple[Block, ...] = (Figures(rows), _what_if(plan))
    return Section(T("How long?"), (*blocks, _step_parts(plan)) if time.parts else blocks)


def _step_parts(plan: RunPlan) -> Table:
    """The seconds of a step by what they are spent on, the largest first."""
    parts = sorted(plan.time.parts.items(), key=lambda item: -item[1])
    spent = sum(seconds for _, seconds in parts)
    return Table(
        (
            Column(T("Where the time of a step goes")),
            Column(T("time"), "right"),
            Column(T("share"), "right"),
        ),
        tuple(
            (part_name(key), Quantity(seconds, "duration"), Quantity(seconds / spent, "percent"))
            for key, seconds in parts
            if seconds > 0
        ),
        bar=1,
    )


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
        Column(T("total hours") if hours else T("total time"), "right"),
        Column(T("electricity"), "right"),
    )
    return Table(columns, rows, marked=(nearest,), bar=2)


_MEANING = T(
    "none: every card has all. grads: each has its part of the gradients, the moments and the fp32 weights. full: the "
    "weights in use are gathered layer by layer too. Exchange is all that a step sends; its work hides some of it."
)


def ways_section(plan: RunPlan) -> Section:
    rows = tuple(
        (
            way.shard,
            Quantity(way.process_bytes, "bytes"),
            FITS[way.fits][0],
            Quantity(way.step_seconds.mid, "duration"),
            Quantity(way.exchange_seconds, "duration"),
            Quantity(way.waiting_seconds, "duration"),
        )
        for way in plan.ways
    )
    columns = (
        Column(T("shard")),
        Column(T("memory of a card"), "right"),
        Column(T("fits")),
        Column(T("one step"), "right"),
        Column(T("exchange"), "right"),
        Column(T("waited for"), "right"),
    )
    title = T("Several cards: what they share out")
    if not rows:
        return Section(title, ())
    table = Table(columns, rows)
    return Section(title, (table, Notes((_MEANING,))), short=(table,))
