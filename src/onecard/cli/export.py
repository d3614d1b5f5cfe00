"""`onecard export`: a trained model as files that other programs load."""

import argparse
import json
from pathlib import Path

from onecard.cli.options import add_tokenizer
from onecard.errors import UserError
from onecard.units import show_bytes

HELP = "Write a run's model for transformers (hf), llama.cpp (gguf) or nanoGPT, with a model card."
EXAMPLE = "onecard export out --to hf --out my-model"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a run's folder (its out_dir), or one checkpoint in it"
    )
    parser.add_argument(
        "--to", required=True, choices=("hf", "gguf", "nanogpt"), help="target format"
    )
    parser.add_argument("--out", metavar="DIR", help="the folder to write (default: RUN-TO)")
    parser.add_argument(
        "--dtype",
        metavar="KIND",
        help="hf: float32 (default), float16, bfloat16; gguf: f32, f16 (default), bf16, q8_0",
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier export")
    add_tokenizer(parser)
    parser.add_argument(
        "--push", metavar="NAME", help="send the hf folder to the hub as NAME (private)"
    )
    parser.add_argument("--public", action="store_true", help="with --push: not private")
    parser.add_argument("--json", action="store_true", help="what was written, as JSON")


def run(args: argparse.Namespace) -> int:
    from onecard.export.write import export

    if args.push and args.to != "hf":
        raise UserError("only --to hf can be pushed to the hub", hint="--to hf --push NAME")
    source = Path(args.run)
    target = Path(args.out) if args.out else source.with_name(f"{source.name}-{args.to}")
    written = export(
        source, args.to, target, dtype=args.dtype, force=args.force, dataset=args.dataset
    )
    address = None
    if args.push:
        from onecard.export.push import push

        address = push(written.path, args.push, private=not args.public)
    if args.json:
        answer = {
            "path": str(written.path),
            "bytes": written.bytes,
            "step": written.step,
            "files": list(written.files),
            "notes": list(written.notes),
            "address": address,
        }
        print(json.dumps(answer))
        return 0
    print(f"wrote {written.path}: step {written.step:,}, {show_bytes(written.bytes)}")
    for name in written.files:
        print(f"  {name}")
    for note in written.notes:
        print(f"note: {note}")
    if address:
        print(f"sent to {address}")
    return 0
