"""What a disk may hold after a crash: the file operations of a piece of work, recorded, and replayed up to every one.

    with Recorder(folder) as recorded:
        work()
    for what, state in crashes(recorded.operations):
        state.write(fresh_folder)

A kill leaves the operations done so far. A power cut on a file system without barriers may also lose or keep any of the
folder entries that were not flushed, in any combination, and leave a file that was not flushed empty or half written.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

_WATCHED = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "ftruncate")


@dataclass(frozen=True)
class Operation:
    kind: str  # file, folder, gone, data, rename, flush, mark
    path: str = ""
    target: str = ""
    data: bytes = b""


class Recorder:
    """Looks at the folder before and after each call that changes or flushes it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.operations: list[Operation] = []
        self._seen: dict[str, bytes | None] = {}
        self._patches: list = []
        self._look()

    def __enter__(self) -> "Recorder":
        for name in _WATCHED:
            patch = mock.patch.object(os, name, self._wrapped(name, getattr(os, name)))
            patch.start()
            self._patches.append(patch)
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()
        self._look()

    def mark(self) -> None:
        """From here on the work is promised to be on the disk."""
        self._look()
        self.operations.append(Operation("mark"))

    def _wrapped(self, name, real):
        def call(*arguments, **named):
            self._look()
            if name in ("replace", "rename"):
                source, target = (self._inside(path) for path in arguments[:2])
                answer = real(*arguments, **named)
                if source is not None and target is not None:
                    self.operations.append(Operation("rename", source, target))
                    self._seen = _renamed(self._seen, source, target)
                return answer
            if name == "fsync":
                flushed = self._inside(os.readlink(f"/proc/self/fd/{arguments[0]}"))
                answer = real(*arguments, **named)
                if flushed is not None:
                    self.operations.append(Operation("flush", flushed))
                return answer
            answer = real(*arguments, **named)
            self._look()
            return answer

        return call

    def _inside(self, path) -> str | None:
        path = Path(os.path.abspath(path))
        inside = path.is_relative_to(self.folder)
        return path.relative_to(self.folder).as_posix() if inside else None

    def _look(self) -> None:
        """The differences since the last look, as operations."""
        now: dict[str, bytes | None] = {}
        for top, folders, files in os.walk(self.folder):
            for name in folders:
                now[(Path(top) / name).relative_to(self.folder).as_posix()] = None
            for name in files:
                path = Path(top) / name
                now[path.relative_to(self.folder).as_posix()] = path.read_bytes()
        for path in sorted(now, key=lambda p: p.count("/")):
            content = now[path]
            if path not in self._seen:
                self.operations.append(Operation("folder" if content is None else "file", path))
            if content is not None and content != (self._seen.get(path) or b""):
                self.operations.append(Operation("data", path, data=content))
        for path in sorted(set(self._seen) - set(now), key=lambda p: -p.count("/")):
            self.operations.append(Operation("gone", path))
        self._seen = now


def _renamed(tree, source, target):
    kept = {p: c for p, c in tree.items() if p != target and not p.startswith(f"{target}/")}
    return {
        target + p[len(source) :] if p == source or p.startswith(f"{source}/") else p: c
        for p, c in kept.items()
    }


@dataclass
class Node:
    """An inode: a file's bytes or a folder's entries, as they are and as they were last flushed."""

    folder: bool
    data: bytes = b""
    flushed: bytes = b""
    entries: "dict[str, Node]" = field(default_factory=dict)
    pending: "list[tuple[tuple[str, Node | None], ...]]" = field(default_factory=list)
    durable: "dict[str, Node]" = field(default_factory=dict)


