"""The whole way from sources to shards: resolve, size, tokenise, order, shard, manifest. Restartable at every point.

>>> prepare(["stdlib"], "data/stdlib", tokens=1_000_000).tokens                       # doctest: +SKIP
1000412

Everything unfinished lives in OUT/.work: plan.json (what was requested and found), parts/ (tokens of finished units),
order/, shards/. Each file there is whole or absent, and each is a function of the request alone, so a killed run
continues with what is there, and the result has the same bytes as an undisturbed one.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onecard.data.preparation.encode import Event
from onecard.data.preparation.mix_file import mix_of_words
from onecard.data.preparation.options import Options
from onecard.data.preparation.request import (
    default_name,
    has_results,
    planned,
    saved_plan,
    sized_sources,
    unchanged,
)
from onecard.data.preparation.result import InputDigests, finish
from onecard.data.preparation.size import Size, bytes_under, check_disk, estimate
from onecard.data.preparation.stages import Made, make_shards
from onecard.data.preparation.work_folder import REPLACED, WorkFolder
from onecard.data.read.layout import DATA_HOME, WORK, scan
from onecard.data.read.manifest import MANIFEST, Manifest, read_manifest
from onecard.data.sources.resolve import is_remote, resolve_source
from onecard.data.sources.source import content_digest, state_digest
from onecard.data.tokenizers.bpe import gpt2
from onecard.data.tokenizers.kinds import Tokenizer
from onecard.data.tokenizers.learn import tokenizer_of
from onecard.errors import OnecardError, RunFailure, UserError
from onecard.files import DISK_FULL

Report = Callable[[Event], None]
Announce = Callable[[Size, Path], None]


def prepare(
    sources: list[str],
    out: str | os.PathLike[str] | None = None,
    tokens: int | None = None,
    *,
    workers: int | None = None,
    fresh: bool = False,
    progress: Report | None = None,
    announce: Announce | None = None,
    **options: Any,
) -> Manifest:
    """Make (or finish) the data set of `sources` in the folder `out`; see Options for the rest.

    The same call continues what an earlier one left; a finished set that fits is returned as it is. `fresh` discards
    unfinished work and replaces a finished set, which stays as it is until the new one is whole.
    """
    words, chosen = _asked(sources, tokens, options)
    report = progress or (lambda event: None)
    adopted = _adoptable(words, chosen)
    if adopted is not None:
        from onecard.data.sources.ready_shards import adopt

        return adopt(adopted, out, report)
    chosen = chosen.resolved(words)
    request = chosen.digest_of(words)
    folder = _output(words, out, chosen)
    done = _finished(folder, request, words, chosen, fresh)
    if done is not None and not (folder / WORK).exists():
        return done
    with WorkFolder(folder) as work:
        done = _finished(folder, request, words, chosen, fresh)
        if done is not None:  # killed while it cleared away, or finished since we looked
            # work of another request stays; what has no plan any more is the rest of a clearing that was cut short
            work.remove_on_exit = _begun(folder) in (None, request)
            return done
        try:
            manifest = _prepare(
                words, work, chosen, request, _workers(workers), fresh, report, announce
            )
            work.remove_on_exit = True
            return manifest
        except OnecardError:
            # a mistyped word leaves no trace
            work.remove_on_exit = not has_results(work.path, REPLACED)
            raise
        except OSError as error:
            if error.errno in DISK_FULL:
                raise RunFailure(
                    f"the disk is full ({folder})",
                    hint="free some space, then run the same command: it continues where it stopped",
                ) from None
            raise RunFailure(
                f"{error.filename or folder}: {error.strerror or error}",
                hint="the same command continues",
            ) from None


def sized(
    sources: list[str],
    out: str | os.PathLike[str] | None = None,
    tokens: int | None = None,
    *,
    workers: int | None = None,
    **options: Any,
) -> tuple[Size, Path]:
    """What `prepare` with the same arguments will take, and where it will put it."""
    words, chosen = _asked(sources, tokens, options)
    if (adopted := _adoptable(words, chosen)) is not None:
        count = sum(shard.tokens for shards in scan(adopted).splits.values() for shard in shards)
        return Size(count, 0, 0, 0, 0.0), adopted
    chosen = chosen.resolved(words)
    sizes = sized_sources(words, chosen)
    size = estimate(sizes, str(chosen.tokenizer), chosen.tokens, _workers(workers), chosen)
    return size, _output(words, out, chosen)


def _asked(
    sources: list[str], tokens: int | None, options: dict[str, Any]
) -> tuple[list[str], Options]:
    """The sources without their shares, and the options with the mix that the shares or a mix file describe."""
    words, mix, whole = mix_of_words([str(word) for word in sources] or ["stdlib"])
    values = {**options, "tokens": tokens if tokens is not None else whole.get("tokens")}
    if whole.get("name") and not values.get("name"):
        values["name"] = whole["name"]
    if (values.get("repeat") or values.get("largest")) and not mix:
        raise UserError(
            "only a mix has sources to repeat", hint="give shares, as in fineweb-edu=60% notes/=40%"
        )
    return words, Options(**{**values, "mix": mix}).checked()


def _workers(chosen: int | None) -> int:
    return max(1, chosen or os.cpu_count() or 1)


def _output(words: list[str], out: str | os.PathLike[str] | None, options: Options) -> Path:
    return Path(out) if out is not None else DATA_HOME / (options.name or default_name(words))


def _adoptable(words: list[str], options: Options) -> Path | None:
    folders = [Path(word) for word in words if Path(word).is_dir()]
    ready = [
        folder
        for folder in folders
        if not (folder / WORK).exists() and _holds(folder, "*.bin", "*.ds", "*.npy")
    ]
    if not ready or (options.mix and not any(_holds(folder, "*.bin", "*.ds") for folder in ready)):
        return None  # arrays of ids are a source of a mix like any other
    if len(words) > 1:
        raise UserError(
            f"{ready[0]} holds tokens already, and is used as it is", hint="give it alone"
        )
    if options != Options(shard_tokens=options.shard_tokens):
        raise UserError(
            f"{ready[0]} holds tokens already: nothing of it is selected or encoded again",
            hint="give it without other options",
        )
    return ready[0]


def _holds(folder: Path, *kinds: str) -> bool:
    return any(any(folder.glob(kind)) for kind in kinds)


def _finished(
    folder: Path, request: str, words: list[str], options: Options, fresh: bool
) -> Manifest | None:
    """The set that is there, if it is the one asked for; None where there is work to do."""
    if not (folder / MANIFEST).is_file():
        if folder.is_dir() and not (folder / WORK).is_dir() and any(folder.iterdir()):
            raise UserError(
                f"{folder} holds other files",
                hint="choose an empty or new folder with the option `out`",
            )
        return None
    manifest = read_manifest(folder)
    if fresh:
        if not manifest.request:
            raise UserError(
                f"{folder} holds tokens that others made",
                hint="choose another folder with the option `out`",
            )
        return None
    changed = next((word for word in words if _changed(word, options, manifest)), None)
    if manifest.request == request and changed is None:
        return manifest
    if _begun(folder) == request:  # an earlier `fresh` of the same request: continue it
        return None
    other = (
        "replace it with the option `fresh` (it stays until the new one is finished), "
        "or choose another folder with the option `out`"
    )
    if manifest.request == request:
        raise UserError(f"{changed} has changed since {folder} was made from it", hint=other)
    uri = manifest.sources[0]["uri"] if manifest.sources else "unknown text"
    raise UserError(
        f"{folder} holds another data set already: {manifest.tokens:,} tokens of {uri}", hint=other
    )


def _begun(folder: Path) -> str | None:
    """The request of the unfinished work in a folder."""
    saved = saved_plan(folder / WORK)
    return None if saved is None else saved.request


def _changed(word: str, options: Options, manifest: Manifest) -> bool:
    """Whether a local source is other than when the set was made from it: by the file system's word, else by content."""
    if is_remote(word):
        return False  # the commit is fixed when the work begins
    source = resolve_source(word, options.tokens)
    seen = next((entry for entry in manifest.sources if entry["uri"] == source.uri), {})
    if seen.get("state") and seen["state"] == state_digest(source):
        return False
    return seen.get("files") != content_digest(source)


def _prepare(
    words: list[str],
    work: WorkFolder,
    options: Options,
    request: str,
    workers: int,
    fresh: bool,
    report: Report,
    announce: Announce | None,
) -> Manifest:
    plan = planned(words, options, request, work, fresh)
    size = estimate(plan.sources, plan.tokenizer, options.tokens, workers, options)
    check_disk(size, work.out, bytes_under(work.path))
    if announce is not None:
        announce(size, work.out)
    shards = work.folder("shards")
    work.folder("parts")
    digests = InputDigests(plan.sources)
    if any(source.pretokenized for source in plan.sources):
        from onecard.data.sources.ready_shards import take_shards

        tokenizer: Tokenizer = gpt2()
        made = Made(take_shards(plan.sources, options.tokens, shards, report))
    else:
        tokenizer = tokenizer_of(plan, work.path)
        made = make_shards(plan, work.path, tokenizer, workers, size, report)
    sources = digests.entries()
    unchanged(plan)
    return finish(plan, work, sources, tokenizer, made)
