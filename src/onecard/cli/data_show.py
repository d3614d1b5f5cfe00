"""`onecard data show DIR` and `onecard data verify DIR`. Names and texts are untrusted: they are made printable."""

import json
from typing import Any

from onecard.errors import OnecardError, RunFailure
from onecard.units import show_bytes
from onecard.untrusted import printable


def show(path: str, as_json: bool) -> int:
    from onecard.data.read.preview import preview

    content = preview(path)
    if as_json:
        print(json.dumps(content))
    else:
        print("\n".join(printable(line) for line in _lines(content)))
    return 1 if content["problems"] else 0


def documents(split: dict[str, Any]) -> str:
    """The word beside their number, padded so that columns keep their place."""
    return "document " if split["documents"] == 1 else "documents"


def _lines(content: dict[str, Any]) -> list[str]:
    lines = [f"{content['name']}  ({content['path']}, {content['format']} format)"]
    for source in content["sources"]:
        revision = f" @ {source['revision']}" if source.get("revision") else ""
        licence = f", licence {source['licence']}" if source.get("licence") else ""
        lines.append(f"  from {source['uri']}{revision}{licence}")
    for name, split in content["splits"].items():
        counted = (
            f"{split['documents']:>12,} {documents(split)}"
            if split.get("documents") is not None
            else ""
        )
        files = f"{split['shards']} shard{'s' * (split['shards'] != 1)}"
        disk = f"{files}, {show_bytes(split['disk_bytes'])}"
        lines.append(f"  {name:5} {split['tokens']:>15,} tokens {counted} {disk}")
    tokenizer = content["tokenizer"]
    lines.append(
        f"  tokeniser {tokenizer['name']}, {tokenizer['vocab_size']:,} ids"
        if tokenizer
        else "  tokeniser unknown"
    )
    if content["bytes_per_token"]:
        lines.append(f"  {content['bytes_per_token']:.2f} bytes of text per token")
    for sample in content["samples"]:
        lines += ["", f"  --- {sample['split']}, token {sample['at']:,}"]
        lines += [f"  {line}" for line in sample["text"].split("\n")]
    health = "; ".join(content["problems"]) or (
        "lengths, headers, tokeniser and sampled ids are right; "
        "`onecard data verify` reads every byte"
    )
    return [*lines, "", f"  health: {health}"]


def verify(path: str, as_json: bool) -> int:
    from onecard.data import Dataset, scan

    data = Dataset(scan(path))
    problems = [problem for split in data.splits.values() for problem in split.verify()]
    try:
        if data.tokenizer is not None:
            data.tokenizer.encode("")  # loads all of it
    except OnecardError as error:
        problems.append(error.message)
    known = all(shard.sha256 for split in data.splits.values() for shard in split.shards)
    tokens = sum(split.tokens for split in data.splits.values())
    if as_json:
        answer = {
            "path": str(data.path),
            "tokens": tokens,
            "sha256_known": known,
            "problems": problems,
        }
        print(json.dumps(answer))
        return 1 if problems else 0
    if problems:
        raise RunFailure(
            f"{data.path} is damaged: {'; '.join(problems)}",
            hint="put the right files back, or prepare the data again",
        )
    what = "every sha256, header and id" if known else "every header and id (no sha256 is recorded)"
    files = sum(len(split.shards) for split in data.splits.values())
    print(
        printable(
            f"{data.path}: {tokens:,} tokens in {files} files; {what} is right, the tokeniser too"
        )
    )
    return 0
