"""A Calibration as JSON and back, checked field by field: a file may come from anywhere. docs/formats.md has the format."""

from collections.abc import Iterable
from dataclasses import MISSING, asdict, fields
from datetime import datetime
from typing import Any, Literal, get_args, get_origin, get_type_hints

from onecard.config import RunConfig
from onecard.planner.calibration import MODES, ODD_RUN, RATES, Calibration, Observation
from onecard.planner.step_counts import DTYPE_BYTES
from onecard.planner.step_work import PART_OF, Costs
from onecard.planner.workload import Workload

SCHEMA = "onecard.calibration/1"
# What a file from anywhere may hold: wide enough for any machine, and narrow enough that all arithmetic stays finite.
_LEAST_COST, _MOST_COST = 1e-20, 10.0  # seconds a FLOP, byte, kernel or step
_LEAST_SECONDS, _MOST_SECONDS = 1e-9, 1e6  # of one observed step
_MOST_SIZE = 1e9  # layers, width, vocabulary, ...


def to_json(calibration: Calibration) -> dict[str, Any]:
    plain = {field.name: getattr(calibration, field.name) for field in fields(calibration)}
    seen = [{"workload": _changed(o.work), "seconds": o.seconds} for o in calibration.observations]
    runs = [{"mode": mode, "ratio": ratio} for mode, ratio in calibration.runs]
    return {"schema": SCHEMA, **plain, "observations": seen, "runs": runs}


def from_json(content: Any) -> Calibration:
    """Checked field by field: a file may come from anywhere."""
    if not isinstance(content, dict):
        raise ValueError("not a calibration")
    if content.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    limit = content.get("power_limit_watts")
    costs = {mode: _costs(each) for mode, each in _table(content, "costs", MODES).items()}
    spread = {
        mode: _number(each, "spread", most=1000)
        for mode, each in _table(content, "spread", MODES).items()
    }
    if "eager" not in costs or set(costs) != set(spread):
        raise ValueError("it has no costs")
    rates = {name: _number(rate, "rates") for name, rate in _table(content, "rates", RATES).items()}
    if set(rates) != set(RATES):
        raise ValueError("its rates are another version's")
    dtype = _one_of(content.get("dtype"), "dtype", tuple(DTYPE_BYTES))
    return Calibration(
        device=_text(content, "device"),
        memory_bytes=int(_number(content.get("memory_bytes"), "memory_bytes")),
        torch=_text(content, "torch"),
        power_limit_watts=None if limit is None else _number(limit, "power_limit_watts"),
        date=_date(content),
        dtype=dtype,
        rates=rates,
        host_seconds=_number(content.get("host_seconds"), "host_seconds", most=1),
        costs=costs,
        spread=spread,
        observations=tuple(_observation(each, dtype) for each in _list(content, "observations")),
        runs=tuple(_run(each) for each in _list(content, "runs")),
    )


def _changed(w: Workload) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    defaults = {field.name: field.default for field in fields(w)}
    return {name: value for name, value in asdict(w).items() if value != defaults[name]}


def _table(content: dict[str, Any], key: str, known: Iterable[str]) -> dict[str, Any]:
    if not isinstance(content.get(key), dict):
        raise ValueError(f"{key} is missing")
    table: dict[str, Any] = content[key]
    if unknown := set(table) - set(known):
        raise ValueError(f"{key} has an unknown {min(unknown)[:40]!r}")
    return table


def _list(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    items = content.get(key)
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise ValueError(f"{key} is missing")
    return items


def _text(content: dict[str, Any], key: str) -> str:
    text = content.get(key)
    if not isinstance(text, str) or not text.isprintable() or len(text) > 200:
        raise ValueError(f"{key} is missing")
    return text


def _date(content: dict[str, Any]) -> str:
    date = _text(content, "date")
    try:
        datetime.fromisoformat(date)
    except ValueError:
        raise ValueError("date is no time") from None
    return date


def _one_of(value: Any, name: str, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} is none of {', '.join(known)}")
    return value


def _number(value: Any, name: str, least: float = 0.0, most: float = 1e24) -> float:
    # compared before anything is computed with it: a whole number in JSON may have thousands of digits
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} holds no measurement")
    return float(value)


def _costs(content: Any) -> Costs:
    if not isinstance(content, dict) or set(content) != set(PART_OF):
        raise ValueError("its costs are another version's")
    return {kind: _number(content[kind], "costs", _LEAST_COST, _MOST_COST) for kind in PART_OF}


def _observation(content: dict[str, Any], dtype: str) -> Observation:
    defaults = {field.name: field.default for field in fields(Workload)}
    given = _table(content, "workload", defaults)
    for name, value in given.items():
        _setting(name, value, defaults[name])
    if missing := [
        name for name, default in defaults.items() if default is MISSING and name not in given
    ]:
        raise ValueError(f"an observation has no {missing[0]}")
    seen = Workload(**given)
    if seen.dtype != dtype:
        raise ValueError("an observation is of another dtype")
    return Observation(
        seen, _number(content.get("seconds"), "seconds", _LEAST_SECONDS, _MOST_SECONDS)
    )


def _setting(name: str, value: Any, default: Any) -> None:
    """ValueError unless a Workload may have this value there."""
    if name in _CHOICES:
        _one_of(value, f"an observation's {name}", _CHOICES[name])
    elif name == "accumulation":  # the only share among the sizes: micro-batches of several cards
        _number(value, name, 1e-3, _MOST_SIZE)
    elif default is MISSING or default is None or type(default) is int:
        if type(value) is not int:
            raise ValueError(f"an observation's {name} has the wrong type")
        _number(value, name, 0 if default == 0 else 1, _MOST_SIZE)
    elif type(value) is not type(default):
        raise ValueError(f"an observation's {name} has the wrong type")
    elif isinstance(default, float):  # dropout, window
        _number(value, name, most=1)


_CHOICES = {
    name: get_args(hint)
    for name, hint in get_type_hints(Workload).items()
    if get_origin(hint) is Literal
} | {
    "dtype": tuple(DTYPE_BYTES),
    "optimizer": get_args(get_type_hints(RunConfig)["optimizer"]),
}


def _run(content: dict[str, Any]) -> tuple[str, float]:
    return _one_of(content.get("mode"), "mode", MODES), _number(
        content.get("ratio"), "ratio", 1 / ODD_RUN, ODD_RUN
    )
