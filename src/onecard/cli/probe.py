"""`onecard probe`: measure this machine, so that the next plan is sharper."""

import argparse
import json
import sys

from rich.table import Table

from onecard.cli.terminal import console, progress_bar
from onecard.errors import RunFailure, UserError
from onecard.facts.gpus import Device
from onecard.messages import Note
from onecard.planner.calibration import Calibration
from onecard.planner.calibration_file import (
    disturbance,
    file_of,
    load_calibration,
    read_calibrations,
    write_calibration,
)
from onecard.planner.calibration_json import to_json
from onecard.planner.step_time import workload_time
from onecard.planner.step_work import mode
from onecard.units import show_duration

HELP = "Measure this machine's card (or CPU) with real train steps; plans for it are then made from that."
EXAMPLE = """onecard probe --quick
  onecard probe --autotune run.toml --limit 2m"""


TOO_DISTURBED = 1.0  # steps off by a factor of two: a plan made of them says nothing


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of a minute instead of a minute or two"
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="auto|cpu|cuda|mps",
        help="what to measure (default: the card)",
    )
    parser.add_argument(
        "--show", action="store_true", help="measure nothing: what is known of this machine"
    )
    parser.add_argument(
        "--forget", action="store_true", help="remove what was measured on this machine's device"
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep it even where the machine was so busy that its steps contradict each other",
    )
    parser.add_argument(
        "--json", action="store_true", help="the calibration as JSON, as it is kept"
    )
    parser.add_argument(
        "--autotune",
        metavar="CONFIG",
        help="try settings of this config that may be faster here, with real steps, and write the winner into it "
        "(a preset: into --out)",
    )
    parser.add_argument(
        "--limit",
        default="3m",
        metavar="TIME",
        help="of --autotune: how long (default: %(default)s)",
    )
    parser.add_argument(
        "--fp8",
        action="store_true",
        help="of --autotune: try fp8 matmuls too (NVIDIA cards from Ada on); taken where the loss of the first steps is the same",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="of --autotune: write the config there instead, as .toml"
    )


def run(args: argparse.Namespace) -> int:
    if args.autotune:
        from onecard.cli.autotune import run_autotune

        return run_autotune(args)
    if args.show or args.forget:
        device = _device(args.device)
        if args.forget:
            return _forget(device, args.json)
        notes: list[Note] = []
        known = load_calibration(device, notes)
        for note in notes:
            print(note, file=sys.stderr)
        if known is None:
            raise UserError(
                f"nothing was measured on this machine's {device.name}",
                hint="`onecard probe` does it",
            )
        _show(known, device, args.json)
        return 0

    from onecard.train.probe import probe

    with progress_bar(quiet=args.json) as tell:
        calibration = probe(args.quick, tell, args.device)
    off = calibration.disturbed
    if off is not None and off > TOO_DISTURBED and not args.keep and not _keeps_it(off):
        raise RunFailure(
            f"the machine was busy while it was probed: its own steps are off by {off:.0%}; nothing was kept",
            hint="`onecard probe` again when it is idle, or --keep",
        )
    write_calibration(calibration)  # only now: an interrupted probe leaves what was known
    _show(calibration, _device(args.device), args.json)
    if warning := disturbance(calibration):
        print(warning, file=sys.stderr)
    return 0


def _keeps_it(off: float) -> bool:
    """Asked on a terminal; elsewhere nobody is there to say yes."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(
        f"the machine was busy: its steps are off by {off:.0%}. Keep it? [y/N] ",
        end="",
        file=sys.stderr,
    )
    return input().strip().lower() in ("y", "yes")


def _device(asked: str) -> Device:
    from onecard.facts.here import cpu, here

    return cpu() if asked == "cpu" else here()


def _forget(device: Device, as_json: bool) -> int:
    files = [path for path, calibration in read_calibrations() if calibration.device == device.name]
    for path in files:
        path.unlink(missing_ok=True)
    if as_json:
        print(json.dumps({"removed": [str(path) for path in files]}))
    elif files:
        print(f"forgotten: {', '.join(path.name for path in files)}")
    else:
        print(f"nothing was measured on this machine's {device.name}")
    return 0


def _show(calibration: Calibration, device: Device, as_json: bool) -> None:
    path = file_of(calibration)
    if as_json:
        print(json.dumps({**to_json(calibration), "file": str(path)}, indent=1))
        return
    out = console()
    limit = (
        "" if calibration.power_limit_watts is None else f", {calibration.power_limit_watts:.0f} W"
    )
    out.print(
        f"[bold]{calibration.device}[/]{limit}, torch {calibration.torch}, {calibration.date}"
    )
    out.print(_rates_table(calibration, device))
    out.print(_steps_table(calibration, device))
    ranges = ", ".join(f"{kind} ±{half:.0%}" for kind, half in calibration.spread.items())
    out.print(f"range of a plan  {ranges}")
    if calibration.runs:
        out.print(f"refined by       {len(calibration.runs)} finished trainings")
    out.print(f"kept in          {path}", soft_wrap=True)
    out.print("`onecard plan` uses it from now on, for this device only")


def _rates_table(calibration: Calibration, device: Device) -> Table:
    rates, peak = calibration.rates, device.peak_flops(calibration.dtype)
    table = _table("measured alone", ("", "measured", "specified or estimated", "share"))
    for name, what in (
        ("matmul", "large matmul"),
        ("matmul_narrow", "narrow matmul"),
        ("matmul_head", "GPT-2's head"),
    ):
        table.add_row(
            what,
            f"{rates[name] / 1e9:,.0f} GFLOPS",
            f"{peak / 1e9:,.0f} GFLOPS",
            f"{rates[name] / peak:.0%}",
        )
    for name in ("copy", "triad"):
        reached = rates[name] / device.bandwidth
        table.add_row(
            name,
            f"{rates[name] / 1e9:,.0f} GB/s",
            f"{device.bandwidth / 1e9:,.0f} GB/s",
            f"{reached:.0%}",
        )
    table.add_row("memory new to the process", f"{rates['fresh'] / 1e9:,.1f} GB/s", "", "")
    table.add_row("tiny operation", f"{rates['operation_seconds'] * 1e6:.1f} µs", "", "")
    return table


def _steps_table(calibration: Calibration, device: Device) -> Table:
    titles = (
        "steps",
        "layers",
        "width",
        "context",
        "batch",
        "vocabulary",
        "measured",
        "predicted",
        "off by",
    )
    table = _table("real train steps, and what a plan now predicts for them", titles)
    for seen in calibration.observations:
        w, mid = seen.work, workload_time(seen.work, device, calibration).seconds.mid
        batch = f"{w.batch_size} × {w.accumulation:.0f}"
        table.add_row(
            mode(w),
            str(w.n_layer),
            str(w.n_embd),
            str(w.block_size),
            batch,
            f"{w.vocab_size:,}",
            show_duration(seen.seconds),
            show_duration(mid),
            f"{mid / seen.seconds - 1:+.1%}",
        )
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=True)
    return table
