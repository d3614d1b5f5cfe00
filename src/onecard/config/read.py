"""From what a user names (a preset, a .py or .toml file, overrides) to a RunConfig.

>>> load("gpt2", ["--n_layer=6", "batch_size=4"]).n_layer
6
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onecard.config.literal import evaluate, read_python
from onecard.config.presets import PRESETS, RELEASED, preset
from onecard.config.recipes import RECIPE_KEYS, recipe_values
from onecard.config.run import KEYS, RunConfig
from onecard.errors import UserError, nearest
from onecard.untrusted import is_unicode

_LARGEST_FILE = 200_000  # bytes; a config is a page of text


def load(source: str | Path | None, overrides: Iterable[str] = ()) -> RunConfig:
    """The config meant by a preset's name or a file, with `key=value` overrides on top. None: nanoGPT's defaults."""
    values = {} if source is None else read_values(source)
    where = "" if source is None or _is_preset(source) else f" in {Path(source).name}"
    changes = parse_overrides(overrides)
    if changes.get("recipe", values.get("recipe", "gpt2")) != values.get("recipe", "gpt2"):
        # another recipe over a file made for the first: AdamW's 6e-4 is not a step size for Muon
        values = {key: value for key, value in values.items() if key not in RECIPE_KEYS}
    return RunConfig.from_values(_completed({**values, **changes}), where)


def read_values(source: str | Path) -> dict[str, Any]:
    """The keys that a preset or a file sets, unchecked against RunConfig; a file wins over a preset of its name."""
    if not str(source).strip():
        raise UserError("the config's name is empty", hint="name a preset such as gpt2, or a file")
    return preset(str(source)) if _is_preset(source) else _values_of(Path(source))


def _is_preset(source: str | Path) -> bool:
    return str(source) in PRESETS and not Path(source).is_file()


def _values_of(path: Path) -> dict[str, Any]:
    """A file's keys. One that computes them, as nanoGPT's finetune_shakespeare.py does, may ship as a preset."""
    try:
        return read_file(path)
    except UserError as error:
        if path.suffix == ".py" and path.stem in PRESETS and path.is_file():
            hint = f"the preset {path.stem} has the same settings: give {path.stem} instead"
            raise UserError(error.message, hint=hint) from None
        raise


def _completed(values: dict[str, Any]) -> dict[str, Any]:
    """What follows from the keys given: a released model's shape, a recipe's optimizer, a schedule that ends with the run.

    nanoGPT leaves lr_decay_iters at 600,000 and warmup_iters at 2,000 when only max_iters is set, so a short run never
    decays or never leaves its warm-up; nobody means that.
    """
    released = RELEASED.get(str(values.get("init_from")), {})
    values = {**released, **recipe_values(values.get("recipe")), **values}
    steps = values.get("max_iters")
    if isinstance(steps, int | float) and 1 <= steps <= 1e9:
        values.setdefault("lr_decay_iters", steps)
        values.setdefault("warmup_iters", min(RunConfig.warmup_iters, int(steps) // 10))
    peak = values.get("learning_rate")
    if isinstance(peak, int | float):
        values.setdefault("min_lr", min(RunConfig.min_lr, abs(peak)))
    return values


def read_file(path: Path) -> dict[str, Any]:
    """The keys of a nanoGPT .py or a TOML file, unchecked against RunConfig."""
    text = _text(path)
    if path.suffix.lower() == ".toml":
        try:
            values = tomllib.loads(text)
        except (
            ValueError,
            RecursionError,
        ) as error:  # a number of 5,000 digits is a plain ValueError
            why = (
                str(error)
                if isinstance(error, tomllib.TOMLDecodeError)
                else "a value in it is too long or too deep"
            )
            raise UserError(
                f"{path.name} is not TOML: {why}", hint="lines look like n_layer = 12"
            ) from None
        table = next((key for key, value in values.items() if isinstance(value, dict | list)), None)
        if table is not None:
            raise UserError(
                f"{path.name}: {table!r} is a table or a list", hint="a config is flat: key = value"
            )
        return values
    return read_python(text, path.name, KEYS)


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder", hint="name a config file inside it, or a preset")
        # a pipe without a writer or /dev/zero would never end
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a file", hint="save the config as a file and name that")
        if path.stat().st_size > _LARGEST_FILE:
            raise UserError(
                f"{path.name} is too large for a config",
                hint="a config is a page of key = value lines",
            )
        with path.open("rb") as file:  # no more than that, though it may grow meanwhile
            content = file.read(_LARGEST_FILE)
    except FileNotFoundError:
        if path.suffix.lower() in (".py", ".toml") and path.parent != Path("."):
            raise UserError(f"no file {str(path)!r}", hint="check the path") from None
        hint = nearest(path.stem.lower(), PRESETS) or "`onecard plan --presets` lists the presets"
        raise UserError(f"no config file or preset named {str(path)!r}", hint=hint) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}",
            hint="check the path and its permissions",
        ) from None
    if b"\0" in content:
        raise UserError(
            f"{path.name} is a binary file, not a config",
            hint="a config is text: key = value lines",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path.name} is not UTF-8 (byte {error.start})", hint="save it as UTF-8"
        ) from None


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` and nanoGPT's `--key=value`; the value is a literal, else text, as in nanoGPT."""
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.removeprefix("--").partition("=")
        key = key.strip()
        if not equals:
            raise UserError(
                f"{word!r} is not an option here",
                hint=f"a config key is set as --{key or 'key'}=value"
                if key in KEYS
                else (word.startswith("--") and nearest(key, KEYS))
                or "write overrides as --key=value",
            )
        if key not in KEYS:
            raise UserError(
                f"unknown config key {key!r}",
                hint=nearest(key, KEYS) or "docs/cli.md lists the keys",
            )
        if not is_unicode(text):  # Python hands other bytes on as lone surrogates
            raise UserError(
                f"{key} = {text!r} is not UTF-8", hint="name it in the terminal's own encoding"
            )
        values[key] = _literal(text)
    return values


def _literal(text: str) -> Any:
    spelled = {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)
    if spelled is not text:
        return spelled
    try:
        return evaluate(text)
    except ValueError:
        return text
