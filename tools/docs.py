"""Write the parts of the documentation that follow from the code: docs/cli.md, the plan in docs/launch.md, the table in docs/assistant.md.

python tools/docs.py            write them
python tools/docs.py --check    say whether they are true (the tests do the same)
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def cli_page() -> str:
    """docs/cli.md: every command's --help, and the config keys."""
    from onecard.cli import VERBS, parser_of
    from onecard.cli.options import key_rows

    pages = [
        "# The command line",
        "",
        "Made by `python tools/docs.py` from the commands themselves.",
        "",
    ]
    for verb, what in VERBS.items():
        pages += [
            f"## onecard {verb}",
            "",
            f"{what[0].upper()}{what[1:]}" + "." * (not what.endswith("?")),
            "",
            "```",
            parser_of(verb).format_help().strip(),
            "```",
            "",
        ]
    pages += [
        "## Config keys",
        "",
        "nanoGPT's, then onecard's own from `vocab_size` on.",
        "",
        "A resume may change the keys that affect only speed, memory, output and machine.",
        "",
        "| key | default | what it is | affects |",
        "|---|---|---|---|",
        *(
            f"| `{key}` | `{default}` | {what} | {affects} |"
            for key, default, what, affects in key_rows()
        ),
    ]
    return "\n".join(pages) + "\n"


BEGIN, END = "<!-- by tools/docs.py -->\n", "<!-- end -->\n"


def launch_page() -> str:
    """docs/launch.md with the figures that its commands print."""
    return with_table("docs/launch.md", hundred_billion_tokens())


def assistant_page() -> str:
    """docs/assistant.md with what three cards can do today."""
    import tune_guide

    return with_table("docs/assistant.md", tune_guide.lines())


def with_table(name: str, rows: list[str]) -> str:
    """The page with these rows in place of its generated ones."""
    before, rest = (ROOT / name).read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + "\n".join(rows) + "\n" + END + rest.split(END)[1]


def hundred_billion_tokens() -> list[str]:
    """The plan of `can gpt2-large --gpus 8 --tokens 100B`, as docs/launch.md tells to type it."""
    from onecard.advise.can import can
    from onecard.config.length import for_tokens
    from onecard.launch import make_job
    from onecard.planner import plan
    from onecard.units import GIB, show_duration, show_money

    named = ["dataset=fineweb-edu-100B", "vocab_size=50304"]
    answer = can("gpt2-large", "H100 SXM", gpus=8, tokens=100e9, overrides=named)
    config = for_tokens(answer.config, 100e9)
    job = make_job(config, "H100 SXM", cards=8)
    whole, chunked = job.plan, plan(config.replace(chunked_loss=True), "H100 SXM", gpus=8)
    assert whole.loss is not None
    assert job.cost is not None
    assert job.rental is not None
    time, loss, memory = whole.time.total_seconds, whole.loss.expected, whole.memory
    gib = ", ".join(f"`{way.shard}` {way.process_bytes / GIB:.1f}" for way in chunked.ways)
    step = ", ".join(f"{way.step_seconds.mid:.2f}" for way in chunked.ways)
    sent = ", ".join(f"{way.exchange_seconds * 1e3:.0f}" for way in chunked.ways)
    waited = ", ".join(f"{way.waiting_seconds * 1e3:.0f}" for way in chunked.ways)
    rows = {
        f"8 × H100 SXM, {whole.params.total / 1e6:.0f} M parameters, 100 B tokens, {config.max_iters:,} steps": "by `plan` and `launch`",
        "---": "---",
        "time": f"{show_duration(time.mid)} (80 %: {show_duration(time.low)} to {show_duration(time.high)}); {whole.time.step_seconds.mid:.2f} s a step, "
        f"of which the cards' exchange {whole.time.parts['exchange']:.2f} s; {whole.time.tokens_per_second.mid:,.0f} tokens/s",
        "memory": f"{memory.process_bytes.mid / GIB:.1f} of {memory.card_bytes / GIB:.1f} GiB on each card: micro-batches of {config.batch_size}, "
        'everything on every card (`shard = "none"`)',
        "shared out": f"with `chunked_loss = True`: {gib} GiB on each card; {step} s a step, of which the cards wait {waited} ms, for {sent} ms of exchange over NVLink",
        "loss on FineWeb-Edu": f"{loss.mid:.2f} ({loss.low:.2f} to {loss.high:.2f}), one epoch",
        "electricity": f"{whole.energy.kwh.mid:.0f} kWh",
        "rented": f"about {show_money(job.cost)} at {show_money((job.rental.typical, job.rental.currency))} a card and hour",
        "Slurm's limit": f"{show_duration(job.limit_seconds)}; a shorter `--time` continues in pieces",
    }
    return [f"| {name} | {figures} |" for name, figures in rows.items()]


PAGES = {
    "docs/cli.md": cli_page,
    "docs/launch.md": launch_page,
    "docs/assistant.md": assistant_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    stale = []
    for name, make in PAGES.items():
        path, wanted = ROOT / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(wanted, encoding="utf-8")
    parser.parse_args()
    print("stale: " + ", ".join(stale) if stale else "true")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    import os

    os.environ["COLUMNS"] = "100"  # argparse wraps its help by it
    sys.exit(main())
