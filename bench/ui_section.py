"""The section of docs/performance.md on the page, from what bench/ui.py measured."""

from typing import Any

# (key, what it is, goal in seconds); what a result does not have is left out
ROWS: tuple[tuple[str, str, float | None], ...] = (
    ("first_page_seconds.page", "first page, until the plan's figures stand there", 1),
    ("first_page_seconds.empty_page", "an empty page of the same browser", None),
    ("plan_seconds", "the planner's answer to one request", 0.1),
    ("planner_seconds.plan", "a change of the plan, from the input to its figures", 0.1),
    ("planner_seconds.plan_at_once", "the same while the last one's curve is computed", None),
    ("planner_seconds.recommend", "the recommended run, from the same input", 1),
    ("line_to_point_seconds", "a log line, from written to its step on the run's page", 2),
    ("list_first_seconds", "the list of all runs, the first time", None),
    ("list_again_seconds", "the list again", None),
    ("million.first_curve", "a run of a million lines: its first curve", None),
    ("million.whole", "its whole log read, findings shown", None),
    ("million.plan_meanwhile", "a plan meanwhile", None),
    ("million.line_to_point", "then a log line to its step", 2),
    ("million.zoom", "a closer look at 10,000 of its steps", None),
)
MEMORY = (
    ("memory_empty_bytes", "at the start"),
    ("memory_bytes", "after eleven runs' pages"),
    ("million.memory_bytes", "after the run of a million lines"),
)


def _found(result: dict[str, Any], key: str) -> Any:
    value: Any = result
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _row(what: str, seconds: float | dict[str, float], goal: float | None) -> str:
    median = seconds["median"] if isinstance(seconds, dict) else seconds
    worst = f"{seconds['worst']:.3f} s" if isinstance(seconds, dict) else ""
    reached = "reached" if goal is not None and median < goal else "**not reached**"
    return f"| {what} | {median:.3f} s | {worst} | {'' if goal is None else f'{goal:g} s: {reached}'} |"


def _split(change: Any) -> list[str]:
    """Where the time of a change goes, where that was measured."""
    if not isinstance(change, dict) or "request" not in change:
        return []
    before, request, after = (change[key] * 1000 for key in ("before_request", "request", "after"))
    return [
        f"Of a change of the plan (medians): {before:.0f} ms until the page asks, {request:.0f} ms until the answer is there, "
        f"{after:.0f} ms until its figures are drawn, the wait for the next frame included.",
        "",
    ]


def ui_section(result: dict[str, Any]) -> list[str]:
    found = [(_found(result, key), what, goal) for key, what, goal in ROWS]
    sizes = [(_found(result, key), when) for key, when in MEMORY]
    memory = ", ".join(f"{size / 2**20:.0f} MiB {when}" for size, when in sizes if size)
    return [
        "## The page",
        "",
        f"{result['date']}, {result['cores']} cores, Chromium on loopback, {result['runs']} runs of {result['lines']:,} lines "
        f"(bench/ui.py --million; load of the machine at the start {result['load']:.1f}).",
        "",
        "| | median | worst | goal |",
        "|---|---|---|---|",
        *(_row(what, seconds, goal) for seconds, what, goal in found if seconds is not None),
        "",
        *_split(_found(result, "planner_seconds.plan")),
        f"The server's memory: {memory}. It holds at most 2,048 points of a run and eight runs.",
        "",
    ]
