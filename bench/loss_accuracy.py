"""Predicted against measured losses, for tables in the layout of fit/data/public_losses.csv and public_curves.csv.

    python bench/loss_accuracy.py LOSSES.csv [CURVES.csv] [--json] [--cross-validate]

End points are predicted from shape, recipe, tokens and data set; a curve's points from the same and the schedule. Beside
them: the best constant (the median of the known losses) and the nearest known run of another family, by size, tokens and data set,
scored on the same rows as "without quality C". Other tokenizers and data sets are predicted where their own public runs agree.
--cross-validate fits the law again for each family from all the others.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.loss_expected import expected, final  # noqa: E402
from fit.losses import Point, all_curves, all_losses, covered, read_curves, read_losses  # noqa: E402
from fit.table import encoding_of  # noqa: E402

from bench.loss_baselines import baselines  # noqa: E402
from bench.score import (  # noqa: E402
    Answer,
    by_family,
    family_mean,
    into_pipe,
    nats,
    nats_text,
    score,
)
from onecard.errors import OnecardError  # noqa: E402
from onecard.planner.expected_loss import running  # noqa: E402
from onecard.planner.loss_settings import loss_fit  # noqa: E402

FIRST_TOKENS = (
    3e8  # before that a curve is falling by the warm-up's rules, and is predicted but not scored
)


def predict(points: list[Point], fits: dict[str, Any] | None = None) -> list[Answer]:
    return [_answer(point, (fits or {}).get(point.family) or loss_fit()) for point in points]


def _answer(point: Point, fit: dict[str, Any]) -> Answer:
    base: dict[str, Any] = {
        "id": point.id,
        "family": point.family,
        "kind": point.kind,
        "quality": point.quality,
        "at": point.at,
        "foreign": bool(point.foreign),
        "measured": point.loss,
    }
    why_not = point.trouble or covered(point, fit)
    if why_not or point.config is None:
        return Answer(**base, skipped=why_not or "no shape")
    whole = expected(point, fit)
    middle = final(point, fit)
    steps = point.config.max_iters
    mid_way = point.at / point.tokens if point.at else point.share
    if mid_way < 0.995:
        now, end = (running(whole, max(1, round(steps * x)), fit) for x in (mid_way, 1.0))
        middle += point.ratio * (now - end)
    low, high = whole.final.low - whole.final.mid, whole.final.high - whole.final.mid
    if point.guessed:  # what the row leaves out may be anything
        odd = (fit["pairs"][point.dataset] if point.foreign else fit)["spread"]["odd"]
        low, high = min(low, odd[0]), max(high, odd[1])
    widen = 1 + 1.5 * math.exp(-(point.at or point.tokens) / 1e9) if point.at else 1.0
    early = (
        f"before {FIRST_TOKENS / 1e9:g} B tokens" if point.at and point.at < FIRST_TOKENS else None
    )
    return Answer(
        **base,
        predicted=middle,
        low=middle + low * widen,
        high=middle + high * widen,
        skipped=early,
        note=_note(point, whole.in_support, fit),
    )


def _note(point: Point, in_support: bool, fit: dict[str, Any]) -> str:
    notes = [] if in_support else ["outside the sizes or lengths that are known"]
    if point.ratio != 1.0:
        notes.append(f"one of its tokens taken for {point.ratio:.2f} of GPT-2's")
    if point.foreign:
        own = fit["pairs"][point.dataset]
        notes.append(
            f"level of {point.dataset} from {own['runs']} public runs of {own['families']} source(s)"
        )
    return "; ".join(notes)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "tables",
        type=Path,
        nargs="+",
        help="losses, and curves whose run_id are in them or in the public ones",
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--cross-validate", action="store_true", help="refit, leaving each family out"
    )
    parser.add_argument(
        "--fitted-on",
        type=Path,
        action="append",
        metavar="LOSSES.csv",
        help="refit on this table alone (may be repeated): how whole tables that nobody had seen would have been predicted",
    )
    args = parser.parse_args(argv)
    known = all_losses()
    try:
        points, curves = _read(args.tables, known)
    except OnecardError as error:
        print(f"loss_accuracy: {error}", file=sys.stderr)
        return error.exit_code
    fits = refitted([*points, *curves], known) if args.cross_validate else None
    if args.fitted_on:
        law = fitted_on([point for path in args.fitted_on for point in read_losses(path)])
        fits = {point.family: law for point in [*points, *curves]}
    ends, along = predict(points, fits), predict(curves, fits)
    found = _scores(ends, along)
    trusted = baselines(
        [p for p in points if p.quality != "C"], known, [a for a in ends if a.quality != "C"]
    )
    if args.json:
        with_quality_c = baselines(points, known, ends)
        rows = [a.as_json() for a in [*ends, *along]]
        print(
            json.dumps(
                {
                    **found,
                    "baselines": trusted,
                    "baselines_with_quality_c": with_quality_c,
                    "cross_validated": bool(fits),
                    "rows": rows,
                }
            )
        )
        return 0
    _print(found, trusted, [*ends, *along])
    return 0


def _scores(ends: list[Answer], along: list[Answer]) -> dict[str, Any]:
    """Of end points and curves, in all and by family; of end points without quality C, and of GPT-2's tokens among them, in all."""
    trusted = [a for a in ends if a.quality != "C"]
    parts = {
        "loss": ends,
        "curves": along,
        "trusted": trusted,
        "law": [a for a in trusted if not a.foreign],
    }
    families = {
        name: {f: nats(s) for f, s in by_family(each, relative=False).items() if s["n"]}
        for name, each in parts.items()
    }
    scores = {
        name: {
            **nats(score(each, relative=False)),
            "mean_of_family_medians_nats": family_mean(families[name], "median_abs_error_nats"),
        }
        for name, each in parts.items()
    }
    return {
        **scores,
        "families": {f: {"loss": s} for f, s in families["loss"].items()},
        "curve_families": families["curves"],
    }


