"""Predicted against measured memory and time, for any table in the layout of fit/data/public_runs.csv.

    python bench/accuracy.py RUNS.csv [--json] [--cross-validate | --fit-on OTHER.csv…] [--quality ABC]

Each row is predicted from its configuration and its card alone. A row that cannot be is listed with the reason. Stacks other
than PyTorch are predicted as what PyTorch would do, and marked. --cross-validate fits the speed constants again for each
source family, from the public runs of all other families: what it says is about runs the constants never saw. --fit-on makes
constants and ranges from other tables alone, as if these runs came from somebody else.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.memory import reading_of  # noqa: E402
from fit.runs import Run, all_runs, read_runs  # noqa: E402

from bench.accuracy_peers import (  # noqa: E402
    PEER_INSTALL,
    RULE_MFU,
    llm_analysis,
    peer_scores,
    rule_of_thumb,
)
from bench.score import (  # noqa: E402
    Answer,
    by_family,
    family_mean,
    into_pipe,
    is_geforce,
    percent,
    reasons,
    score,
)
from onecard.errors import OnecardError  # noqa: E402
from onecard.planner.memory import step_memory  # noqa: E402
from onecard.planner.result import Range  # noqa: E402
from onecard.planner.step_time import workload_time  # noqa: E402


def predict(
    runs: list[Run], fits: dict[str, Any] | None = None, memory_fits: dict[str, Any] | None = None
) -> list[Answer]:
    """Two answers a row, memory and time; skipped ones say why."""
    return [
        answer
        for run in runs
        for answer in (
            _memory(run, (memory_fits or {}).get(run.family)),
            _time(run, (fits or {}).get(run.family)),
        )
    ]


def _base(run: Run, kind: str) -> dict[str, Any]:
    note = "; ".join([*run.assumed, *(["predicted as PyTorch"] if run.foreign else [])])
    return {
        "id": run.id,
        "family": run.family,
        "kind": kind,
        "note": note,
        "foreign": run.foreign,
        "quality": run.quality,
    }


def _time(run: Run, fit: Any) -> Answer:
    base = _base(run, "time")
    if run.trouble or run.time_trouble:
        return Answer(**base, skipped=run.trouble or run.time_trouble)
    assert run.workload is not None
    assert run.device is not None
    seconds = workload_time(run.workload, run.device, fit=fit).seconds
    return _answer(base, seconds, run.step_seconds, "no time was measured")


def _memory(run: Run, fit: Any = None) -> Answer:
    base = _base(run, "memory")
    if run.trouble or run.memory_trouble:
        return Answer(**base, skipped=run.trouble or run.memory_trouble)
    assert run.workload is not None
    assert run.device is not None
    try:
        memory = step_memory(run.workload, run.device, fit)
    except (ArithmeticError, ValueError, KeyError) as error:
        return Answer(**base, skipped=f"no memory model: {error}")
    reading = reading_of(memory, run)
    return _answer(
        base, reading.scaled(1 / run.memory_unit), run.memory_gb, "no memory was measured"
    )


def _answer(base: dict[str, Any], found: Range, measured: float | None, nothing: str) -> Answer:
    return Answer(
        **base,
        predicted=found.mid,
        low=found.low,
        high=found.high,
        measured=measured,
        skipped=None if measured is not None else nothing,
    )


def summary(answers: list[Answer], runs: list[Run]) -> dict[str, Any]:
    """In all, by family, and the mean over families; PyTorch's own rows and GeForce cards apart."""
    geforce = {run.id for run in runs if run.device and is_geforce(run.device.name)}
    kinds: dict[str, Any] = {}
    for kind in ("memory", "time"):
        kept = [a for a in answers if a.kind == kind]
        own = [a for a in kept if not a.foreign]
        families = {f: s for f, s in by_family(kept).items() if s["n"]}
        own_families = {f: s for f, s in by_family(own).items() if s["n"]}
        kinds[kind] = {
            **score(kept),
            "pytorch": {
                **score(own),
                "mean_of_family_medians": family_mean(own_families, "median_abs_error"),
            },
            "mean_of_family_medians": family_mean(families, "median_abs_error"),
            "geforce": score(a for a in kept if a.id in geforce),
            "skipped": reasons(kept),
            "families": families,
        }
    families = {
        f: {k: kinds[k]["families"].get(f, score([])) for k in kinds}
        for k in kinds
        for f in kinds[k]["families"]
    }
    return {**kinds, "families": families}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", type=Path, nargs="+", metavar="RUNS.csv")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--cross-validate", action="store_true", help="refit, leaving each family out"
    )
    parser.add_argument("--fit-on", type=Path, nargs="+", metavar="RUNS.csv", default=[])
    parser.add_argument(
        "--quality", default="", help="only rows of these qualities, e.g. AB; default: all"
    )
    args = parser.parse_args(argv)
    try:
        runs = [run for table in args.tables for run in read_runs(table)]
        known = [run for table in args.fit_on for run in read_runs(table)]
    except OnecardError as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return error.exit_code
    if args.quality:
        runs = [run for run in runs if run.quality in args.quality]
    fits = memory_fits = None
    if args.cross_validate or known:
        try:
            fits, memory_fits = _refitted(known, {run.family for run in runs})
        except ImportError as error:
            print(
                f"accuracy: refitting needs {error.name}; hint: pip install scipy", file=sys.stderr
            )
            return 2
    answers = predict(runs, fits, memory_fits)
    thumb = rule_of_thumb(runs)
    peer = llm_analysis(runs)
    found = summary(answers, runs)
    if args.json:
        peers = {"single_mfu": peer_scores(thumb)}
        if peer is not None:
            peers["llm_analysis"] = peer_scores(peer)
        print(
            json.dumps(
                {
                    **found,
                    "peers": peers,
                    "cross_validated": bool(fits),
                    "rows": [a.as_json() for a in answers],
                }
            )
        )
        return 0
    _print(answers, found, thumb, peer)
    return 0


