"""Other people's dashboards, each behind its config key: wandb_log (as in nanoGPT), tensorboard, trackio.

    loggers = open_loggers(config, folder, message=view.message)   # a missing package is reported before the run starts
    loggers.log({"step": 100, "loss": 5.1, "lr": 6e-4, "mfu": 0.69})
    loggers.close()

None of them can stop a run: one that fails is dropped with a sentence, and log.jsonl has everything anyway.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from onecard.config import RunConfig
from onecard.errors import UserError, first_line

# Names in the dashboards: nanoGPT's where it has one, so that old and new runs share their charts.
NAMES = {
    "loss": "train/loss",
    "val_loss": "val/loss",
    "train_loss": "train/eval_loss",
    "lr": "lr",
    "mfu": "mfu",
    "tokens": "tokens",
    "tokens_per_second": "tokens_per_second",
    "step_seconds": "step_seconds",
    "grad_norm": "grad_norm",
    "data_wait": "data_wait",
    "memory_bytes": "memory_bytes",
    "bits_per_byte": "val/bits_per_byte",
    "perplexity": "val/perplexity",
}


class Logger(Protocol):
    name: str

    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class Loggers:
    """Those that the config asks for; an empty one does nothing."""

    def __init__(self, loggers: list[Logger], message: Callable[[str], None]):
        self._loggers = loggers
        self._message = message

    def log(self, fields: Mapping[str, Any]) -> None:
        """A step or an evaluation, in log.jsonl's fields."""
        values = {
            NAMES[key]: float(fields[key])
            for key in NAMES
            if isinstance(fields.get(key), int | float)
        }
        sources = fields.get("sources")
        if isinstance(sources, Mapping):
            values |= {
                f"val/loss/{name}": loss for name, loss in sources.items() if loss is not None
            }
        self._each("log", values, int(fields["step"]))

    def close(self) -> None:
        self._each("close")
        self._loggers = []

    def _each(self, verb: str, *arguments: Any) -> None:
        for logger in list(self._loggers):
            try:
                getattr(logger, verb)(*arguments)
            except (
                Exception
            ) as error:  # their network, their disk, their bugs: none of them is worth the run
                self._loggers.remove(logger)
                self._message(
                    f"{logger.name} failed ({first_line(error)}) and is off from here on; log.jsonl has everything"
                )


def open_loggers(config: RunConfig, folder: Path, message: Callable[[str], None]) -> Loggers:
    """Start the loggers that the config names. Raises UserError where one is not installed or cannot start."""
    known: dict[str, Callable[[RunConfig, Path], Logger]] = {
        "wandb_log": _Wandb,
        "tensorboard": _TensorBoard,
        "trackio": _Trackio,
    }
    wanted = [make(config, folder) for key, make in known.items() if getattr(config, key)]
    return Loggers(wanted, message)


class _Wandb:
    name = "Weights & Biases"

    def __init__(self, config: RunConfig, folder: Path):
        wandb = _needed("wandb", "wandb_log")
        self._run = _started(
            lambda: wandb.init(
                project=config.wandb_project,
                name=config.wandb_run_name,
                dir=str(folder),
                config=dataclasses.asdict(config),
            ),
            self.name,
            "log in with `wandb login`, set WANDB_MODE=offline, or leave wandb_log out",
        )

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log({"iter": step, **values}, step=step)

    def close(self) -> None:
        self._run.finish()


class _TensorBoard:
    name = "TensorBoard"

    def __init__(self, config: RunConfig, folder: Path):
        _needed("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = _started(
            lambda: SummaryWriter(str(folder / "tensorboard")),
            self.name,
            "check the run folder and its permissions",
        )

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    name = "Trackio"

    def __init__(self, config: RunConfig, folder: Path):
        self._trackio = _needed("trackio", "trackio")
        _started(
            lambda: self._trackio.init(
                project=config.wandb_project,
                name=config.wandb_run_name,
                config=dataclasses.asdict(config),
            ),
            self.name,
            "leave trackio out",
        )

    def log(self, values: dict[str, float], step: int) -> None:
        self._trackio.log(values, step=step)

    def close(self) -> None:
        self._trackio.finish()


def _needed(package: str, key: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise UserError(
            f"{key} = True needs the package {package}, which is not installed",
            hint=f"pip install {package}, or leave {key} out",
        ) from None


def _started(start: Callable[[], Any], name: str, hint: str) -> Any:
    try:
        return start()
    except Exception as error:
        raise UserError(f"{name} cannot start: {first_line(error)}", hint=hint) from None
