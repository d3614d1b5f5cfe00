"""`onecard sample`: text from a checkpoint."""

import argparse
import sys
from typing import TYPE_CHECKING

from onecard.cli.options import add_tokenizer, check_counts, print_json
from onecard.cli.sampling_options import add_sampling, sampling_of

if TYPE_CHECKING:
    from onecard.model.text_pieces import TextStream

HELP = "Text from a run's newest checkpoint: streamed, with a key-value cache; words it cannot decode are never drawn."
EXAMPLE = 'onecard sample out "ROMEO:" --tokens 200 --temperature 0.8 --top-k 200'


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run's folder (its out_dir), one checkpoint in it, an export, a released GPT-2",
    )
    parser.add_argument("prompt", nargs="?", default="", metavar="PROMPT", help="text to continue")
    parser.add_argument(
        "--tokens", type=int, default=200, metavar="N", help="tokens to add (default 200)"
    )
    add_sampling(parser)
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end where this text would come; repeatable",
    )
    parser.add_argument(
        "--n", type=int, default=1, metavar="N", help="how many texts, side by side (default 1)"
    )
    add_tokenizer(parser)
    parser.add_argument("--json", action="store_true", help="prompt, texts and token ids as JSON")


def run(args: argparse.Namespace) -> int:
    check_counts(args, tokens="200", n="3")
    sampling = sampling_of(args)
    from onecard.model.opening import open_model
    from onecard.model.text_pieces import stream_together, texts_after

    sampler = open_model(
        args.run, args.device, args.dataset, lambda text: print(text, file=sys.stderr)
    )
    prompt, stops = sampler.encode(args.prompt), args.stop
    streams = texts_after(
        sampler, prompt, sampling, args.n, most_tokens=args.tokens, stop_texts=stops
    )
    if args.n == 1 and not args.json:
        _show(args.prompt, streams[0])
        return 0
    for _ in stream_together(streams):
        pass
    texts = [stream.text for stream in streams]
    if args.json:
        ids = [stream.ids for stream in streams]
        print_json({"prompt": args.prompt, "step": sampler.step, "texts": texts, "ids": ids})
    else:
        print("\n---------------\n".join(args.prompt + text for text in texts))
    return 0


def _show(prompt: str, stream: "TextStream") -> None:
    """Each word as it comes."""
    sys.stdout.write(prompt)
    for piece in stream:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