def _refitted(known: list[Run], families: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """For each family, constants and ranges for time and memory: from the known runs, or from all families but that one."""
    from fit import memory, speed

    if known:
        return (
            dict.fromkeys(families, speed.fit_from(known)),
            dict.fromkeys(families, memory.fit_from(known)),
        )
    return speed.cross_validated_fits(all_runs(), families), memory.cross_validated(families)


def _print(
    answers: list[Answer], found: dict[str, Any], thumb: list[Answer], peer: list[Answer] | None
) -> None:
    for kind in ("memory", "time"):
        print(f"\n{kind:28}{'rows':>6}{'median':>9}{'p90':>9}{'bias':>9}{'in range':>10}")
        for family, each in found[kind]["families"].items():
            print(_line(family, each))
        print(_line("all rows", found[kind]))
        print(_line("PyTorch rows", found[kind]["pytorch"]))
        print(_line("GeForce RTX rows", found[kind]["geforce"]))
        print(
            f"{'mean of family medians':28}{'':6}{percent(found[kind]['mean_of_family_medians']):>9}"
            f"   PyTorch {percent(found[kind]['pytorch']['mean_of_family_medians'])}"
        )
        if kind == "time":
            print(_line(f"rule of thumb, MFU {RULE_MFU:.0%}", score(thumb)))
        if peer is not None:
            print(_line("llm-analysis", score([answer for answer in peer if answer.kind == kind])))
    if peer is None:
        print(f"\nllm-analysis is not installed: {PEER_INSTALL}")
    for kind in ("memory", "time"):
        asked = sum(answer.kind == kind for answer in answers)
        print(f"\n{kind}: {found[kind]['n']} of {asked} rows predicted and compared; left out:")
        for reason, count in found[kind]["skipped"].items():
            print(f"{count:6}  {reason}")
    print("\nnot predicted or not comparable:")
    for answer in answers:
        if answer.skipped and not answer.skipped.startswith(("no time was", "no memory was")):
            print(f"  {answer.id:8} {answer.kind:8}{answer.skipped}")


def _line(name: str, each: dict[str, Any]) -> str:
    figures = "".join(
        f"{percent(each[key]):>9}" for key in ("median_abs_error", "p90_abs_error", "bias")
    )
    return f"{name:28}{each['n']:>6}{figures}{percent(each['coverage']):>10}"


if __name__ == "__main__":
    sys.exit(into_pipe(main))
