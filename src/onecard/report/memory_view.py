"""The memory of one step as a document: its course, the largest tensors at its peak, what each saver takes away.

show(memory_document(result, explain_memory(result.config, result.device, result.dtype)), "terminal")
"""

from collections import Counter
from collections.abc import Callable

from onecard.messages import T
from onecard.planner.memory.explain import AliveTensor, MemoryExplained, Phase, Point
from onecard.planner.result import RunPlan
from onecard.report.document import (
    Column,
    Document,
    Figure,
    Level,
    LineChart,
    Notes,
    Quantity,
    Series,
    Table,
    Text,
    Value,
    always,
)
from onecard.report.plan_summary import FITS, part_name
from onecard.report.plan_view import subtitle
from onecard.units import GIB

PHASES: dict[Phase, T] = {
    "forward": T("forward"),
    "loss": T("loss"),
    "backward": T("backward"),
    "optimizer": T("optimizer"),
}
# The tensors that are large in most runs; others keep the planner's names, which are those of the code
TENSORS: dict[str, T] = {
    "weights": T("weights"),
    "gradients": T("gradients"),
    "optimizer state": T("optimizer state"),
    "logits": T("logits"),
    "slices of logits": T("slices of logits"),
    "gradient of logits": T("gradient of logits"),
    "zeros for unused logits": T("zeros for unused logits"),
    "log-probabilities": T("log-probabilities"),
    "layer input": T("layer input"),
    "activation output": T("activation output"),
    "stream after attention": T("residual stream after attention"),
    "attention scores": T("attention scores"),
    "attention weights": T("attention weights"),
    "last norm input": T("input of the last norm"),
    "last norm output": T("output of the last norm"),
    "tokens of the step": T("tokens of the step"),
}
# How much of the picture's width each phase gets; in truth head and loss would be a line
WIDTHS: dict[Phase, float] = {"forward": 0.35, "loss": 0.15, "backward": 0.4, "optimizer": 0.1}
LEVEL_WITHIN = 2.0  # a card with far more than the peak would flatten the curve


def memory_document(plan: RunPlan, explained: MemoryExplained) -> Document:
    fits, tone = FITS[plan.memory.fits]
    peak = explained.peak
    return Document(
        title=T("Where the memory goes"),
        subtitle=subtitle(plan),
        headline=(
            Figure(T("Does it fit?"), fits, tone=tone),
            Figure(T("Peak, allocated by torch"), Quantity(peak.bytes, "bytes")),
            Figure(T("Reached in"), _where(peak, plan)),
            Figure(
                T("The card"),
                Quantity(plan.memory.card_bytes, "bytes"),
                note=T("{room:bytes} of it for tensors", room=_room(plan)),
            ),
        ),
        sections=(
            always(T("Over one step"), _course(plan, explained)),
            always(T("The largest tensors at the peak"), _tensors(explained)),
            always(T("What each setting would take away"), *_savings(plan, explained)),
        ),
        summary=_summary(plan, explained),
    )


def _course(plan: RunPlan, explained: MemoryExplained) -> LineChart:
    """One curve for each phase; each begins where the one before ends."""
    series: list[Series] = []
    start = 0.0
    before: float | None = None
    for phase, name in PHASES.items():
        heights = [point.bytes / GIB for point in explained.course if point.phase == phase]
        heights = heights if before is None else [before, *heights]
        each = WIDTHS[phase] / max(len(heights) - 1, 1)
        points = tuple((start + number * each, height) for number, height in enumerate(heights))
        series.append(Series(name, points))
        start, before = start + WIDTHS[phase], heights[-1]
    room = _room(plan)
    return LineChart(
        title=T("GiB allocated during one step"),
        series=tuple(series),
        x_label=T("the step, operation by operation"),
        y_label="GiB",
        x_spec="percent",
        y_spec=".1f",
        levels=(Level(T("the card's room for tensors"), room / GIB),)
        if room < LEVEL_WITHIN * explained.peak.bytes
        else (),
    )


def _room(plan: RunPlan) -> float:
    """What the card leaves for tensors: without the desktop, the context and the allocator's slack."""
    memory = plan.memory
    return (
        memory.card_bytes - memory.desktop_bytes - memory.parts["context"] - memory.parts["slack"]
    )


