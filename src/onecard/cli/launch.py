"""`onecard launch`: a job file for Slurm, SkyPilot or a machine over ssh."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onecard.advise.config_file import check_free, write_file
from onecard.cli.launch_options import configure as configure
from onecard.cli.options import print_json
from onecard.config import load
from onecard.data.read.layout import scan
from onecard.errors import UserError
from onecard.facts.gpus import find_gpu
from onecard.facts.prices import parse_money
from onecard.launch import Job, make_job
from onecard.launch.install import install_of
from onecard.launch.job import announcement
from onecard.launch.money import highest_price, rental_of, within_budget
from onecard.launch.skypilot import SkyOptions, skypilot_text
from onecard.launch.slurm import SlurmOptions, slurm_text
from onecard.launch.ssh import SshOptions, ssh_text
from onecard.launch.submit import command, require_program, submit
from onecard.runs.record import holds_a_run
from onecard.units import parse_duration

HELP = (
    "Write (with --submit: start) a job that trains a config elsewhere: on a Slurm cluster, on rented spot machines "
    "through SkyPilot, or on one rented machine over ssh."
)
EXAMPLE = """onecard launch run.toml --on slurm --gpu "A100 80GB" --cards 4 --sbatch=--partition=gpu
  onecard launch run.toml --on skypilot --gpu MI300X --bucket s3://my-runs --budget 30USD --prepare "onecard data fineweb-edu --tokens 3B"
  onecard launch run.toml --on ssh --gpu "RTX 4090" --host root@203.0.113.7 --upload data/fineweb-edu --submit"""
ENDINGS = {"slurm": ".sbatch", "skypilot": ".sky.yaml", "ssh": ".ssh.sh"}
# options that only some engines know
ONLY = {
    "nodes": ("slurm",),
    "time": ("slurm",),
    "sbatch": ("slurm",),
    "cpus": ("slurm",),
    "python": ("slurm", "ssh"),
    "bucket": ("skypilot",),
    "accelerator": ("skypilot",),
    "on_demand": ("skypilot",),
    "budget": ("skypilot", "ssh"),
    "max_price": ("skypilot", "ssh"),
    "host": ("ssh",),
    "port": ("ssh",),
    "ssh_option": ("ssh",),
    "install": ("skypilot", "ssh"),
    "prepare": ("skypilot", "ssh"),
    "upload": ("skypilot", "ssh"),
    "every": ("skypilot", "ssh"),
}


def run(args: argparse.Namespace) -> int:
    _check_options(args)
    if args.submit:
        require_program(args.on)
    job = _job(args)
    path = Path(args.out or f"{job.name}{ENDINGS[args.on]}")
    check_free(path, args.force)
    text = _text(job, args)
    if not args.json:
        print("\n".join(announcement(job)))
    write_file(path, text)
    if not args.json:
        print(
            f"wrote {path}"
            + ("" if args.submit else f"; start it with `{' '.join(command(args.on, path))}`")
        )
    job_id = submit(args.on, path, quiet=args.json) if args.submit else None
    if job_id is not None and not args.json:
        print(f"submitted: job {job_id}; `squeue -j {job_id}` shows how it stands")
    if args.json:
        print_json(_answer(job, args, path, job_id))
    return 0


def _check_options(args: argparse.Namespace) -> None:
    for name, engines in ONLY.items():
        if getattr(args, name) not in (None, False, []) and args.on not in engines:
            raise UserError(
                f"--{name.replace('_', '-')} is not for --on {args.on}",
                hint=f"it belongs to --on {' and '.join(engines)}",
            )
    for engine, name, example in (
        ("ssh", "host", "--host root@203.0.113.7"),
        ("skypilot", "bucket", "--bucket s3://my-runs, where the checkpoints outlive a machine"),
    ):
        if args.on == engine and not getattr(args, name):
            raise UserError(f"--on {engine} needs --{name}", hint=f"such as {example}")
    if args.on != "slurm" and not (args.prepare or args.upload):
        raise UserError(
            "nothing brings the data to the machine",
            hint='--upload data/NAME sends prepared data; --prepare "onecard data …" makes it there',
        )


def _job(args: argparse.Namespace) -> Job:
    config = load(args.config, args.overrides)
    if args.budget is not None:
        rental = rental_of(find_gpu(args.gpu).name) if args.gpu else None
        config = within_budget(config, rental, args.cards, parse_money(args.budget), args.max_price)
    folder = Path(config.out_dir)
    if args.on == "ssh" and holds_a_run(folder) and not (folder / "launched").is_file():
        raise UserError(
            f"{folder} holds a run already, and the new one would be copied over it",
            hint="name another --out_dir",
        )
    return make_job(
        config,
        args.gpu,
        cards=args.cards,
        nodes=args.nodes or 1,
        limit_seconds=None if args.time is None else parse_duration(args.time),
        name=args.name,
        link=args.link,
        restarts=args.max_restarts,
    )


def _text(job: Job, args: argparse.Namespace) -> str:
    if args.on == "slurm":
        return _slurm(job, args)
    common: dict[str, Any] = {
        "install": install_of(args.install),
        "set_up": tuple(args.set_up),
        "prepare": args.prepare,
        "upload": _upload(args.upload),
        "every_seconds": max(1, round(parse_duration(args.every or "5min"))),
    }
    if args.on == "ssh":
        python = args.python or "python3"
        more = {"host": args.host, "port": args.port, "ssh_options": tuple(args.ssh_option)}
        return ssh_text(job, SshOptions(**common, **more, python=python))
    capped = args.budget is not None or args.max_price is not None
    return skypilot_text(
        job,
        SkyOptions(
            **common,
            bucket=args.bucket,
            accelerators=tuple(args.accelerator),
            spot=not args.on_demand,
            most_per_hour=highest_price(job.rental, args.max_price) * job.cards if capped else None,
        ),
    )


def _slurm(job: Job, args: argparse.Namespace) -> str:
    # set-up lines choose an environment, so its Python; else the one that runs now, on a shared file system
    python = args.python or ("python" if args.set_up else sys.executable)
    return slurm_text(
        job,
        SlurmOptions(
            config=args.config,
            overrides=tuple(word.removeprefix("--") for word in args.overrides),
            folder=str(Path.cwd()),
            python=python,
            set_up=tuple(args.set_up),
            directives=tuple(args.sbatch),
            cpus_per_card=4 if args.cpus is None else args.cpus,
        ),
    )


def _upload(name: str | None) -> Path | None:
    if name is None:
        return None
    if not Path(name).is_dir():
        raise UserError(
            f"there is no folder {name} to upload",
            hint="`onecard data SOURCE --out data/NAME` makes one",
        )
    scan(Path(name))  # a folder without tokens is refused now, not when the machine costs money
    return Path(name)


def _answer(
    job: Job, args: argparse.Namespace, path: Path, job_id: str | None
) -> dict[str, object]:
    cost = job.cost
    return {
        "schema": "onecard.launch/1",
        "engine": args.on,
        "name": job.name,
        "file": str(path),
        "command": command(args.on, path),
        "submitted": args.submit,
        "job_id": job_id,
        "card": job.plan.device.name,
        "cards": job.cards,
        "nodes": job.nodes,
        "max_restarts": job.restarts,
        "seconds": asdict(job.plan.time.total_seconds),
        "limit_seconds": job.limit_seconds,
        "max_hours": job.config.max_hours,
        "memory_bytes": asdict(job.plan.memory.process_bytes),
        "card_bytes": job.plan.memory.card_bytes,
        "cost": None if cost is None else {"amount": cost[0], "currency": cost[1]},
    }
