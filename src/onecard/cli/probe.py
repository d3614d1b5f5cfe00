"""`onecard probe`: measure this machine's card for a minute or two."""

import argparse

HELP = (
    "Measure this machine's own card (or CPU): matmuls, memory, real train steps. Plans for it use the result at once."
)
EXAMPLE = "onecard probe"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:1, mps or cpu")
    parser.add_argument(
        "--seconds", type=float, default=75, help="how long to measure, apart from compiling (default 75)"
    )
    parser.add_argument("--quick", action="store_const", const=15.0, dest="seconds", help="15 seconds: rougher")
    parser.add_argument("--json", action="store_true", help="machine-readable, in base units")


def run(args: argparse.Namespace) -> int:
    from onecard.errors import UserError

    if not 1 <= args.seconds <= 3600:
        raise UserError(f"--seconds {args.seconds:g} is not between 1 and 3600", hint="75 is a good measure")
    from onecard.facts.here import cpu, here
    from onecard.train.machine import choose_device
    from onecard.train.probe import probe, save, summary

    device = choose_device(args.device)
    known = cpu() if device.type == "cpu" else here(device.index or 0)
    with _bar(args.json) as tell:
        found = probe(device, known, args.seconds, tell)
    path = save(found)
    if args.json:
        from onecard.plan.calibration import to_json

        print(to_json(found), end="")
        return 0
    from rich.table import Table

    from onecard.cli.terminal import console

    table = Table(box=None, show_header=False, pad_edge=False)
    for line in summary(found):
        table.add_row(*line)
    out = console()
    out.print(f"{found.device}, torch {found.torch}, {found.seconds:.0f} s")
    out.print(table)
    out.print(f"kept in {path}; `onecard plan` uses it from now on", soft_wrap=True)
    return 0


def _bar(quiet: bool):  # type: ignore[no-untyped-def]
    """A progress bar with its ETA on a terminal; a line for each stage in a pipe."""
    import contextlib
    import sys

    @contextlib.contextmanager
    def bar():  # type: ignore[no-untyped-def]
        if sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            from onecard.cli.terminal import console

            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            with Progress(*columns, console=console(stderr=True), transient=True) as progress:
                task = progress.add_task("probing", total=1.0)
                yield lambda what, share: progress.update(task, description=what, completed=share)
            return
        said: set[str] = set()

        def line(what: str, share: float) -> None:
            if what not in said and not quiet:
                said.add(what)
                print(f"probing: {what}", file=sys.stderr)

        yield line

    return bar()
