"""A Slurm batch script: torchrun on every node, saved and queued again before the time is up or when it is preempted.

How a job ends, and what follows:
- preempted, or `scontrol requeue`: Slurm sends SIGTERM, the trainer saves, Slurm queues the job again (--requeue);
- the time limit is near: Slurm sends SIGUSR1 to the script, the trainer saves, the script queues the job again;
- an error or `scancel`: it ends, and nothing is queued.
`onecard train --continue` continues from the last checkpoint, or starts where there is none yet.
"""

import math
from dataclasses import dataclass

from onecard.errors import UserError
from onecard.launch.job import Job, plain
from onecard.launch.shell import SECONDS_TO_SAVE, quoted, training

_BEFORE_END_SECONDS = SECONDS_TO_SAVE + 10  # before the time limit the trainer is asked to save


@dataclass(frozen=True)
class SlurmOptions:
    config: str  # a path on the cluster's file system, or a preset
    overrides: tuple[str, ...] = ()  # key=value
    folder: str = "."  # where the job runs: relative paths in the config are from here
    python: str = "python"
    set_up: tuple[str, ...] = ()  # lines of shell, as the user wrote them
    directives: tuple[str, ...] = ()  # --partition=gpu and the like
    cpus_per_card: int = 4


def slurm_text(job: Job, options: SlurmOptions) -> str:
    set_up = [plain(line, "the option `set_up`") for line in options.set_up]
    parts = [
        "#!/bin/bash",
        f"# {job.name}: made by `onecard launch`; submit with `sbatch FILE`",
        *(f"#SBATCH {line}" for line in _directives(job, options)),
        "set -u",
        "export PYTHONUNBUFFERED=1",
        *set_up,
        *_start(job, options),
        _wait(job),
    ]
    return "\n".join(parts)


def _directives(job: Job, options: SlurmOptions) -> list[str]:
    lines = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={max(1, options.cpus_per_card * job.cards)}",
        f"--time={_time(job.limit_seconds)}",
        f"--signal=B:USR1@{_BEFORE_END_SECONDS}",
        "--requeue",
        "--open-mode=append",
        f"--output={job.name}-%j.log",
        f"--chdir={_directive_word(options.folder)}",
    ]
    if not job.on_cpu:
        lines.append(f"--gres=gpu:{job.cards}")
    for line in options.directives:
        if not plain(line, "the option `sbatch`").startswith("-"):
            raise UserError(
                f"{line!r} is not an option of sbatch",
                hint="such as the option `sbatch=--partition=gpu`",
            )
        lines.append(line)
    return lines


def _directive_word(text: str) -> str:
    """Slurm reads quotes in its directives, but knows no way to write a quote within them."""
    if '"' in plain(text, "the folder") or "\\" in text:
        raise UserError(
            f"Slurm cannot run a job in a folder of this name: {text}",
            hint="start it from a folder without quotes and backslashes in its path",
        )
    return f'"{text}"' if any(c in text for c in " '#") else text


def _time(seconds: float) -> str:
    """days-hours:minutes:seconds, rounded up to a minute.

    >>> _time(100_000)
    '1-03:47:00'
    """
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00"


def _start(job: Job, options: SlurmOptions) -> list[str]:
    config = " ".join(
        quoted(word, "the config")
        for word in (options.config, *(f"--{change}" for change in options.overrides))
    )
    python = quoted(options.python, "--python")
    if job.nodes == 1:
        command = training(job, python, config)
        before = []
    else:
        rendezvous = (
            '--nnodes="$SLURM_JOB_NUM_NODES" --rdzv_backend=c10d \\\n'
            '    --rdzv_id="$SLURM_JOB_ID" --rdzv_endpoint="$first:$port"'
        )
        command = training(job, python, config, rendezvous)
        before = [
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "port=$((20000 + SLURM_JOB_ID % 20000))",
            "export first port",
        ]
    # the launcher ignores SIGUSR1, which is for the trainer: that sets its own handler
    return [*before, "run() {", "  trap '' USR1", f"  exec {command}", "}", "export -f run"]


def _wait(job: Job) -> str:
    """A launcher that restarts its processes must end itself: SIGTERM; without restarts the trainer is asked alone, whose
    end is the launcher's."""
    asks = "TERM" if job.restarts else "USR1"
    return f"""\
# srun takes this from its own variable since Slurm 22.05
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
asked=0
trap 'asked=1; scancel --signal={asks} "$SLURM_JOB_ID"' USR1
{_WAIT}"""


_WAIT = """\
srun bash -c run &
step=$!
wait "$step"
code=$?
while kill -0 "$step" 2>/dev/null; do # a signal ended the wait, not the run
  wait "$step"
  code=$?
done
if [ "$asked" = 1 ] && [ "$code" -ne 0 ]; then
  echo "onecard: the time is nearly up; saved, and queued again to continue"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
