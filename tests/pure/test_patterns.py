"""Every regular expression of the project takes linear time on the worst that untrusted text can hold.

All patterns are collected from the sources with the method they are used by. Each gets strings made for it: a prefix that
its first parts match, then one character or one of its own literals thousands of times, then an end that cannot match. Time
that grows with the square shows at four times the length as sixteen times the time.
"""

import ast
import re
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "onecard"
METHODS = ("match", "fullmatch", "search", "findall", "finditer", "split", "sub", "subn")
PUMPS = (" ", "0", "a", ",", ".", "-", "_", "=", "#", '"', "\\", "(", "\t", "a ", "0,", "| ", "a-")
MOST_PLACES = 40  # of one pattern that strings are made for, the shortest first
SHORT, FACTOR = 1000, 4
TOLERATED = 0.002  # seconds; below that growth cannot be distinguished from noise


class Constants(ast.NodeVisitor):
    """The module's text constants, by name: what its patterns are put together from."""

    def __init__(self, imported):
        self.values = dict(imported)

    def value(self, node):
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.Constant(value=bytes() as text):
                return text.decode("latin-1")
            case ast.Call(func=ast.Attribute(value=ast.Constant(value="|"), attr="join")):
                return "one|of|several"  # words and nothing else: linear whatever they are
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr="escape")):
                return "escaped"
            case ast.Name(id=name):
                return self.values.get(name)
            case ast.JoinedStr(values=parts):
                texts = [
                    self.value(p.value if isinstance(p, ast.FormattedValue) else p) for p in parts
                ]
                return None if None in texts else "".join(texts)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                both = self.value(left), self.value(right)
                return None if None in both else "".join(both)
        return None

    def visit_Assign(self, node):
        if isinstance(node.targets[0], ast.Name) and (text := self.value(node.value)) is not None:
            self.values[node.targets[0].id] = text
        self.generic_visit(node)


def flags_of(call):
    names = {
        n.attr
        for a in (*call.args[1:], *(k.value for k in call.keywords))
        for n in ast.walk(a)
        if isinstance(n, ast.Attribute)
    }
    return sum(
        getattr(re, name).value
        for name in names
        if name.isupper() and isinstance(getattr(re, name, None), re.RegexFlag)
    )


def collected():
    """(file and line, pattern, flags, methods) of every call of re in the sources."""
    shared = {}
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))
    }
    for tree in trees.values():  # names that other modules import
        visitor = Constants({})
        for node in tree.body:
            visitor.visit(node)
        shared |= visitor.values
    for path, tree in trees.items():
        constants = Constants(shared)
        constants.visit(tree)
        compiled = {}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and isinstance(node.targets[0], ast.Name)
            ):
                compiled[id(node.value)] = node.targets[0].id
        used = {}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in METHODS
                and isinstance(node.value, ast.Name)
            ):
                used.setdefault(node.value.id, set()).add(node.attr)
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if (
                not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re")
                or node.func.attr == "escape"
            ):
                continue
            where = f"{path.relative_to(SOURCE).as_posix()}:{node.lineno}"
            pattern = constants.value(node.args[0])
            methods = (
                used.get(compiled.get(id(node)), {"search"})
                if node.func.attr == "compile"
                else {node.func.attr}
            )
            yield where, pattern, flags_of(node), methods


PATTERNS = list(collected())


def example(parsed):
    """A short text that the parsed pattern matches, and the text before each of its parts."""
    text, places = "", [""]
    for op, argument in parsed:
        name = str(op)
        if name == "LITERAL":
            text += chr(argument)
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, _, body = argument
            inner, inside = example(body)
            places += [text + each for each in inside]
            text += inner * max(1, min(least, 8))
        elif name == "SUBPATTERN":
            inner, inside = example(argument[3])
            places += [text + each for each in inside]
            text += inner
        elif name == "ATOMIC_GROUP":
            inner, inside = example(argument)
            places += [text + each for each in inside]
            text += inner
        elif name == "BRANCH":
            inner, _ = example(argument[1][0])
            for branch in argument[1]:
                places += [text + each for each in example(branch)[1]]
            text += inner
        elif name == "IN":
            text += next((c for c in "a0 ,.:-_\\[/'\"" if re.fullmatch(_class(argument), c)), "a")
        elif name == "ANY":
            text += "a"
        places.append(text)
    return text, places


def _class(argument):
    parts = []
    for op, value in argument:
        name = str(op)
        if name == "NEGATE":
            parts.insert(0, "^")
        elif name == "LITERAL":
            parts.append(re.escape(chr(value)))
        elif name == "RANGE":
            parts.append(f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}")
        else:
            letter = {
                "CATEGORY_DIGIT": "d",
                "CATEGORY_SPACE": "s",
                "CATEGORY_WORD": "w",
                "CATEGORY_NOT_DIGIT": "D",
                "CATEGORY_NOT_SPACE": "S",
                "CATEGORY_NOT_WORD": "W",
            }[str(value)]
            parts.append("\\" + letter)
    return "[" + "".join(parts) + "]"


def seconds(pattern, method, text):
    call = getattr(pattern, method)
    began = time.thread_time()
    call("", text) if method in ("sub", "subn") else list(
        call(text)
    ) if method == "finditer" else call(text)
    return time.thread_time() - began


def worst(text, flags, method):
    """The string whose time grows most, where it grows with more than the length; None if there is none."""
    pattern = re.compile(text, flags)
    whole, places = example(re._parser.parse(text, flags))
    literals = {word for word in re.findall(r"[A-Za-z]{2,}[: =]?", whole)} | {whole}
    for prefix in sorted(set(places), key=len)[:MOST_PLACES]:
        for pump in (*PUMPS, *literals):
            if not pump:
                continue

            def made(length, prefix=prefix, pump=pump):
                return prefix + pump * (length // len(pump)) + "\x00"

            first = seconds(pattern, method, made(SHORT * FACTOR))
            if first < TOLERATED:
                continue
            short = min(seconds(pattern, method, made(SHORT)) for _ in range(3))
            long = min(first, *(seconds(pattern, method, made(SHORT * FACTOR)) for _ in range(2)))
            if long > TOLERATED and long > 2 * FACTOR * short:
                longer = seconds(
                    pattern, method, made(SHORT * FACTOR**2)
                )  # once more, past the noise
                if longer > 2 * FACTOR * long:
                    return prefix, pump, short, long, longer
    return None


def test_patterns_are_found_and_known():
    unknown = [where for where, pattern, _, _ in PATTERNS if pattern is None]
    assert unknown == []
    assert len(PATTERNS) > 30


@pytest.mark.parametrize("room", sorted({where.partition("/")[0] for where, *_ in PATTERNS}))
def test_patterns_take_linear_time(room):
    slow = []
    for where, pattern, flags, methods in PATTERNS:
        if where.partition("/")[0] == room and pattern is not None:
            for method in sorted(methods):
                if (found := worst(pattern, flags, method)) is not None:
                    slow.append((where, method, pattern, *found))
    assert slow == []


def test_a_quadratic_pattern_is_noticed():
    assert worst(r"\s*tok$", 0, "search") is not None
    assert worst(r"x = ([^#]+?)\s*", 0, "fullmatch") is not None
    assert worst(r"\|([\w ]+)\|(.+)\|", 0, "fullmatch") is None
