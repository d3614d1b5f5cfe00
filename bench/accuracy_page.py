"""Write docs/accuracy.md and its plots: the tables of accuracy.py and loss_accuracy.py, cross-validated.

python bench/accuracy_page.py [--check]
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.losses import TABLES as LOSS_ENDINGS  # noqa: E402
from fit.runs import ALL_TABLES, UNFITTED, read_runs  # noqa: E402

from bench import (  # noqa: E402
    accuracy,
    accuracy_peers,
    accuracy_summary,
    blind_losses,
    loss_accuracy,
    noise_floor,
    own_shares,
    score,
    unseen,
)
from bench.accuracy_plot import plot  # noqa: E402
from bench.several_cards import cards_table  # noqa: E402

PAGE, IMAGES = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "images"
LOSS_TABLES = (
    *(f"public_losses{ending}.csv" for ending in LOSS_ENDINGS),
    "public_curves.csv",
    "public_curves_2.csv",
    "public_curves_3.csv",
)
SHARES = ("median_abs_error", "p90_abs_error")
NATS = ("median_abs_error_nats", "p90_abs_error_nats")


def answer(main: Any, *words: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main([*words, "--json"])
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def table(
    families: dict[str, dict[str, Any]],
    last: dict[str, dict[str, Any]],
    keys: tuple[str, str],
    show: Any,
) -> list[str]:
    lines = [
        "| family | rows | median | 90th percentile | bias | in the 80 % range |",
        "|---|---|---|---|---|---|",
    ]
    for name, each in [*families.items(), *last.items()]:
        bias = each.get("bias", each.get("bias_nats"))
        held = "–" if each["coverage"] is None else f"{each['coverage']:.0%}"
        lines.append(
            f"| {name} | {each['n']} | {show(each[keys[0]])} | {show(each[keys[1]])} | {show(bias)} | {held} |"
        )
    return lines


def main() -> int:
    tables = [ROOT / "fit" / "data" / name for name in ALL_TABLES]
    held_out = answer(accuracy.main, *map(str, tables), "--cross-validate", "--quality", "AB")
    losses = answer(
        loss_accuracy.main,
        *(str(ROOT / "fit" / "data" / name) for name in LOSS_TABLES),
        "--cross-validate",
    )
    if "llm_analysis" not in held_out["peers"]:
        print(f"without the line for llm-analysis: {accuracy_peers.PEER_INSTALL}")
    names = (*ALL_TABLES, *UNFITTED)
    runs = [run for name in names for run in read_runs(ROOT / "fit" / "data" / name)]
    cards = {run.id: run.device.name for run in runs if run.device}
    workloads = {run.id: run.workload for run in runs if run.workload}
    blocks = {
        "SHORT": accuracy_summary.lines(held_out, losses, cards),
        "TIME": _time_block(held_out, cards),
        "MEMORY": _memory_block(held_out),
        "NOISE": noise_floor.lines(),
        "UNSEEN": unseen.lines(),
        "CARDS": cards_table(held_out["rows"], workloads),
        "LOSS": _loss_block(losses),
        "OWN": own_shares.lines(),
        **{
            f"BLIND {batch.name}": _nats_table(*blind_losses.batch(batch))
            for batch in unseen.BATCHES
        },
        "TABLES": _nats_table({}, blind_losses.left_out()),
        "CURVES": _nats_table(losses["curve_families"], {"**all**": losses["curves"]}),
    }
    page = PAGE.with_name("accuracy_words.md").read_text(encoding="utf-8")
    for name, lines in blocks.items():
        page = page.replace(f"<!-- {name} -->", "\n".join(lines))
    pictures = _pictures(held_out, losses, cards)
    made = {PAGE: page, **{IMAGES / name: text for name, text in pictures.items()}}
    if "--check" in sys.argv:
        return _checked(made)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} and {len(pictures)} plots")
    return 0


def _checked(made: dict[Path, str]) -> int:
    stale = [
        path.name
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    print(f"stale: {', '.join(stale)}" if stale else "docs/accuracy.md is what the scripts make")
    return 1 if stale else 0


def _pictures(
    held_out: dict[str, Any], losses: dict[str, Any], cards: dict[str, str]
) -> dict[str, str]:
    def rows(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        return [row for row in found["rows"] if row["kind"] == kind]

    families = {row["id"]: row["family"] for row in losses["rows"]}
    of_loss = "Final loss, families never seen"
    return {
        "accuracy-time.svg": plot(
            rows(held_out, "time"), cards, "Seconds a step, families never seen", "s"
        ),
        "accuracy-memory.svg": plot(rows(held_out, "memory"), cards, "Peak memory", "GB"),
        "accuracy-loss.svg": plot(
            rows(losses, "end"), families, of_loss, "nats", logarithmic=False
        ),
    }


def _time_block(held_out: dict[str, Any], cards: dict[str, str]) -> list[str]:
    time, share = held_out["time"], score.percent
    geforce, median = accuracy_summary.geforce_times(held_out["rows"], cards)
    totals = {
        "**all**": time,
        "**PyTorch**": time["pytorch"],
        "a single MFU of 40 %": held_out["peers"]["single_mfu"]["time"],
        **_llm_analysis(held_out, "time"),
    }
    return [
        *table(time["families"], totals, SHARES, share),
        "",
        f"Mean of the families' medians: {share(time['mean_of_family_medians'])}; of PyTorch's: "
        f"{share(time['pytorch']['mean_of_family_medians'])}. {_of_pytorch(held_out, 'time')}"
        f" GeForce RTX cards alone: {geforce} rows, median {share(median)}.",
    ]


def _memory_block(held_out: dict[str, Any]) -> list[str]:
    memory = held_out["memory"]
    totals = {
        "**all**": memory,
        "**PyTorch**": memory["pytorch"],
        **_llm_analysis(held_out, "memory"),
    }
    mean = score.percent(memory["pytorch"]["mean_of_family_medians"])
    return [
        *table(memory["families"], totals, SHARES, score.percent),
        "",
        f"Mean of the families' medians, PyTorch: {mean}. {_of_pytorch(held_out, 'memory')}",
    ]


def _loss_block(losses: dict[str, Any]) -> list[str]:
    others = losses["baselines"]
    totals = {
        "**all**": losses["loss"],
        "**without quality C**": losses["trusted"],
        "the best constant": others["constant"],
        "the nearest known run": others["nearest_known_run"],
    }
    own, constant, nearest = (
        score.nats_text(each["mean_of_family_medians_nats"])
        for each in (losses["trusted"], others["constant"], others["nearest_known_run"])
    )
    scored = [r for r in losses["rows"] if r["kind"] == "end" and r["quality"] != "C"]
    return [
        *_nats_table({f: each["loss"] for f, each in losses["families"].items()}, totals),
        "",
        f"Mean of the families' medians, without quality C: {own} nats; the best constant {constant}, "
        f"the nearest known run {nearest}. {_coverage(scored)}",
    ]


def _llm_analysis(held_out: dict[str, Any], kind: str) -> dict[str, Any]:
    """Its line of a table, where it is installed."""
    found = held_out["peers"].get("llm_analysis")
    return {"llm-analysis, given MFU 50 %": found[kind]} if found else {}


def _of_pytorch(held_out: dict[str, Any], kind: str) -> str:
    return _coverage([r for r in held_out["rows"] if r["kind"] == kind and not r["foreign"]])


def _coverage(rows: list[dict[str, Any]]) -> str:
    low, high = score.coverage_interval(rows)
    return f"The range's own range, families drawn again: {low:.0%} to {high:.0%}."


def _nats_table(families: dict[str, Any], totals: dict[str, Any]) -> list[str]:
    return table(families, totals, NATS, score.nats_text)


if __name__ == "__main__":
    sys.exit(main())
