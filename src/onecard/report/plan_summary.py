"""What the views of a plan share: the words for its parts, a figure with its range, the headline, and the summary to read aloud."""

import re

from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.messages import Plural, T
from onecard.planner.memory import reserve
from onecard.planner.result import Range, RunPlan
from onecard.report.document import Figure, Quantity, Text, Tone
from onecard.units import DAY, GIB, HOUR, MINUTE, YEAR

RANGES = T("Ranges are 80%: one run in ten is expected below, one in ten above.")
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
    "host": T("copies to and from the host"),
}
FITS: dict[str, tuple[T, Tone]] = {
    "yes": (T("fits"), "good"),
    "tight": (T("tight"), "fair"),
    "no": (T("does not fit"), "bad"),
}


def part_name(key: str) -> Text:
    """The words for a part of the model, the memory or the step."""
    return PARTS.get(key) or key.replace("_", " ")


def described_shape(config: RunConfig) -> T:
    """The shape as people say it."""
    return T(
        "{layers}, {heads}, {width} wide",
        layers=Plural("{n} layer", "{n} layers", n=config.n_layer),
        heads=Plural("{n} head", "{n} heads", n=config.n_head),
        width=config.n_embd,
    )


def ranged(
    label: Text,
    value: Range,
    spec: str,
    unit: Text = "",
    *,
    note: Text | None = None,
    formula: Text | None = None,
) -> Figure:
    """A row whose value is the middle and whose span is the 80 % range."""
    low, mid, high = (Quantity(end, spec, unit) for end in (value.low, value.mid, value.high))
    return Figure(label, mid, None if value.low == value.high else (low, high), note, formula)


def device_name(device: Device) -> Text:
    """A card is called the same everywhere; the cores of this machine's processor are words. Of a run that was logged on some
    processor its cores are not known."""
    if device.name.startswith("CPU, "):
        return Plural("CPU, {n:int} core", "CPU, {n:int} cores", n=device.units)
    return device.name


def kept_name(name: str) -> Text:
    """The name of a card or processor, read back from a file, in words."""
    cores = re.fullmatch(r"CPU, (\d{1,6}) cores?", name)
    if cores is None:
        return name
    return Plural("CPU, {n:int} core", "CPU, {n:int} cores", n=int(cores[1]))


def card_name(plan: RunPlan) -> Text:
    name = device_name(plan.device)
    if plan.gpus == 1:
        return name
    if plan.nodes > 1:
        each = plan.gpus // plan.nodes
        return T("{machines:int} × {n:int} × {card}", machines=plan.nodes, n=each, card=name)
    return T("{n:int} × {card}", n=plan.gpus, card=name)


def headline(plan: RunPlan) -> tuple[Figure, ...]:
    """Fits, time, loss, money: the four answers a person came for."""
    fits, tone = FITS[plan.memory.fits]
    rows = [
        Figure(
            T("Memory"),
            fits,
            note=T(
                "{used:.1f} of {card:.1f} GiB",
                used=plan.memory.process_bytes.mid / GIB,
                card=plan.memory.card_bytes / GIB,
            ),
            tone=tone,
        ),
        Figure(
            T("Time"),
            Quantity(plan.time.total_seconds.mid, "duration"),
            _short_span(plan.time.total_seconds),
        ),
    ]
    if plan.loss:
        expected = plan.loss.expected
        low, mid, high = (
            Quantity(end, ".2f") for end in (expected.low, expected.mid, expected.high)
        )
        rows.append(Figure(T("Loss"), mid, (low, high)))
    rows.append(Figure(T("Electricity"), cost(plan, plan.energy.cost.mid), note=_kwh(plan)))
    return tuple(rows)


