"""What the views of advice share: a run in one line, its shape, its savers, the command that comes next."""

import shlex

from onecard.advise.rent import Rented
from onecard.config import RunConfig
from onecard.messages import Formula, T
from onecard.planner.corpus import prepared_folder
from onecard.planner.result import RunPlan
from onecard.report.document import Figure, Notes, Quantity, Section, Text, Value
from onecard.report.plan_summary import described_shape, headline

NO_SAVERS = "–"
SCHEDULES: dict[str, Text] = {
    "cosine": T("cosine decay"),
    "linear": T("linear decay"),
    "wsd": T("a constant rate with a final decay"),
}


def shape_words(config: RunConfig) -> str:
    """Layers × width, as people write it down: 16 × 1024."""
    return f"{config.n_layer}\u00a0×\u00a0{config.n_embd}"


def batch_words(config: RunConfig) -> str:
    return f"{config.batch_size}\u00a0×\u00a0{config.gradient_accumulation_steps}"


def saver_words(names: list[str]) -> Value:
    return " + ".join(names) if names else NO_SAVERS


def settings(plan: RunPlan, savers: list[str]) -> tuple[Figure, ...]:
    """The choice, as the config says it, and how much text it was made for."""
    config, held = plan.config, plan.tokens.unique
    rows = [
        Figure(T("Model"), described_shape(config)),
        Figure(
            T("Micro-batch × accumulation"),
            batch_words(config),
            note=T("{tokens:int} tokens per step", tokens=config.tokens_per_step),
        ),
        Figure(T("Steps"), Quantity(config.max_iters, "int"), note=_schedule(config)),
        Figure(
            T("Learning rate"),
            Quantity(config.learning_rate, "g"),
            note=T("decaying to {rate:g}", rate=config.min_lr),
        ),
        Figure(T("Memory savers"), saver_words(savers) if savers else T("none needed")),
        Figure(
            T("Data"),
            config.dataset,
            note=T("{tokens:count} tokens", tokens=held) if held else None,
        ),
    ]
    return tuple(rows)


def fitted_name(before: RunPlan) -> T:
    """The same model with the settings that were found: where it fitted already, they only make it faster."""
    return T("fastest that fits") if before.memory.fits == "yes" else T("made to fit")


def _schedule(config: RunConfig) -> T:
    decay = SCHEDULES.get(config.schedule, config.schedule)
    if not config.warmup_iters:
        return T("no warm-up, {schedule}", schedule=decay)
    return T("{warmup:int} of warm-up, then {schedule}", warmup=config.warmup_iters, schedule=decay)


def model_headline(plan: RunPlan) -> tuple[Figure, ...]:
    """The size, then what any plan's headline says."""
    size = Figure(T("Model"), Quantity(plan.params.total, "count"), note=shape_words(plan.config))
    return (size, *headline(plan)[:3])


def next_step(plan: RunPlan, written: str | None) -> Text:
    if written is None:
        return T("--out run.toml writes this config, ready for `onecard train run.toml`.")
    if prepared_folder(plan.config.dataset) is not None:
        return T("{file} is written; next: `onecard train {file}`.", file=written)
    return T(
        "{file} is written; next: `onecard data {data} --tokens {tokens}`, then `onecard train {file}`.",
        file=written,
        data=plan.config.dataset,
        tokens=f"{plan.tokens.total / 1e9:.2g}B",
    )


def launch_step(plan: RunPlan, offer: Rented, written: str | None) -> Text:
    """The command that trains the run on a rented card."""
    dataset = plan.config.dataset
    if prepared_folder(dataset) is not None:
        data = f"--upload {shlex.quote(str(prepared_folder(dataset)))}"
    else:
        tokens = f"{plan.tokens.total / 1e9:.2g}B"
        data = f'--prepare "onecard data {dataset} --tokens {tokens}"'
    words = [
        f"onecard launch {shlex.quote(written or 'run.toml')} --on skypilot",
        f'--gpu "{offer.gpu}" --bucket s3://BUCKET {data}',
        *(f"--{key}={value}" for key, value in offer.changes.items()),
    ]
    return T("On {card} instead: `{command}`.", card=offer.gpu, command=" ".join(words))


def how_found(formulas: dict[str, str], plan: RunPlan | None = None) -> Section:
    """For --explain: the rules of the choice, then the formulas of the figures it rests on."""
    rests_on = (
        "params.total",
        "memory.allocated_bytes",
        "memory.process_bytes",
        "time.step_seconds",
        "loss.expected",
    )
    below = {key: plan.formulas[key] for key in rests_on if key in plan.formulas} if plan else {}
    return Section(
        T("How this was found"),
        (
            Notes(
                tuple(
                    T("{name}: {formula}", name=name, formula=Formula(formula))
                    for name, formula in {**formulas, **below}.items()
                )
            ),
        ),
    )
