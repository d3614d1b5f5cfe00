"""The section of docs/performance.md on the page, from what bench/ui.py measured."""

from typing import Any


def _row(what: str, seconds: float | dict[str, float], goal: float | None = None) -> str:
    median = seconds["median"] if isinstance(seconds, dict) else seconds
    worst = f"{seconds['worst']:.3f} s" if isinstance(seconds, dict) else ""
    met = (
        ""
        if goal is None
        else f"{goal:g} s: " + ("reached" if median < goal else "**not reached**")
    )
    return f"| {what} | {median:.3f} s | {worst} | {met} |"


def ui_section(result: dict[str, Any]) -> list[str]:
    first, planner = result["first_page_seconds"], result["planner_seconds"]
    rows = [
        _row("first page, until the plan's figures stand there", first["page"], 1),
        _row("an empty page of the same browser", first["empty_page"]),
        _row("a change of the plan, from the input to its figures", planner["plan"], 0.1),
        _row("the same while the last change's curve is computed", planner["plan_at_once"]),
        _row("the recommended run, from the same input", planner["recommend"], 1),
        _row(
            "a log line, from written to its step on the run's page",
            result["line_to_point_seconds"],
            2,
        ),
        _row("the list of all runs, the first time", result["list_first_seconds"]),
        _row("the list again", result["list_again_seconds"]),
    ]
    memory = [
        ("empty", result["memory_empty_bytes"]),
        ("after eleven runs' pages", result["memory_bytes"]),
    ]
    large = result.get("million")
    if large:
        rows += [
            _row("a run of a million lines: its first curve", large["first_curve"]),
            _row("its whole log read, findings shown", large["whole"]),
            _row("a change of the plan meanwhile", large["plan_meanwhile"], 0.1),
            _row("then a log line to its step", large["line_to_point"], 2),
            _row("a closer look at 10,000 of its steps", large["zoom"]),
        ]
        memory.append(("after the run of a million lines", large["memory_bytes"]))
    sizes = ", ".join(f"{size / 2**20:.0f} MiB {when}" for when, size in memory)
    return [
        "## The page",
        "",
        f"{result['date']}, {result['cores']} cores, Chromium on loopback, {result['runs']} runs of {result['lines']:,} lines "
        f"(bench/ui.py; load of the machine at the start {result['load']:.1f}).",
        "",
        "| | median | worst | goal |",
        "|---|---|---|---|",
        *rows,
        "",
        f"The server's memory: {sizes}. It holds at most 2,048 points of a run and eight runs.",
        "",
    ]
