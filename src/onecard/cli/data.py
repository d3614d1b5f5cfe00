"""`onecard data`: text to tokens, and a look at what is there."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard.cli.data_show import documents
from onecard.cli.options import number
from onecard.errors import UserError
from onecard.units import parse_count, show_bytes, show_count, show_duration
from onecard.untrusted import printable

if TYPE_CHECKING:
    from onecard.data.preparation.size import Size

HELP = "download, tokenise, shuffle and shard text; `data show DIR` and `data verify DIR` look at the result"
EXAMPLE = """onecard data stdlib                            # no download
  onecard data fineweb-edu --tokens 3.7B
  onecard data fineweb-edu=60% cosmopedia=30% my_notes/=10% --tokens 3B --out data/mix"""

_OPTIONS = (
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
    "template",
    "where",
    "separator",
    "repeat",
    "largest",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="*",
        metavar="SOURCE",
        help="fineweb-edu, fineweb (also :sample-10BT, :sample-100BT, :sample-350BT), "
        "hf:owner/name[:config][@revision], "
        "kjj0/fineweb10B-gpt2, shakespeare_char, shakespeare_char=FILE, "
        "files and folders of parquet, jsonl or text, stdlib (the default); "
        "a mix: NAME=60%% for each, or a mix file (.toml); "
        "or `show DIR`, `verify DIR`",
    )
    parser.add_argument(
        "--tokens", type=parse_count, metavar="N", help="stop at about this many tokens: 3.7B, 100M"
    )
    parser.add_argument("--out", metavar="DIR", help="the folder to make (data/NAME)")
    parser.add_argument(
        "--val-fraction", type=number, metavar="F", help="share of documents kept for validation"
    )
    parser.add_argument(
        "--seed", type=_whole, default=1337, metavar="S", help="of the shuffle (1337)"
    )
    parser.add_argument("--workers", type=_whole, metavar="N", help="processes (one per core)")
    parser.add_argument(
        "--tokenizer",
        metavar="T",
        help="gpt2, bytes, chars, or bpe:8192 to train one (gpt2; chars for shakespeare_char)",
    )
    _add_selection(parser)
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
        help="start again: discard what an unfinished run left, replace a finished set once the new one is whole",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what it will take")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    """Which documents are taken, and what of them."""
    parser.add_argument(
        "--column", default="text", metavar="C", help="the column that holds the text (text)"
    )
    parser.add_argument(
        "--min-chars", type=_whole, default=0, metavar="N", help="leave out shorter documents"
    )
    parser.add_argument(
        "--language", metavar="L", help="keep documents whose `language` column is L"
    )
    parser.add_argument(
        "--min-language-score",
        type=number,
        metavar="P",
        help="and whose `language_score` is at least P",
    )
    parser.add_argument(
        "--dedup",
        nargs="?",
        const="exact",
        choices=["exact", "near"],
        help="drop exact copies of earlier documents; `near`: near copies too (MinHash)",
    )
    parser.add_argument(
        "--template", metavar="T", help='text made of several columns: "{title}\\n\\n{text}"'
    )
    parser.add_argument(
        "--where",
        action="append",
        metavar="COND",
        help="keep rows whose column matches: language=en, int_score>=4 (may be repeated)",
    )
    parser.add_argument(
        "--separator", metavar="S", help="what stands between the documents of a text file"
    )
    parser.add_argument(
        "--repeat", action="store_true", help="a mix: repeat a source that is too small"
    )
    parser.add_argument(
        "--largest",
        action="store_true",
        help="a mix: the largest without repetition, if --tokens is too much for a source",
    )


def run(args: argparse.Namespace) -> int:
    if args.source and args.source[0] in ("show", "verify"):
        from onecard.cli import data_show

        if len(args.source) != 2:
            raise UserError(
                f"`onecard data {args.source[0]}` takes one folder",
                hint=f"onecard data {args.source[0]} data/stdlib",
            )
        command = data_show.show if args.source[0] == "show" else data_show.verify
        return command(args.source[1], args.json)
    return _dry_run(args) if args.dry_run else _prepare(args)


def _dry_run(args: argparse.Namespace) -> int:
    from onecard.data.preparation.pipeline import sized

    size, folder = sized(args.source, args.out, args.tokens, workers=args.workers, **_chosen(args))
    print(json.dumps(size.__dict__) if args.json else printable(_sizes(size, folder), keep="\n"))
    return 0


def _chosen(args: argparse.Namespace) -> dict[str, Any]:
    """The options as the library takes them; \\n and \\t in templates and separators are what they say."""
    values = {key: getattr(args, key) for key in _OPTIONS}
    values["dedup"] = {None: False, "exact": True, "near": "near"}[args.dedup]
    values["where"] = tuple(args.where or ())
    for key in ("template", "separator"):
        if values[key] is not None:
            values[key] = values[key].replace("\\n", "\n").replace("\\t", "\t")
    return values


def _prepare(args: argparse.Namespace) -> int:
    from onecard.cli.data_progress import ProgressBar
    from onecard.data import prepare

    with ProgressBar() as bar:
        manifest = prepare(
            args.source,
            args.out,
            args.tokens,
            workers=args.workers,
            fresh=args.fresh,
            progress=bar.update,
            announce=None if args.json else lambda size, folder: bar.print(_sizes(size, folder)),
            **_chosen(args),
        )
    if args.json:
        print(json.dumps(manifest.to_json()))
        return 0
    shortfall = "" if args.repeat else _shortfall(manifest.tokens, args.tokens)
    print(printable(f"{manifest.name}: {show_count(manifest.tokens)} tokens{shortfall}"))
    for name, split in manifest.splits.items():
        counts = (
            f"{split['tokens']:>15,} tokens  {split['documents']:>11,} {documents(split)}  "
            f"{len(split['shards'])} shard{'s' * (len(split['shards']) != 1)}"
        )
        print(f"  {name:5} {counts}")
    if manifest.bytes_per_token:
        print(f"  {manifest.bytes_per_token:.2f} bytes of text per token; {manifest.order}")
    for source in manifest.sources:
        if "share" in source:
            print(printable(f"  {_source_line(source)}"))
    if manifest.duplicates and "duplicate" not in manifest.skipped:
        copies = "exact copy" if manifest.duplicates == 1 else "exact copies"
        print(f"  {manifest.duplicates:,} {copies} of earlier documents; --dedup drops them")
    for reason, count in manifest.skipped.items():
        print(f"  left out: {count:,} {reason}")
    return 0


def _source_line(source: dict[str, Any]) -> str:
    asked = f" ({source['share_asked']:.2%} asked)" if "share_asked" in source else ""
    times = f", {source['epochs']:.1f} times" if source["epochs"] > 1.005 else ""
    val = source["splits"]["val"]["tokens"]
    return f"{source['name']}: {source['share']:.2%}{asked}{times}; {val:,} tokens for validation"


def _sizes(size: "Size", folder: Path) -> str:
    download = f"download {show_bytes(size.download_bytes)}, " if size.download_bytes else ""
    repeats = "".join(
        f"\n{name} is too small for its share and is repeated about {times:.1f} times"
        for name, times in size.repeats
    )
    repeats += "".join(
        f"\n{name} may be too small: its share is {times:.2f} times what it has (± {margin:.0%} of that); "
        "it is counted first"
        for name, times, margin in size.uncertain
    )
    return (
        f"about {show_count(size.tokens)} tokens into {folder}: {download}shards {show_bytes(size.out_bytes)}, "
        f"work space {show_bytes(size.work_bytes)}, about {show_duration(size.seconds)}{repeats}"
    )


def _shortfall(tokens: int, wanted: int | None) -> str:
    return (
        f" (all there is; {show_count(wanted)} were asked for)"
        if wanted
        and tokens < 0.99 * wanted  # documents are whole: a mix ends near, not at, its goal
        else ""
    )


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise UserError(f"{text!r} is not a whole number", hint="write it like 4")
    return value
