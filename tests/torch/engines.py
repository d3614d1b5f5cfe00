"""Real engines for the tests of `onecard launch`: a Slurm of one node and an ssh server, each in a folder of its own."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEM_PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"  # where Debian keeps servers


def program(name: str) -> str | None:
    return shutil.which(name, path=SYSTEM_PATH)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(what: str, holds: Callable[[], bool], seconds: float = 120.0) -> None:
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, f"waited in vain for {what}"
        time.sleep(0.1)


@contextlib.contextmanager
def ended_after(*servers: subprocess.Popen) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
            server.kill()


# Without authentication: everybody on the machine is trusted, which is this test alone. A job that is queued again waits
# until its credential has expired, so that is short.
SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={mebibytes} State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """A controller and a node; SLURM_CONF leads sbatch and the others to them."""
    host = socket.gethostname().partition(".")[0]
    conf = folder / "slurm.conf"
    (folder / "state").mkdir(parents=True)
    (folder / "spool").mkdir()
    conf.write_text(
        SLURM_CONF.format(
            host=host,
            user=getpass.getuser(),
            folder=folder,
            control_port=free_port(),
            node_port=free_port(),
            cpus=os.cpu_count(),
            mebibytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        )
    )
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(conf)
    logs = [(folder / f"{name}.log").open("wb") for name in ("control", "node")]
    servers = [
        subprocess.Popen([program("slurmctld"), "-D", "-f", conf], stdout=logs[0], stderr=logs[0]),
        subprocess.Popen(
            [program("slurmd"), "-D", "-f", conf, "-N", host], stdout=logs[1], stderr=logs[1]
        ),
    ]
    try:
        with ended_after(*servers):
            wait_for("an idle node", lambda: "idle" in output_of("sinfo", "-h", "-o", "%T"), 60)
            yield
    finally:
        for log in logs:
            log.close()
        if before is None:
            os.environ.pop("SLURM_CONF")
        else:
            os.environ["SLURM_CONF"] = before


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@dataclass(frozen=True)
class SshServer:
    port: int
    options: tuple[str, ...]  # --ssh-option KEY=VALUE of `onecard launch`
    home: Path


SSHD_CONF = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
"""


@contextlib.contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """An ssh server on a port of its own with keys of its own; a session's home is a folder of the test's."""
    folder.mkdir()
    for key in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
        )
    home = folder / "home"
    home.mkdir()
    public = (folder / "user_key.pub").read_text()
    port = free_port()
    # a session starts in the account's home; the test's is entered by a command that is forced on it
    (folder / "authorized_keys").write_text(
        f'command="cd {home} && exec sh -c \\"$SSH_ORIGINAL_COMMAND\\"" {public}'
    )
    (folder / "sshd_config").write_text(SSHD_CONF.format(port=port, folder=folder))
    log = (folder / "sshd.log").open("wb")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # an empty folder that sshd asks of root
    server = subprocess.Popen(
        [program("sshd"), "-D", "-e", "-f", folder / "sshd_config"], stdout=log, stderr=log
    )
    options = (
        f"IdentityFile={folder}/user_key",
        f"UserKnownHostsFile={folder}/known_hosts",
        "StrictHostKeyChecking=accept-new",
        "IdentitiesOnly=yes",
    )
    try:
        with ended_after(server):
            wait_for("the ssh server", lambda: _listens(port), 20)
            yield SshServer(port, options, home)
    finally:
        log.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
