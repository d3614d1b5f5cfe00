"""`onecard data`: text to tokens, and a look at what is there."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard.errors import RunFailure, UserError
from onecard.units import parse_count, show_bytes, show_count, show_duration

if TYPE_CHECKING:
    from onecard.data.preparation.encode import Event
    from onecard.data.preparation.size import Size

HELP = "download, tokenise, shuffle and shard text; `data show DIR` and `data verify DIR` look at the result"
EXAMPLE = "onecard data fineweb-edu --tokens 3.7B"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="*",
        metavar="SOURCE",
        help="fineweb-edu, fineweb (also :sample-10BT, :sample-100BT, :sample-350BT), "
        "hf:owner/name[:config][@revision], "
        "kjj0/fineweb10B-gpt2, files and folders of parquet, jsonl or text, stdlib (the default); "
        "or `show DIR`, `verify DIR`",
    )
    parser.add_argument(
        "--tokens", type=parse_count, metavar="N", help="stop at about so many tokens: 3.7B, 100M"
    )
    parser.add_argument("--out", metavar="DIR", help="the folder to make (data/NAME)")
    parser.add_argument(
        "--val-fraction", type=_number, metavar="F", help="share of documents kept for validation"
    )
    parser.add_argument(
        "--seed", type=_whole, default=1337, metavar="S", help="of the shuffle (1337)"
    )
    parser.add_argument("--workers", type=_whole, metavar="N", help="processes (one per core)")
    parser.add_argument(
        "--tokenizer",
        default="gpt2",
        metavar="T",
        help="gpt2, bytes, chars, or bpe:8192 to train one (gpt2)",
    )
    parser.add_argument(
        "--column", default="text", metavar="C", help="the column that holds the text (text)"
    )
    parser.add_argument(
        "--min-chars", type=_whole, default=0, metavar="N", help="leave out shorter documents"
    )
    parser.add_argument(
        "--language", metavar="L", help="keep documents whose `language` column says L"
    )
    parser.add_argument(
        "--min-language-score",
        type=_number,
        metavar="P",
        help="and whose `language_score` is at least P",
    )
    parser.add_argument(
        "--dedup", action="store_true", help="drop exact copies of earlier documents"
    )
    parser.add_argument(
        "--shard-tokens",
        type=parse_count,
        default=100_000_000,
        metavar="N",
        help="tokens in a shard (100M)",
    )
    parser.add_argument("--name", metavar="NAME", help="the set's name, in its files' names")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="throw away what an unfinished run left, and begin anew",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what it will take")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(args: argparse.Namespace) -> int:
    if args.source and args.source[0] in ("show", "verify"):
        if len(args.source) != 2:
            raise UserError(
                f"`onecard data {args.source[0]}` takes one folder",
                hint=f"onecard data {args.source[0]} data/stdlib",
            )
        return (_show if args.source[0] == "show" else _verify)(args.source[1], args.json)
    options = {
        key: getattr(args, key)
        for key in (
            "val_fraction",
            "seed",
            "tokenizer",
            "column",
            "min_chars",
            "language",
            "min_language_score",
            "dedup",
            "shard_tokens",
            "name",
        )
    }
    _need_libraries()
    if args.dry_run:
        from onecard.data.preparation.pipeline import sized

        size, folder = sized(args.source, args.out, args.tokens, workers=args.workers, **options)
        print(json.dumps(size.__dict__) if args.json else _sizes(size, folder))
        return 0
    from onecard.data import prepare

    quiet = args.json
    with _Bar() as bar:
        manifest = prepare(
            args.source,
            args.out,
            args.tokens,
            workers=args.workers,
            fresh=args.fresh,
            progress=bar.tell,
            announce=None if quiet else lambda size, folder: bar.say(_sizes(size, folder)),
            **options,
        )
    if args.json:
        print(json.dumps(manifest.to_json(), ensure_ascii=False))
        return 0
    print(
        f"{manifest.name}: {show_count(manifest.tokens)} tokens"
        + _shortfall(manifest.tokens, args.tokens)
    )
    for name, split in manifest.splits.items():
        counts = f"{split['tokens']:>15,} tokens  {split['documents']:>11,} documents  {len(split['shards'])} shards"
        print(f"  {name:5} {counts}")
    if manifest.bytes_per_token:
        print(f"  {manifest.bytes_per_token:.2f} bytes of text per token; {manifest.order}")
    for why, count in manifest.skipped.items():
        print(f"  left out: {count:,} {why}")
    return 0


def _need_libraries() -> None:
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"preparing data needs {error.name}", hint='pip install "onecard[train]"'
        ) from None


def _sizes(size: "Size", folder: Path) -> str:
    download = f"download {show_bytes(size.download_bytes)}, " if size.download_bytes else ""
    return (
        f"about {show_count(size.tokens)} tokens into {folder}: {download}shards {show_bytes(size.out_bytes)}, "
        f"work space {show_bytes(size.work_bytes)}, about {show_duration(size.seconds)}"
    )


def _shortfall(tokens: int, wanted: int | None) -> str:
    return (
        f" (all there is; {show_count(wanted)} were asked for)"
        if wanted and tokens < wanted
        else ""
    )


class _Bar:
    """MB/s, tokens and time left: a bar on a terminal, a line now and then in a pipe."""

    def __init__(self) -> None:
        self.live: Any = None
        self.task: Any = None
        self.stage = ""
        self.started = self.said = time.monotonic()
        self.first = 0.0

    def __enter__(self) -> "_Bar":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self.live = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[what]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, text: str) -> None:
        if self.live is not None:
            self.live.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr)

    def tell(self, event: "Event") -> None:
        now = time.monotonic()
        if event.stage != self.stage:
            self.stage, self.started, self.first = event.stage, now, event.done
            if self.live is not None:
                if self.task is not None:
                    self.live.remove_task(self.task)
                self.task = self.live.add_task(event.stage, total=event.total, what="")
        rate = (event.done - self.first) / max(now - self.started, 1e-9)
        unit = "MB/s" if event.stage in ("tokenising", "downloading") else "M tokens/s"
        what = f"{rate / 1e6:.0f} {unit}, {show_count(event.tokens)} tokens"
        if self.live is not None:
            self.live.update(self.task, completed=event.done, total=event.total, what=what)
        elif now - self.said > 10:
            self.said = now
            left = show_duration((event.total - event.done) / rate) if rate > 0 else "?"
            print(
                f"{event.stage}: {event.done / max(event.total, 1):.0%}, {what}, {left} left",
                file=sys.stderr,
            )


def _show(path: str, as_json: bool) -> int:
    from onecard.data.read.look import look

    found = look(path)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return 0
    print(f"{found['name']}  ({found['path']}, {found['format']} format)")
    for source in found["sources"]:
        revision = f" @ {source['revision']}" if source.get("revision") else ""
        print(
            f"  from {source['uri']}{revision}"
            + (f", licence {source['licence']}" if source.get("licence") else "")
        )
    for name, split in found["splits"].items():
        documents = (
            f"{split['documents']:>12,} documents" if split.get("documents") is not None else ""
        )
        disk = f"{split['shards']} shards, {show_bytes(split['disk_bytes'])}"
        print(f"  {name:5} {split['tokens']:>15,} tokens {documents} {disk}")
    tokenizer = found["tokenizer"]
    print(
        f"  tokeniser {tokenizer['name']}, {tokenizer['vocab_size']:,} ids"
        if tokenizer
        else "  tokeniser unknown"
    )
    if found["bytes_per_token"]:
        print(f"  {found['bytes_per_token']:.2f} bytes of text per token")
    for sample in found["samples"]:
        print(f"\n  --- {sample['split']}, token {sample['at']:,}")
        print("  " + sample["text"].replace("\n", "\n  "))
    print(
        "\n  health: "
        + (
            "; ".join(found["problems"])
            or "lengths, headers and looked-at ids are well; `onecard data verify` reads every byte"
        )
    )
    return 1 if found["problems"] else 0


def _verify(path: str, as_json: bool) -> int:
    from onecard.data import open_dataset

    data = open_dataset(path)
    found = {name: split.verify() for name, split in data.splits.items()}
    problems = [problem for each in found.values() for problem in each]
    known = all(shard.sha256 for split in data.splits.values() for shard in split.shards)
    tokens = sum(split.tokens for split in data.splits.values())
    if as_json:
        print(
            json.dumps(
                {
                    "path": str(data.path),
                    "tokens": tokens,
                    "sha256_known": known,
                    "problems": problems,
                }
            )
        )
        return 1 if problems else 0
    if problems:
        raise RunFailure(
            f"{data.path} is damaged: {'; '.join(problems)}",
            hint="delete those files' folder and prepare it again",
        )
    what = (
        "every sha256, header and id" if known else "every header and id (no sha256 is on record)"
    )
    print(
        f"{data.path}: {tokens:,} tokens in {sum(len(s.shards) for s in data.splits.values())} files; {what} is right"
    )
    return 0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{text!r} is not a number", hint="write it like 0.005") from None


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise UserError(f"{text!r} is not a whole number", hint="write it like 4")
    return value
