"""Logs that others wrote, one small file a format. Each is a reader that is fed lines and gives runs back.

    reader = NanoGptReader("train.log")
    for line in lines: reader.line(line)
    runs = reader.done()

`line` answers True when it holds a measurement of this format: that is how the format of a file is found (text_log.py).
"""
