"""A run that ended before its first checkpoint makes room for a new one in its folder.

set_aside(Path("out"))     # out → out.unfinished-1; None where there was no run
"""

import sys
from pathlib import Path

from onecard.files import replace, sync_folder
from onecard.runs.record import RunRecord, holds_a_run


def set_aside(folder: Path) -> Path | None:
    """Rename the folder of a run that nobody is writing to; nothing is deleted."""
    if not holds_a_run(folder):
        return None
    record = RunRecord(folder)
    record.claim()  # refused while its process runs: it may be about to save
    number = 1
    while (aside := folder.with_name(f"{folder.name}.unfinished-{number}")).exists():
        number += 1
    if sys.platform == "win32":  # no folder with an open file is renamed there
        record.release()
    replace(folder, aside)
    record.release()
    sync_folder(folder.parent)
    return aside
