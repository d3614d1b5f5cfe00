"""A SkyPilot task for `sky jobs launch`: a managed job on spot machines, its checkpoints in a bucket.

The run's folder lies on the machine's own disk, because buckets know neither renames nor appended lines; whole checkpoints
are copied to the bucket, then the log. A machine that takes over copies them back and continues (`onecard train --continue`).
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from onecard.errors import UserError
from onecard.launch.install import Install, wheel_name
from onecard.launch.job import Job, plain
from onecard.launch.shell import config_written, data_folder, quoted, training

_BUCKET = re.compile(r"(?:[a-z0-9]+://)?[A-Za-z0-9][A-Za-z0-9._/-]*")
_ACCELERATOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOUNT = "/onecard-bucket"


@dataclass(frozen=True)
class SkyOptions:
    bucket: str  # s3://name, gs://name, or a name for SkyPilot to make one
    install: Install
    accelerators: tuple[str, ...] = ()  # SkyPilot's own names; none: from the card's
    spot: bool = True
    most_per_hour: float | None = None  # of the whole machine, in USD
    set_up: tuple[str, ...] = ()
    prepare: str | None = None
    upload: Path | None = None
    every_seconds: int = 300


def skypilot_text(job: Job, options: SkyOptions) -> str:
    head = f"{job.name}: made by `onecard launch`; start it with `sky jobs launch FILE`"
    task: dict[str, object] = {
        "name": job.name.lower().replace("_", "-").replace(".", "-"),
        "resources": _resources(job, options),
        "file_mounts": _mounts(options),
        "setup": _set_up(options),
        "run": _run(job, options),
    }
    return f"# {head}\n" + _yaml(task)


def _yaml(value: dict[str, object], indent: str = "") -> str:
    """Mappings in blocks, scripts as literal blocks, everything else in JSON's spelling, which is YAML's too."""
    lines = []
    for key, each in value.items():
        name = key if re.fullmatch(r"[a-z_]+", key) else json.dumps(key)
        if isinstance(each, dict):
            lines.append(f"{indent}{name}:\n{_yaml(each, indent + '  ')}".rstrip("\n"))
        elif isinstance(each, str) and "\n" in each:
            text = "\n".join(f"{indent}  {line}" if line else "" for line in each.splitlines())
            lines.append(f"{indent}{name}: |\n{text}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(each)}")
    return "\n".join(lines) + "\n"


def _resources(job: Job, options: SkyOptions) -> dict[str, object]:
    resources: dict[str, object] = {}
    if not job.on_cpu:
        wanted = [f"{name}:{job.cards}" for name in accelerators(job, options.accelerators)]
        resources["accelerators"] = wanted[0] if len(wanted) == 1 else wanted
    resources["use_spot"] = options.spot
    if options.most_per_hour is not None:
        resources["max_hourly_cost"] = round(options.most_per_hour, 4)
    # a machine that is taken away is replaced in any case; this is for errors of the run itself
    resources["job_recovery"] = {"max_restarts_on_errors": 2}
    return resources


def accelerators(job: Job, asked: tuple[str, ...]) -> tuple[str, ...]:
    """SkyPilot's names of the card."""
    for name in asked:
        if not _ACCELERATOR.fullmatch(name):
            raise UserError(
                f"{name!r} is not a name of SkyPilot's for a card",
                hint="`sky gpus list` has them, such as RTX4090 or A100-80GB",
            )
    names = asked or (job.rental.skypilot if job.rental is not None else ())
    if not names:
        raise UserError(
            f"what SkyPilot calls the {job.plan.device.name} is not known",
            hint="the option `accelerator=NAME` says it; `sky gpus list` has the names",
        )
    return names


def _mounts(options: SkyOptions) -> dict[str, object]:
    if not _BUCKET.fullmatch(options.bucket) or ".." in options.bucket:
        raise UserError(
            f"{options.bucket!r} is not a bucket", hint="write it like s3://my-bucket, or its name"
        )
    key = "source" if "://" in options.bucket else "name"
    mounts: dict[str, object] = {_MOUNT: {key: options.bucket, "mode": "MOUNT"}}
    local = options.install.local
    if local is not None:
        for file in options.install.files or (local.name,):
            source = local / file if local.is_dir() else local
            mounts[f"~/onecard-source/{file}"] = plain(str(source), "the option `install`")
    if options.upload is not None:
        folder = plain(str(options.upload.resolve()), "the option `upload`")
        mounts[f"~/onecard-job/{data_folder(options.upload)}"] = folder
    return mounts


def _set_up(options: SkyOptions) -> str:
    lines = ["set -e", *(plain(line, "the option `set_up`") for line in options.set_up)]
    if options.install.needed:
        local = options.install.local
        if local is None:
            what = quoted(options.install.requirement or "", "the option `install`")
        else:
            name = "" if local.is_dir() else f"/{wheel_name(local)}"
            what = f'"$HOME/onecard-source{name}[train]"'
        lines += [
            "[ -x ~/onecard-venv/bin/python ] || python3 -m venv --system-site-packages ~/onecard-venv",
            f"~/onecard-venv/bin/python -m pip --disable-pip-version-check install -q {what}",
        ]
    return "\n".join(lines) + "\n"


def _run(job: Job, options: SkyOptions) -> str:
    lines = [
        "set -e",
        *(plain(line, "the option `set_up`") for line in options.set_up),
        "mkdir -p ~/onecard-job && cd ~/onecard-job",
        "if [ -d ~/onecard-venv ]; then PATH=~/onecard-venv/bin:$PATH; fi",
        "export PATH PYTHONUNBUFFERED=1",
        f"bucket={_MOUNT}/{job.name} every={options.every_seconds}",
        _TAKE_UP,
    ]
    if options.prepare is not None:
        lines.append(plain(options.prepare, "the option `prepare`"))
    lines += [
        config_written(job, options.upload),
        '(while sleep "$every"; do keep || true; done) &',
        "keeper=$!",
        training(job, "python3", "run.toml") + " &",
        _END,
    ]
    return "\n".join(lines)


_TAKE_UP = """\
# a bucket takes whole files: checkpoints first, state.json last in each, then the log
keep() {
  [ -d run/checkpoints ] || return 0
  rsync -r --inplace --size-only --delete --exclude='.*' run/checkpoints "$bucket/"
  rsync -r --inplace --ignore-times --exclude=/checkpoints --exclude=run.lock --exclude='.*' run/ "$bucket/"
}
mkdir -p "$bucket"
if [ -d "$bucket/checkpoints" ]; then # another machine was here before
  mkdir -p run
  rsync -r "$bucket/" run/
  for folder in run/checkpoints/step_*; do # one that was cut off has no state.json
    [ -s "$folder/state.json" ] || rm -rf "$folder"
  done
fi"""

_END = """\
training=$!
trap 'kill -TERM "$training"' TERM
code=0
wait "$training" || code=$?
while kill -0 "$training" 2>/dev/null; do # a signal ended the wait, not the run
  code=0
  wait "$training" || code=$?
done
kill "$keeper" || true
keep
exit "$code"
"""
