"""Tables of final losses and loss curves (the layouts of data/public_losses.csv and public_curves.csv) read row by row.

>>> points = read_losses(DATA / "public_losses.csv")
>>> points[0].id, points[0].recipe, round(points[0].loss, 3)
('llmc-124M-10B', 'gpt2-adamw', 3.272)
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fit.loss_words import done_of, level_of, rate_of, recipe_of_row, schedule_of
from fit.table import read_rows
from fit.words import amount_in, dropout_of, number_in, whole_in
from onecard.config import RunConfig
from onecard.errors import OnecardError, UserError
from onecard.planner.loss_settings import best_rate, loss_fit

DATA = Path(__file__).parent / "data"
TABLES = ("", "_2", "_3", "_4", "_5")  # public_losses.csv, with these endings
CURVES = ("", "_2", "_3")  # public_curves.csv
FOREIGN_SIZES = (
    3e7,
    1e10,
)  # parameters; the sweeps on other data and tokens go higher than those on GPT-2's
MOST_EPOCHS = (
    16  # the law of repetition knows about 15 (Muennighoff et al. 2023); beyond them runs overfit
)
# Test sets on which the released GPT-2 is worse than on FineWeb's validation split (3.425; rows gpt2-124M-zeroshot-*), by family:
# gpjt's own gives it 3.500
HARDER_TESTS = {"gpjt": 0.075}


@dataclass(frozen=True)
class Point:
    """One loss: at the end of a run, or at `tokens` of a curve."""

    id: str
    family: str
    row: dict[str, str]
    trouble: str | None = None
    config: RunConfig | None = None
    size: float = 0.0  # parameters a token is multiplied with
    tokens: float = 0.0
    unique: float | None = None
    recipe: str = ""
    dataset: str = ""
    foreign: str = ""  # why the law's own levels do not hold here: other tokens, other text, another evaluation
    loss: float | None = None
    quality: str = ""
    kind: str = "end"
    at: float | None = None  # tokens of a curve's point; None at the end of the run
    share: float = 1.0  # of its schedule that a run had done when the loss was read; `tokens` are the whole run's
    guessed: str = ""  # what moves the loss and is not in the row
    offset: float = 0.0  # nats that its own test set is harder by
    ratio: float = 1.0  # of GPT-2's tokens that one of its own stands for: bytes over bytes


def usual_rate(size: float) -> float:
    """The peak learning rate of GPT-2's reproductions: 6e-4 at 124M, 3e-4 at 350M, 2e-4 at 1.5B."""
    return float(6e-4 * (size / 124e6) ** -0.45)


def read_losses(path: Path) -> list[Point]:
    return [_read(i, row) for i, row in enumerate(read_rows(path, {"loss_nats"}), 1)]


def read_curves(path: Path, runs: list[Point]) -> list[Point]:
    """Each point of each curve, with the run it belongs to; the end points among them too."""
    known = {run.id: run for run in runs}
    points = []
    for i, row in enumerate(read_rows(path, {"run_id", "tokens_b", "loss_nats"}), 1):
        if isinstance(row, str):
            points.append(Point(f"row {i}", "?", {}, kind="curve", trouble=row))
            continue
        name = row.get("run_id") or f"row {i}"
        run = known.get(name)
        here = Point(
            f"{name}@{row.get('tokens_b', '')}B",
            run.family if run else "?",
            row,
            kind="curve",
            loss=_seen(row),
        )
        try:
            tokens, loss = amount_in(row, "tokens_b", 1e9), number_in(row, "loss_nats")
            here = replace(here, at=tokens)
            if run is None:
                raise UserError("its run is not in the table of losses")
            if run.trouble:
                raise UserError(run.trouble)
            if tokens is None or not 0 < tokens <= run.tokens * 1.02:
                raise UserError(f"tokens_b = {row.get('tokens_b')!r} is outside the run")
            if loss is None or not 0 < loss < 20:
                raise UserError(f"loss_nats = {row.get('loss_nats')!r} is not possible")
            points.append(replace(run, id=here.id, row=row, loss=loss, at=tokens, kind="curve"))
        except UserError as error:
            points.append(replace(here, trouble=error.message))
    return points


def _read(index: int, row: dict[str, str] | str) -> Point:
    if isinstance(row, str):
        return Point(f"row {index}", "?", {}, trouble=row)
    point = Point(
        row.get("id") or f"row {index}",
        row.get("source_family") or "?",
        row,
        quality=row.get("quality", ""),
    )
    try:
        return _point(point, row)
    except OnecardError as error:
        return replace(point, trouble=error.message, loss=_seen(row))


def _seen(row: dict[str, str]) -> float | None:
    """The loss a row gives, for the report of a row that is not predicted."""
    try:
        return number_in(row, "loss_nats")
    except UserError:
        return None


