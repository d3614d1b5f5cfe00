"""What a run keeps of its data set, so that it can be sampled, evaluated and exported after the data folder is gone.

    keep_record(open_dataset("fineweb-edu"), run_folder / "data")
    kept_tokenizer(run_folder / "data").decode([15496, 995])

The folder then holds record.json (the tokeniser's entry, the splits with their digests, the manifest where there was
one) and, for tokenisers that are not built in, tokenizer.json.
"""

from pathlib import Path
from typing import Any

from onecard.data.read.manifest import TOKENIZER_FILE, check_tokenizer_entry
from onecard.data.read.shards import Dataset
from onecard.data.tokenizers.kinds import Tokenizer
from onecard.data.tokenizers.load import load_tokenizer
from onecard.errors import UserError
from onecard.files import write_bytes, write_json
from onecard.untrusted import read_json_object

RECORD = "record.json"
SCHEMA = "onecard.data-record/1"


def keep_record(data: Dataset, folder: Path) -> None:
    """Write the data set's tokeniser and manifest into `folder`; each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = data.tokenizer
    content = None if tokenizer is None else tokenizer.file_content()
    if content is not None:
        write_bytes(folder / TOKENIZER_FILE, content)
    record = {
        "schema": SCHEMA,
        "name": data.name,
        "format": data.layout.format,
        "tokenizer": None if tokenizer is None else tokenizer.describe(),
        "bytes_per_token": data.bytes_per_token,
        "splits": {
            name: {"tokens": split.tokens, "sha256": split.sha256}
            for name, split in data.splits.items()
        },
        "manifest": data.manifest,
    }
    write_json(folder / RECORD, record)


def kept_record(folder: Path) -> dict[str, Any]:
    """The record that `keep_record` wrote."""
    record = read_json_object(folder / RECORD, "the data record", hint="the data folder has it too")
    try:
        if record.get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        if "tokenizer" not in record:
            raise ValueError("it names no tokeniser")
        if record["tokenizer"] is not None:
            check_tokenizer_entry(record["tokenizer"])
    except ValueError as error:
        raise UserError(f"the data record {folder / RECORD} is damaged: {error}") from None
    return record


def kept_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokeniser that `keep_record` wrote; None where the data set did not name one."""
    entry = kept_record(folder)["tokenizer"]
    return None if entry is None else load_tokenizer(entry, folder)
