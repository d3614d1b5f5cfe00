"""The options of `onecard launch`."""

import argparse

from onecard.cli.options import Once, add_config
from onecard.launch import ENGINES


def configure(parser: argparse.ArgumentParser) -> None:
    add_config(parser, required=True)
    parser.add_argument("--on", required=True, choices=ENGINES, help="which engine runs the job")
    parser.add_argument(
        "--gpu",
        action=Once,
        metavar="NAME",
        help='the card there ("A100 80GB", MI300X), or cpu (default: this machine\'s)',
    )
    parser.add_argument(
        "--cards",
        type=int,
        default=1,
        metavar="N",
        help="cards of a machine, a process each (default 1)",
    )
    parser.add_argument(
        "--link",
        metavar="NAME[,NAME]",
        help="what joins cards and machines, for the plan (as in plan)",
    )
    parser.add_argument("--name", metavar="NAME", help="the job's name (default: that of out_dir)")
    parser.add_argument(
        "--set-up",
        action="append",
        default=[],
        metavar="LINE",
        help='a line of shell before the run, such as "module load cuda"; repeatable',
    )
    parser.add_argument(
        "--python", metavar="PATH", help="slurm, ssh: the Python there (slurm default: this one)"
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often torchrun starts all processes again, from the last checkpoint, when one dies (default 0)",
    )
    parser.add_argument("--out", metavar="FILE", help="the file to write (default: from the name)")
    parser.add_argument("--force", action="store_true", help="let it replace a file")
    parser.add_argument(
        "--submit", action="store_true", help="start the job too; ssh: and look on until it ends"
    )
    parser.add_argument("--json", action="store_true", help="what was written, as JSON")
    _add_slurm(parser)
    _add_remote(parser)


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    slurm = parser.add_argument_group("--on slurm")
    slurm.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="machines with --cards each; they share a file system",
    )
    slurm.add_argument(
        "--time",
        metavar="TIME",
        help="the time limit, such as 4h; a longer run is saved and queued again (default: the plan's, with a margin)",
    )
    slurm.add_argument(
        "--cpus", type=int, metavar="N", help="processor cores for each card (default 4)"
    )
    slurm.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="another option of sbatch, as in --sbatch=--partition=gpu; repeatable",
    )


def _add_remote(parser: argparse.ArgumentParser) -> None:
    remote = parser.add_argument_group("--on skypilot and --on ssh")
    remote.add_argument(
        "--upload", metavar="FOLDER", help="prepared data to send along and train on"
    )
    remote.add_argument(
        "--prepare", metavar="LINE", help="a line of shell that makes the data there"
    )
    remote.add_argument(
        "--install",
        metavar="WHAT",
        help="what pip installs there: a requirement, a wheel, a checkout, or none (default: what is installed here)",
    )
    remote.add_argument(
        "--every", metavar="TIME", help="how often the run's folder is copied (default 5min)"
    )
    remote.add_argument(
        "--budget",
        metavar="MONEY",
        help="such as 30USD: sets max_hours by the highest accepted price",
    )
    remote.add_argument(
        "--max-price",
        type=float,
        metavar="P",
        help="the highest accepted price of a card and hour (default: the highest known for the card)",
    )
    sky = parser.add_argument_group("--on skypilot")
    sky.add_argument(
        "--bucket", metavar="BUCKET", help="where checkpoints go: s3://NAME, gs://NAME …"
    )
    sky.add_argument(
        "--accelerator",
        action="append",
        default=[],
        metavar="NAME",
        help="SkyPilot's name of the card, where it is not known; repeatable",
    )
    sky.add_argument("--on-demand", action="store_true", help="no spot machines")
    ssh = parser.add_argument_group("--on ssh")
    ssh.add_argument("--host", metavar="USER@ADDRESS", help="the rented machine")
    ssh.add_argument("--port", type=int, metavar="N", help="its ssh port")
    ssh.add_argument(
        "--ssh-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of ssh -o, such as IdentityFile=/home/me/key; repeatable",
    )