class Disk:
    """The tree after some operations, and what a power cut may make of it."""

    def __init__(self, operations: list[Operation], before: int):
        self.root = Node(True)
        for operation in operations:
            self._do(operation)
            before -= 1
            if before == 0:
                self._flush_all(self.root)

    def _at(self, path: str) -> Node:
        node = self.root
        for part in path.split("/") if path not in ("", ".") else []:
            node = node.entries[part]
        return node

    def _entry(self, *changes: tuple[str, Node | None]) -> None:
        """Entries set or removed in one stroke; those of one folder are flushed with it."""
        by_folder: dict[int, tuple[Node, list]] = {}
        for path, node in changes:
            parent = self._at(os.path.dirname(path))
            by_folder.setdefault(id(parent), (parent, []))[1].append((os.path.basename(path), node))
        for parent, entries in by_folder.values():
            parent.pending.append(tuple(entries))
            for name, node in entries:
                if node is None:
                    parent.entries.pop(name, None)
                else:
                    parent.entries[name] = node

    def _do(self, operation: Operation) -> None:
        if operation.kind in ("file", "folder"):
            self._entry((operation.path, Node(operation.kind == "folder")))
        elif operation.kind == "data":
            self._at(operation.path).data = operation.data
        elif operation.kind == "gone":
            self._entry((operation.path, None))
        elif operation.kind == "rename":
            node = self._at(operation.path)
            self._entry((operation.path, None), (operation.target, node))
        elif operation.kind == "flush":
            node = self._at(operation.path)
            node.flushed, node.durable, node.pending = node.data, dict(node.entries), []

    def _flush_all(self, node: Node) -> None:
        node.flushed, node.durable, node.pending = node.data, dict(node.entries), []
        for each in node.entries.values():
            self._flush_all(each)

    def pendings(self) -> int:
        found, todo = {}, [self.root]
        while todo:
            node = todo.pop()
            if id(node) in found:
                continue
            found[id(node)] = node
            todo += [*node.entries.values(), *node.durable.values()]
            todo += [each for change in node.pending for _, each in change if each is not None]
        self.nodes = list(found.values())
        return sum(len(node.pending) for node in self.nodes)

    def write(self, folder: Path) -> None:
        """As a kill leaves it: everything done so far."""
        self._write(self.root, folder, lambda node: node.entries, lambda node: node.data)

    def write_after_power_cut(self, folder: Path, kept: set[int], size: float | None) -> None:
        """Pending entries by their number; files not flushed as last flushed (None) or cut to a share of their bytes."""
        numbers = iter(range(10**6))
        trees = {}
        for node in self.nodes:
            entries = dict(node.durable)
            for change in node.pending:
                if next(numbers) in kept:
                    for name, each in change:
                        if each is None:
                            entries.pop(name, None)
                        else:
                            entries[name] = each
            trees[id(node)] = entries

        def data(node: Node) -> bytes:
            if node.data == node.flushed or size is None:
                return node.flushed
            return node.data[: int(len(node.data) * size)]

        self._write(self.root, folder, lambda node: trees[id(node)], data)

    def _write(self, node: Node, path: Path, entries, data) -> None:
        if node.folder:
            path.mkdir(parents=True, exist_ok=True)
            for name, each in entries(node).items():
                self._write(each, path / name, entries, data)
        else:
            path.write_bytes(data(node))


def crashes(
    operations: list[Operation], before: int, place: Path, draws: int = 2, seed: int = 0
) -> Iterator[tuple[str, Path, bool]]:
    """(what happened, the folder it leaves, whether the work had been promised) for every crash.

    `before`: the number of operations that built the state the work began with; they are flushed.
    """
    rng = random.Random(seed)
    number = 0
    for count in range(before, len(operations) + 1):
        promised = any(each.kind == "mark" for each in operations[:count])
        disk = Disk(operations[:count], before)
        number += 1
        disk.write(place / str(number))
        yield f"killed after {count}", place / str(number), promised
        pending = disk.pendings()
        cases = {(frozenset(), None), (frozenset(range(pending)), 0.0)}
        cases.add((frozenset(range(pending)), 0.5))
        cases |= {(frozenset({each}), 0.0) for each in range(pending)}
        cases |= {(frozenset(range(pending)) - {each}, 0.5) for each in range(pending)}
        for _ in range(draws):
            some = frozenset(each for each in range(pending) if rng.random() < 0.5)
            cases.add((some, rng.choice([None, 0.0, 0.5, 1.0])))
        for kept, size in sorted(cases, key=str):
            number += 1
            disk.write_after_power_cut(place / str(number), set(kept), size)
            what = f"power cut after {count}, entries {sorted(kept)} of {pending}, data {size}"
            yield what, place / str(number), promised