def _tensors(explained: MemoryExplained) -> Table:
    columns = (
        Column(T("tensor")),
        Column(T("layers"), "right"),
        Column(T("size"), "right"),
        Column(T("part")),
        Column(T("at most half of it with")),
    )
    rows: list[tuple[Value, ...]] = [
        (
            tensor_name(tensor.name),
            Quantity(tensor.layers, "int") if tensor.layers else "–",
            Quantity(tensor.bytes, "bytes"),
            part_name(tensor.part),
            _taken_by(tensor),
        )
        for tensor in explained.largest
    ]
    rest = explained.tensors[len(explained.largest) :]
    if rest:
        others = Quantity(sum(tensor.bytes for tensor in rest), "bytes")
        rows.append((T("{count:int} smaller ones", count=len(rest)), "", others, "", ""))
    return Table(columns, tuple(rows))


def tensor_name(name: str) -> Text:
    """The planner's name of a tensor, in words that can be translated."""
    if name in TENSORS:
        return TENSORS[name]
    endings: dict[str, Callable[[str], T]] = {  # of a module, by its name in the code
        "gradient in half precision": lambda of: T(
            "gradient of {module} in half precision", module=of
        ),
        "gradient in fp32": lambda of: T("gradient of {module} in fp32", module=of),
        "gradient": lambda of: T("gradient of {module}", module=of),
        "output": lambda of: T("output of {module}", module=of),
        "cast": lambda of: T("half-precision copy of {module}", module=of),
    }
    for ending, words in endings.items():
        if name.endswith(f" {ending}") and not name.startswith("gradient of"):
            return words(name.removesuffix(f" {ending}"))
    return name


def _taken_by(tensor: AliveTensor) -> str:
    """The settings that leave at most half of it, in a short form; bf16 leaves norms and biases as they are, so a bit more."""
    savers = [name for name, less in tensor.taken_by.items() if less >= 0.49 * tensor.bytes]
    short = (name.split(",")[0].replace(" = ", "=").replace("=True", "") for name in savers)
    return ", ".join(short).replace("'", "") or "–"


def _savings(plan: RunPlan, explained: MemoryExplained) -> tuple[Table | Notes, ...]:
    columns = (
        Column(T("setting")),
        Column(T("peak"), "right"),
        Column(T("less by"), "right"),
        Column(T("the peak is then in")),
    )
    rows = tuple(
        (
            saving.setting,
            Quantity(saving.allocated_bytes, "bytes"),
            Quantity(saving.saved_bytes, "bytes"),
            _where(saving.peak, plan),
        )
        for saving in explained.savings
    )
    return Table(columns, rows), Notes(
        (
            T(
                "A setting takes away only as much as leads to the next highest peak; two together can take away more."
            ),
        )
    )


def _where(point: Point, plan: RunPlan) -> Text:
    if point.layer is None:
        return PHASES[point.phase]
    return T(
        "{phase}, layer {layer} of {layers}",
        phase=PHASES[point.phase],
        layer=point.layer + 1,
        layers=plan.config.n_layer,
    )


def _summary(plan: RunPlan, explained: MemoryExplained) -> tuple[Text, ...]:
    largest, sizes = explained.tensors[0], Counter[str]()
    for tensor in sorted(explained.tensors, key=lambda tensor: tensor.part):
        sizes[tensor.part] += tensor.bytes
    ((part, part_bytes),) = sizes.most_common(1)
    notes: list[Text] = [
        T(
            "At its peak a step holds {peak:bytes}, {share:percent} of it in {parts}.",
            peak=explained.peak.bytes,
            share=part_bytes / explained.peak.bytes,
            parts=part_name(part),
        ),
        T(
            "The largest tensor is {name}: {size:bytes}.",
            name=tensor_name(largest.name),
            size=largest.bytes,
        ),
    ]
    best = max(explained.savings, key=lambda saving: saving.saved_bytes, default=None)
    if best is not None:
        notes.append(
            T(
                "{setting} takes away the most: {size:bytes}.",
                setting=best.setting,
                size=best.saved_bytes,
            )
        )
    return tuple(notes)
