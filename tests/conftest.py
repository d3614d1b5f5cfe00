"""What every test starts from: nothing of the person at this machine, one thread, and the signals of a terminal."""

import gc
import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from forked import CAN_FORK, quicken_data_workers

# Read by NumPy and torch when they are imported, here and in the programs that tests start: models and fits are tiny, and two
# test workers share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The ordinary run draws the same cases every time, so that it fails for a change and not by luck;
# ONECARD_RANDOM=1 (as `make test-long` sets it) draws new ones. No deadlines: other programs share the machine.
# tools/mutants.py asks for the first failure alone, without a search for the smallest one.
FIRST_FAILURE = (Phase.explicit, Phase.generate)
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("first_failure", derandomize=True, deadline=None, phases=FIRST_FAILURE)
if not os.environ.get("ONECARD_RANDOM"):
    settings.load_profile(os.environ.get("ONECARD_PROFILE", "repeatable"))

# `nohup pytest` and `pytest &` begin with these ignored, and so would every run that a test starts.
for name, usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)


IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 * 2**30


def pytest_configure(config: pytest.Config) -> None:
    """Temporary folders in memory, where there is room and programs may be run from: every checkpoint waits a dozen times for
    a disk. `--basetemp` puts them elsewhere."""
    if config.option.basetemp is not None or not os.access(IN_MEMORY, os.W_OK):
        return
    programs = not os.statvfs(IN_MEMORY).f_flag & os.ST_NOEXEC
    if programs and shutil.disk_usage(IN_MEMORY).free >= ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


COMPILED = {  # files whose tests start torch's compiler, which takes seconds
    f"test_{name}"
    for name in (
        *("autotune", "compile_modes", "compiler", "fp8", "gradient_sums", "memory_trace"),
        *("modern", "planner_and_trainer", "shard_memory", "train_cli"),
    )
}


def _shares_much(item: pytest.Item) -> bool:
    """Whether others of its kind run sooner beside it: with the compiler started, or with shapes tuned to cards."""
    return item.path.stem in COMPILED or "tuned_once" in getattr(item, "fixturenames", ())


@pytest.hookimpl(trylast=True)  # of what -m leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Two workers get half of the list each and take over from the end of the other's. So each half begins with half of
    the slow files, which are best run in one piece for what their tests share, and ends with quick tests."""
    if getattr(config, "workerinput", {}).get("workercount") != 2:
        return
    sharing = [item for item in items if _shares_much(item)]
    others = [item for item in items if not _shares_much(item)]
    slow = [item for item in others if item.path.parent.name != "pure"]
    quick = [item for item in others if item.path.parent.name == "pure"]
    files = list(dict.fromkeys(item.path for item in slow))
    first = [item for item in slow if files.index(item.path) % 2 == 0]
    second = [*sharing, *(item for item in slow if files.index(item.path) % 2 == 1)]
    room = max(0, len(items) // 2 - len(first))
    items[:] = [*first, *quick[:room], *second, *quick[room:]]


def pytest_collection_finish() -> None:
    """What has been imported stays: the garbage collector need not look through it again and again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory):
    """No test sees what the person at this machine has calibrated, nor adds to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONECARD_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_workers():
    """Of commands that tests start from nothing, the processes that prepare data are so, too."""
    from onecard.data.preparation import crew

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew, "subprocess", crew.subprocess)  # put back in the end
        if CAN_FORK:
            quicken_data_workers()
        yield
