"""`onecard sample`: text from a trained model."""

import argparse
import sys
from typing import Any

HELP = "Text from a run's newest checkpoint: streamed, with a key-value cache; words it cannot decode are never drawn."
EXAMPLE = 'onecard sample out "ROMEO:" --tokens 200 --temperature 0.8 --top-k 200'


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a run's folder (its out_dir), or one checkpoint in it"
    )
    parser.add_argument(
        "prompt", nargs="?", default="", metavar="PROMPT", help="what it goes on from"
    )
    parser.add_argument(
        "--tokens", type=int, default=200, metavar="N", help="tokens to add (default 200)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0 takes the likeliest (default 0.8)"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw among the K likeliest only")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw among the likeliest that make up P only"
    )
    parser.add_argument(
        "--seed", type=int, default=1337, help="same seed, same text (default 1337)"
    )
    parser.add_argument(
        "--n", type=int, default=1, metavar="N", help="how many texts, side by side (default 1)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument(
        "--dataset", metavar="NAME", help="whose tokeniser to use, if the run's is gone"
    )
    parser.add_argument("--json", action="store_true", help="prompt, texts and token ids as JSON")


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    _check(args)
    from onecard.model.generate import generate, load_run

    sampler = load_run(
        Path(args.run), args.device, args.dataset, lambda text: print(text, file=sys.stderr)
    )
    prompt = sampler.encode(args.prompt)
    drawn = generate(
        sampler.model,
        [prompt] * args.n,
        args.tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        vocab_size=sampler.vocab_size,
    )
    if args.n == 1 and not args.json:
        _stream(args.prompt, drawn, sampler.tokenizer)
        return 0
    ids = [list(row) for row in zip(*drawn, strict=True)]
    texts = [sampler.tokenizer.decode(row) for row in ids]
    if args.json:
        import json

        print(
            json.dumps(
                {"prompt": args.prompt, "step": sampler.step, "texts": texts, "ids": ids},
                ensure_ascii=False,
            )
        )
    else:
        print("\n---------------\n".join(args.prompt + text for text in texts))
    return 0


def _stream(prompt: str, drawn: Any, tokenizer: Any) -> None:
    """Each word as it comes; bytes that are half a character wait for the rest."""
    sys.stdout.write(prompt)
    ids: list[int] = []
    for (token,) in drawn:
        ids.append(token)
        text = tokenizer.decode(ids)
        if not text.endswith("\ufffd") or len(ids) > 4:
            sys.stdout.write(text)
            sys.stdout.flush()
            ids = []
    sys.stdout.write((tokenizer.decode(ids) if ids else "") + "\n")


def _check(args: argparse.Namespace) -> None:
    from onecard.errors import UserError

    for name, good, example in (
        ("tokens", args.tokens >= 1, "--tokens 200"),
        ("n", args.n >= 1, "--n 3"),
        ("temperature", 0 <= args.temperature < 1e6, "--temperature 0.8"),
        ("top_k", args.top_k is None or args.top_k >= 1, "--top-k 200"),
        ("top_p", args.top_p is None or 0 < args.top_p <= 1, "--top-p 0.9"),
    ):
        if not good:
            raise UserError(
                f"--{name.replace('_', '-')} cannot be {getattr(args, name)}",
                hint=f"for example {example}",
            )
