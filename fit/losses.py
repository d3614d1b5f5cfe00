"""Tables of final losses and loss curves (the layouts of data/public_losses.csv and public_curves.csv) read row by row.

>>> points = read_losses(DATA / "public_losses.csv")
>>> points[0].id, points[0].recipe, round(points[0].loss, 3)
('llmc-124M-10B', 'gpt2-adamw', 3.272)
"""

import csv
import re
from dataclasses import dataclass, replace
from pathlib import Path

from fit.words import number_in
from onecard.config import RunConfig
from onecard.errors import OnecardError, UserError
from onecard.plan.loss import known_dataset

DATA = Path(__file__).parent / "data"
LONG_CONTEXT = 4096  # beyond it the evaluation reads further back than 1024 tokens, and the loss is lower for it


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
    loss: float | None = None
    quality: str = ""
    at: float | None = None  # tokens of a curve's point; None at the end of the run


def read_losses(path: Path) -> list[Point]:
    return [_read(i, row) for i, row in enumerate(_table(path, {"id", "loss_nats"}), 1)]


def read_curves(path: Path, runs: list[Point]) -> list[Point]:
    """Each point of each curve, with the run it belongs to; the end points among them too."""
    known = {run.id: run for run in runs}
    points = []
    for i, row in enumerate(_table(path, {"run_id", "tokens_b", "loss_nats"}), 1):
        name = row.get("run_id") or f"row {i}"
        run = known.get(name)
        here = f"{name}@{row.get('tokens_b', '')}B"
        if run is None:
            points.append(Point(here, "?", row, trouble="its run is not in the table of losses"))
            continue
        try:
            tokens, loss = number_in(row, "tokens_b"), number_in(row, "loss_nats")
            if run.trouble:
                raise UserError(run.trouble)
            if tokens is None or not 0 < tokens * 1e9 <= run.tokens * 1.02:
                raise UserError(f"tokens_b = {row.get('tokens_b')!r} is outside the run")
            if loss is None or not 0 < loss < 20:
                raise UserError(f"loss_nats = {row.get('loss_nats')!r} is not possible")
            points.append(replace(run, id=here, row=row, loss=loss, at=tokens * 1e9))
        except UserError as error:
            points.append(Point(here, run.family, row, trouble=error.message))
    return points


def _table(path: Path, wanted: set[str]) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as table:
            reader = csv.DictReader(table)
            missing = wanted - set(reader.fieldnames or ())
            if missing:
                raise UserError(f"{path.name} lacks the columns {', '.join(sorted(missing))}",
                                hint="give a table in the layout of fit/data/public_losses.csv")  # fmt: skip
            return [
                {k: v.strip() for k, v in row.items() if isinstance(k, str) and isinstance(v, str)} for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}", hint="give a CSV table") from None


def _read(index: int, row: dict[str, str]) -> Point:
    point = Point(row.get("id") or f"row {index}", row.get("source_family") or "?", row, quality=row.get("quality", ""))
    try:
        return _point(point, row)
    except OnecardError as error:
        return replace(point, trouble=error.message)


def _point(point: Point, row: dict[str, str]) -> Point:
    loss = number_in(row, "loss_nats")
    if loss is None:
        raise UserError("no loss in nats given")
    if not 0 < loss < 20:
        raise UserError(f"loss_nats = {loss:g} is not possible")
    dataset = known_dataset(row.get("dataset", ""))
    if dataset is None or "dedup" in row.get("dataset", ""):
        raise UserError(f"nothing public is known of the data set {row.get('dataset', '')!r} with GPT-2's tokens")
    evaluated = row.get("eval_set", "")
    if evaluated and known_dataset(re.sub(r"-?val.*|-?test.*|\(.*", "", evaluated)) not in (dataset, None):
        raise UserError(f"trained on {row.get('dataset')}, measured on {evaluated}")
    tokenizer = row.get("tokenizer", "gpt2").lower()
    if tokenizer not in ("gpt2", ""):
        raise UserError(f"its tokens are {tokenizer}'s, not GPT-2's")
    tokens = number_in(row, "tokens_seen_b")
    if tokens is None:
        raise UserError("no tokens_seen_b given")
    if not 1e-4 < tokens < 1e5:
        raise UserError(f"tokens_seen_b = {tokens:g} is not possible")
    config = _config(row, tokens * 1e9)
    size = (number_in(row, "n_params_active_m") or 0) * 1e6
    if size <= 0:
        body = (number_in(row, "n_params_nonemb_m") or 0) * 1e6 or 12.0 * config.n_layer * config.n_embd**2
        size = body + config.shape.vocab_size * config.n_embd
    unique = number_in(row, "unique_tokens_b")
    return replace(point, config=config, size=size, tokens=tokens * 1e9, unique=unique * 1e9 if unique else None,
                   recipe=recipe_of_row(row), dataset=dataset, loss=loss)  # fmt: skip


def recipe_of_row(row: dict[str, str]) -> str:
    """The fitted recipe that a row's own word means."""
    text = row.get("recipe", "").lower()
    context = number_in(row, "seq_len") or 1024
    if "speedrun" in text:
        return "speedrun-long" if context > LONG_CONTEXT else "speedrun"
    if "muon" in text:
        return "modern-muon"
    for name in ("soap", "shampoo"):
        if name in text:
            return name
    if "modern" in text:
        return "modern-adamw"
    if "gpt2" in text:
        return "gpt2-adamw"
    detail = row.get("recipe_detail", "").lower()
    return "modern-adamw" if re.search(r"rope|rmsnorm|swiglu|llama", detail) else "other" if text else "gpt2-adamw"


def _config(row: dict[str, str], tokens: float) -> RunConfig:
    layers, width, heads = (_whole(row, key) for key in ("n_layer", "n_embd", "n_head"))
    if layers is None or width is None:
        raise UserError("no shape given (n_layer, n_embd)")
    heads = heads if heads and width % heads == 0 else 1
    block = _whole(row, "seq_len") or 1024
    batch = number_in(row, "batch_tokens") or 2**19
    steps = max(1, round(tokens / batch))
    schedule = row.get("schedule", "").lower()
    share = re.search(r"(\d+)(?:-(\d+))?% ?(?:down|decay)", schedule)
    warm = re.search(r"warm(?:up)?[ =]*(\d+)", schedule)
    down = (float(share[1]) + float(share[2] or share[1])) / 200 if share else 0.3
    floor = re.search(r"->\s*(0?\.\d+)x", schedule)
    vocab = _whole(row, "vocab_size") or 50304
    rate = 6e-4
    return RunConfig(
        n_layer=layers, n_head=heads, n_embd=width, block_size=block, vocab_size=vocab, batch_size=1,
        gradient_accumulation_steps=max(1, round(batch / block)), max_iters=steps, lr_decay_iters=steps,
        warmup_iters=min(int(warm[1]) if warm else 0, steps), learning_rate=rate,
        min_lr=rate * float(floor[1]) if floor else 0.0,
        schedule="wsd" if "wsd" in schedule or "trapez" in schedule else "linear" if "linear" in schedule else "cosine",
        decay_fraction=min(1.0, max(0.01, down)),
        tied=abs((number_in(row, "n_params_total_m") or 0) - (number_in(row, "n_params_active_m") or 0)) < 0.2 * vocab * width / 1e6,
    )  # fmt: skip


def _whole(row: dict[str, str], key: str) -> int | None:
    number = number_in(row, key)
    if number is None:
        return None
    if not 1 <= number <= 1e7 or number != int(number):
        raise UserError(f"{key} = {number:g} is not possible")
    return int(number)