def _short_span(seconds: Range) -> tuple[Quantity, Quantity]:
    """A range of times in one unit, short enough for a headline: 19.4 – 24.4 h."""
    units: tuple[tuple[float, Text], ...] = (
        (YEAR, T("y")),
        (2 * DAY, T("d")),
        (100 * MINUTE, T("h")),
        (100, T("min")),
    )
    limit, unit = next(
        ((limit, unit) for limit, unit in units if seconds.mid >= limit), (0.0, T("s"))
    )
    size = {YEAR: YEAR, 2 * DAY: DAY, 100 * MINUTE: HOUR, 100: MINUTE, 0: 1.0}[limit]
    return Quantity(seconds.low / size, ",.1f", unit), Quantity(seconds.high / size, ",.1f", unit)


def finish(plan: RunPlan) -> Quantity | None:
    """The end's clock time, or its date when it is so far away that the year must be sentences."""
    if plan.time.finish is None:
        return None
    return Quantity(plan.time.finish, "when" if plan.time.total_seconds.mid < 200 * DAY else "date")


def kwh_spec(kwh: float) -> str:
    """One decimal, or two digits where there is less than a kWh."""
    return ",.1f" if kwh >= 1 else ".2g"


def _kwh(plan: RunPlan) -> Quantity:
    return Quantity(plan.energy.kwh.mid, kwh_spec(plan.energy.kwh.mid), "kWh")


def cost(plan: RunPlan, amount: float) -> Quantity:
    return Quantity((amount, plan.energy.currency), "money")


def summary(plan: RunPlan) -> tuple[Text, ...]:
    """The plan in sentences."""
    tokens = plan.tokens
    card = card_name(plan)
    sentences: list[Text] = [
        T(
            "A GPT of {params:count} parameters trains on {tokens:count} tokens in {steps:int} steps on {card}.",
            params=plan.params.total,
            tokens=tokens.total,
            steps=plan.config.max_iters,
            card=card,
        ),
        _fit_sentence(plan),
        _time_sentence(plan),
    ]
    end = finish(plan)
    if end is not None:
        sentences.append(
            T("Started now, it would end {finish}.", finish=end)
            if plan.memory.fits == "no"
            else T("Started now, it ends {finish}.", finish=end)
        )
    if plan.loss:
        expected = plan.loss.expected
        sentences.append(
            T(
                "The expected loss is {loss:.2f}, between {low:.2f} and {high:.2f}.",
                loss=expected.mid,
                low=expected.low,
                high=expected.high,
            )
        )
        if plan.loss.beats_gpt2:
            sentences.append(plan.loss.beats_gpt2)
    sentences.append(
        T(
            "It uses {energy}, {cost:money} of electricity.",
            energy=_kwh(plan),
            cost=(plan.energy.cost.mid, plan.energy.currency),
        )
    )
    if tokens.epochs is not None and tokens.epochs > 1.005:
        sentences.append(T("It sees its data {epochs:.1f} times.", epochs=tokens.epochs))
    if plan.warnings:
        sentences.append(
            Plural("There is {n:int} warning.", "There are {n:int} warnings.", n=len(plan.warnings))
        )
    return tuple(sentences)


def _time_sentence(plan: RunPlan) -> T:
    seconds = plan.time.total_seconds
    ends = {"mid": seconds.mid, "low": seconds.low, "high": seconds.high}
    if plan.memory.fits == "no":
        return T("It would take about {mid:duration} ({low:duration} to {high:duration}).", **ends)
    return T("It takes about {mid:duration} ({low:duration} to {high:duration}).", **ends)


def _fit_sentence(plan: RunPlan) -> T:
    memory = plan.memory
    used, card = memory.process_bytes.mid, memory.card_bytes
    reserved = reserve(plan.device, memory.desktop_bytes)
    return {
        "yes": T("It fits: {used:bytes} of {card:bytes}.", used=used, card=card),
        "tight": T(
            "It may just fit: {used:bytes}, up to {high:bytes} at the high end of the range, of {card:bytes}, {reserve}.",
            used=used,
            card=card,
            high=memory.process_bytes.high,
            reserve=reserved,
        ),
        "no": T(
            "It does not fit: it needs {used:bytes} and there are {card:bytes}, {reserve}.",
            used=used,
            card=card,
            reserve=reserved,
        ),
    }[memory.fits]
