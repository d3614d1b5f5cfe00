"""Lengthening a finished run: continue from the checkpoint before its decay, or forecast what a risen rate will cost.

A run whose rate has decayed sits in a narrow valley; moving the end of its schedule raises the rate again, the loss
jumps up and takes long to come back. The checkpoint before the decay has the full rate still: going on from there and
decaying later is what a straight run of the new length does.
"""

import shutil
from pathlib import Path

from onecard.config import RunConfig
from onecard.config.model_rules import decay_start
from onecard.files import replace, sync_files, sync_folder
from onecard.model.checkpoint import checkpoints, step_of
from onecard.planner.loss_settings import held_up
from onecard.runs.folder import read_folder
from onecard.train.optim import lr_at
from onecard.train.run.session import PREDECAY

DECAYED = "decayed"  # in the run's folder: the end that was branched away from, and its log


def branch_point(folder: Path, config: RunConfig) -> int | None:
    """The step that a lengthened run continues from; None where nothing from before the decay was kept."""
    kept = checkpoints(folder / PREDECAY)
    start = decay_start(config)
    if not kept or start is None or step_of(kept[-1]) > start:
        return None
    return step_of(kept[-1])


def decayed_since(folder: Path, config: RunConfig) -> int | None:
    """The step to go back to; None where the run stopped before its decay, or has been branched already."""
    step = branch_point(folder, config)
    return step if step is not None and _after(folder, step) else None


def _after(folder: Path, step: int) -> list[Path]:
    return [path for path in checkpoints(folder) if step_of(path) > step]


def branch(folder: Path, step: int) -> None:
    """Make the checkpoint before the decay, of this step, the run's newest; the decayed end and its log move to DECAYED.

    Each step is done again without harm: a kill in between costs nothing, the same command continues.
    """
    kept = checkpoints(folder / PREDECAY)[-1]
    aside = folder / DECAYED / "checkpoints"
    aside.mkdir(parents=True, exist_ok=True)
    if (folder / "log.jsonl").is_file():
        shutil.copyfile(folder / "log.jsonl", folder / DECAYED / "log.jsonl")
    if (folder / "config.toml").is_file():
        shutil.copyfile(folder / "config.toml", folder / DECAYED / "config.toml")
    if not any(step_of(path) == step for path in checkpoints(folder)):
        writing = folder / "checkpoints" / f".writing_{kept.name}_branch"
        shutil.rmtree(writing, ignore_errors=True)
        shutil.copytree(kept, writing)
        sync_files(writing)
        replace(writing, folder / "checkpoints" / kept.name)
    for path in _after(folder, step):
        shutil.rmtree(aside / path.name, ignore_errors=True)
        replace(path, aside / path.name)
    sync_folder(folder / "checkpoints")


def bump_forecast(folder: Path, before: RunConfig, config: RunConfig) -> str | None:
    """What to expect where there is nothing to branch from: how far the rate, and with it the loss, will rise."""
    newest = checkpoints(folder)
    if not newest:
        return None
    step = step_of(newest[-1])
    old, new = lr_at(before, max(step - 1, 0)), lr_at(config, step)
    if new <= 1.05 * old:
        return None
    start = f"nothing from before the decay was kept: the learning rate rises from {old:.3g} to {new:.3g}"
    instead = '; schedule = "wsd" keeps a checkpoint to branch from (keep_predecay)'
    run = read_folder(folder)
    evals = [e for e in run.evals if e.val_loss is not None] if run is not None else []
    as_high = [e for e in evals if lr_at(before, e.step) >= new]
    if not as_high or evals[-1].val_loss is None or as_high[-1].val_loss is None:
        rise = held_up(config, (new - old) / config.learning_rate)
        return (
            f"{start}; expect the loss to rise by about {rise:.2f} nats, as much as public runs lose when their rate "
            f"comes down, until the rate has come down again{instead}"
        )
    rise = max(0.0, as_high[-1].val_loss - evals[-1].val_loss)
    return (
        f"{start}, as it was at step {as_high[-1].step:,}; expect the loss to rise by up to {rise:.2f} nats and "
        f"to stay above {evals[-1].val_loss:.3f} until the rate has come down again{instead}"
    )
