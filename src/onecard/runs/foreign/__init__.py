"""Logs that others wrote, one small file a format. Each is a reader that is fed lines and gives runs back.

    reader = NanoGptReader("train.log")
    for line in lines: reader.line(line)
    runs = reader.done()

`line` answers True when it holds a measurement of this format: that is how the format of a file is found (text_log.py).
"""

from onecard.runs.builder import RunBuilder
from onecard.runs.run import Run


class OneRunReader:
    """The beginning of a reader whose files hold one run each: `form` and `line` are the format's own."""

    form: str

    def __init__(self, name: str):
        self._builder = RunBuilder(name, self.form)

    def done(self) -> list[Run]:
        return self._builder.runs()