def _print(found: dict[str, Any], baselines: dict[str, Any], answers: list[Answer]) -> None:
    _print_table("final loss", {f: each["loss"] for f, each in found["families"].items()})
    for name, each in {
        "all": found["loss"],
        "without quality C": found["trusted"],
        "  of it GPT-2's tokens": found["law"],
        **{other.replace("_", " "): each for other, each in baselines.items()},
    }.items():
        _print_mean(name, each)
    _print_table("along the curves", found["curve_families"])
    _print_mean("all", found["curves"])
    print("\nnot predicted:")
    skipped: dict[str, list[str]] = {}
    for answer in answers:
        if answer.skipped:
            skipped.setdefault(answer.skipped, []).append(answer.id)
    for reason, ids in skipped.items():
        more = f" and {len(ids) - 4} more" if len(ids) > 4 else ""
        print(f"  {reason}: {', '.join(ids[:4])}{more}")


def _print_table(title: str, families: dict[str, Any]) -> None:
    print(f"\n{title:28}{'rows':>6}{'median':>9}{'p90':>9}{'bias':>9}{'in range':>10}   nats")
    for family, each in families.items():
        print(line(family, each))


def _print_mean(name: str, each: dict[str, Any]) -> None:
    mean = nats_text(each["mean_of_family_medians_nats"])
    print(line(name, each), f"  mean of families {mean}")


def refitted(points: list[Point], known: list[Point]) -> dict[str, dict[str, Any]]:
    """For each family of these points, everything fitted from all the others; what does not look at a family is not fitted
    again for it: the curves' fall where it has no curve, the levels of other data where it has none."""
    from fit.loss import fit_loss, held_out_fits, with_curves
    from fit.loss_curves import CURVE, fit_curves
    from fit.loss_levels import fit_pairs
    from fit.loss_ranges import spread

    public = all_curves(known)
    whole = fit_curves(public, fit_loss(known))
    held_out = with_curves(held_out_fits(known), whole)
    falling, elsewhere = {p.family for p in public}, {k.family for k in known if k.foreign}
    fits = {}
    for family in sorted({point.family for point in points}):
        law = held_out.get(family) or fit_loss([k for k in known if k.family != family])
        if family in falling:
            law = fit_curves([p for p in public if p.family != family], law)
        else:
            law = {**law, **{key: whole[key] for key in CURVE}}
        others = {name: fit for name, fit in held_out.items() if name != family}
        law = {**law, "spread": spread(known, others)}
        fits[family] = (
            fit_pairs([k for k in known if k.family != family], law)
            if family in elsewhere
            else {**law, "pairs": loss_fit()["pairs"]}
        )
    return fits


def fitted_on(known: list[Point]) -> dict[str, Any]:
    """Law and ranges from these rows alone; how a curve falls, from the public ones."""
    from fit.loss import fit_loss, held_out_fits, with_curves
    from fit.loss_curves import CURVE
    from fit.loss_ranges import spread

    law = {**fit_loss(known), **{key: loss_fit()[key] for key in (*CURVE, "pairs")}}
    return {**law, "spread": spread(known, with_curves(held_out_fits(known), law))}


def _read(tables: list[Path], known: list[Point]) -> tuple[list[Point], list[Point]]:
    points: list[Point] = []
    curves: list[Point] = []
    for path in sorted(tables, key=_is_curve):
        if _is_curve(path):
            given = {point.id for point in points}
            curves += read_curves(path, points + [k for k in known if k.id not in given])
        else:
            points += read_losses(path)
    return points, curves


def _is_curve(path: Path) -> bool:
    try:
        with path.open(encoding=encoding_of(path), errors="replace") as table:
            return "run_id" in table.readline().lower()
    except OSError:
        return False


def line(name: str, each: dict[str, Any]) -> str:
    figures = "".join(
        f"{nats_text(each[key]):>9}"
        for key in ("median_abs_error_nats", "p90_abs_error_nats", "bias_nats")
    )
    held = "–" if each["coverage"] is None else f"{each['coverage']:.0%}"
    return f"{name:28}{each['n']:>6}{figures}{held:>10}"


if __name__ == "__main__":
    sys.exit(into_pipe(main))