def _point(point: Point, row: dict[str, str]) -> Point:
    loss = number_in(row, "loss_nats")
    if loss is None:
        raise UserError("no loss in nats given")
    if not 0 < loss < 20:
        raise UserError(f"loss_nats = {loss:g} is not possible")
    dataset, foreign, ratio = level_of(row)
    tokens = amount_in(row, "tokens_seen_b", 1e9)
    if tokens is None:
        raise UserError(foreign or "no tokens_seen_b given")
    if not 1e5 < tokens < 1e14:
        raise UserError(f"tokens_seen_b = {row['tokens_seen_b']} is not possible")
    share = done_of(row, tokens)
    tokens /= share
    size = amount_in(row, "n_params_active_m", 1e6) or 0.0
    if not size and not (row.get("n_layer") and row.get("n_embd")):
        size = amount_in(row, "n_params_total_m", 1e6) or 0.0  # all that is known; a tied head's
    recipe = recipe_of_row(row)
    config, guessed = _config(row, tokens, size, recipe)
    if size <= 0:
        size = _body(row, config.n_layer, config.n_embd) + config.shape.vocab_size * config.n_embd
    if not 1e4 < size < 1e13:
        raise UserError(f"{size:g} parameters are not possible")
    return replace(
        point,
        config=config,
        size=size,
        tokens=tokens,
        unique=amount_in(row, "unique_tokens_b", 1e9) or None,
        recipe=recipe,
        dataset=dataset,
        foreign=foreign,
        loss=loss,
        share=share,
        guessed=guessed or ("" if ratio == 1.0 else "bytes of a token"),
        offset=HARDER_TESTS.get(point.family, 0.0),
        ratio=ratio,
    )


def covered(point: Point, fit: dict[str, Any]) -> str | None:
    """Why a point of a combination that is no law's own cannot be predicted; None where its own public runs can tell."""
    if not point.foreign:
        return None
    if point.dataset not in fit["pairs"]:
        return point.foreign
    least, most = fit["support"]["tokens_per_param"]
    known = (
        FOREIGN_SIZES[0] <= point.size <= FOREIGN_SIZES[1]
        and least <= point.tokens / point.size <= most
    )
    if (
        known
        and point.tokens >= 1e9
        and point.tokens <= MOST_EPOCHS * (point.unique or point.tokens)
    ):
        return None
    return (
        f"{point.dataset}: known for {FOREIGN_SIZES[0] / 1e6:g} M to {FOREIGN_SIZES[1] / 1e9:g} B parameters, {least:g} to {most:g} "
        f"tokens a parameter, a billion tokens or more and up to {MOST_EPOCHS} epochs"
    )


def _config(row: dict[str, str], tokens: float, size: float, recipe: str) -> tuple[RunConfig, str]:
    """The run as a config, and what had to be guessed for it."""
    layers, width, heads = (whole_in(row, key) for key in ("n_layer", "n_embd", "n_head"))
    if layers is None or width is None:
        if not size:
            raise UserError("no shape given (n_layer, n_embd)")
        layers, width, heads = 12, 768, 12  # stands in: the law asks for the size, which is given
    heads = heads if heads and width % heads == 0 else 1
    block = whole_in(row, "seq_len", most=1e7) or 1024
    batch = number_in(row, "batch_tokens")
    if batch and (batch < block or "seq" in row["batch_tokens"].lower()):
        batch *= block  # it was counted in sequences
    vocab = whole_in(row, "vocab_size", most=1e7) or 50304
    rate = rate_of(row)
    guessed = "batch" if batch is None else "learning rate" if rate is None else ""
    batch = batch or 2**19
    if rate is None:  # GPT-2's has its custom; who changes the blocks, tunes
        weights = size or 12.0 * layers * width**2 + vocab * width
        tuned = best_rate(weights, tokens, loss_fit())
        rate = usual_rate(weights) if recipe == "gpt2-adamw" else min(0.1, tuned)
    return RunConfig(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        block_size=block,
        vocab_size=vocab,
        batch_size=1,
        gradient_accumulation_steps=max(1, round(batch / block)),
        max_iters=max(1, round(tokens / batch)),
        learning_rate=rate,
        **schedule_of(row.get("schedule", "").lower(), max(1, round(tokens / batch)), rate),
        dropout=dropout_of(row.get("recipe_detail", "").lower()),
        tied=_tied(row, vocab, layers, width),
    ), guessed if recipe.endswith("adamw") else ""


@cache
def all_losses() -> list[Point]:
    """Every public loss that the law is fitted on; read once."""
    return [point for name in TABLES for point in read_losses(DATA / f"public_losses{name}.csv")]


def all_curves(runs: list[Point]) -> list[Point]:
    return [
        point for name in CURVES for point in read_curves(DATA / f"public_curves{name}.csv", runs)
    ]


def _tied(row: dict[str, str], vocab: int, layers: int, width: int) -> bool:
    """Whether the head is the embedding: then the parameters a token is multiplied with are all there are."""
    total, active = (amount_in(row, key, 1e6) for key in ("n_params_total_m", "n_params_active_m"))
    if not total or not row.get("n_layer"):
        return "untied" not in row.get("recipe_detail", "").lower()
    if active:
        return abs(total - active) < 0.2 * vocab * width
    return total < _body(row, layers, width) + 1.5 * vocab * width


def _body(row: dict[str, str], layers: int, width: int) -> float:
    """The blocks' parameters."""
    return amount_in(row, "n_params_nonemb_m", 1e6) or 12.0 * layers * width**2
