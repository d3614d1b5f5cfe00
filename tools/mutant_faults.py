"""One-place faults: where they can be, what they turn an expression into, and all of them behind switches in a copy."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}

BASE = "base files"  # those beside the rooms: files.py, untrusted.py, units.py, ...

# The switch: says that the place was reached, and whether the expression is to be the right one.
SWITCH = '''"""Which planted fault is switched on, and which places were reached."""

import os

active = int(os.environ.get("MUTANTS_ACTIVE", "-1"))
seen: set[int] = set()


def mutant_reached(number: int) -> bool:
    if number not in seen:
        seen.add(number)
        if path := os.environ.get("MUTANTS_REACHED"):
            with open(path, "a") as file:
                file.write(f"{number}\\n")
    return number != active
'''


@dataclass(frozen=True)
class Fault:
    path: str  # below the sources
    line: int
    number: int  # of the place in the file, in the order of the walk
    before: str
    after: str
    at_import: bool  # outside all functions: evaluated while the module is imported

    @property
    def room(self) -> str:
        return self.path.partition("/")[0] if "/" in self.path else BASE

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  →  {self.after}"


def places(tree: ast.Module) -> Iterator[ast.expr]:
    """The expressions that a fault can turn round.

    Not in annotations and decorators (`frozen=True`), nor `zip(…, strict=True)`: they change nothing in a right program.
    """
    skipped = set()
    for node in ast.walk(tree):
        hints = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        hints += getattr(node, "decorator_list", [])
        if isinstance(node, ast.keyword) and node.arg == "strict":
            hints.append(node.value)
        for hint in hints:
            if hint is not None:
                skipped |= {id(inner) for inner in ast.walk(hint)}
    for node in ast.walk(tree):
        if id(node) not in skipped and isinstance(node, ast.expr) and _can_turn(node):
            yield node


def _can_turn(node: ast.expr) -> bool:
    match node:
        case ast.Compare():
            return type(node.ops[0]) in _COMPARISONS
        case ast.BinOp():
            return type(node.op) in _OPERATORS
        case ast.UnaryOp(op=ast.Not()) | ast.BoolOp() | ast.Constant(value=True | False):
            return True
    return False


def turned(node: ast.expr) -> ast.expr:
    """A copy with the fault."""
    node = copy.deepcopy(node)
    if isinstance(node, ast.Compare):
        node.ops[0] = _COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = _OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):  # not x  →  not not x
        node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant):
        node.value = not node.value
    return node


def all_faults(source: Path) -> list[Fault]:
    found = []
    for path in sorted(source.rglob("*.py")):
        if "preset_files" in path.parts or "hub_code" in path.parts:  # read as text, not imported
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = _inside_functions(tree)
        for number, node in enumerate(places(tree)):
            before, after = ast.unparse(node)[:90], ast.unparse(turned(node))[:90]
            name = path.relative_to(source).as_posix()
            found.append(Fault(name, node.lineno, number, before, after, id(node) not in inside))
    return found


def _inside_functions(tree: ast.Module) -> set[int]:
    bodies: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            bodies += node.body
        elif isinstance(node, ast.Lambda):
            bodies.append(node.body)
    return {id(inner) for body in bodies for inner in ast.walk(body)}


def instrument(source: Path, faults: list[Fault], wanted: set[int]) -> None:
    """Put each wanted fault behind its switch: `before if mutant_reached(number) else after`."""
    (source / "_mutant_switch.py").write_text(SWITCH, encoding="utf-8")
    for name in sorted({faults[number].path for number in wanted}):
        numbers = [number for number, fault in enumerate(faults) if fault.path == name]
        tree = ast.parse((source / name).read_text(encoding="utf-8"))
        pairs = zip(places(tree), numbers, strict=True)
        found = {id(node): number for node, number in pairs if number in wanted}
        whole = _Switches(found).visit(tree)
        assert isinstance(whole, ast.Module)
        at = next((i for i, node in enumerate(whole.body) if not _must_be_first(node)), 0)
        whole.body[at:at] = ast.parse("from onecard._mutant_switch import mutant_reached").body
        (source / name).write_text(ast.unparse(ast.fix_missing_locations(whole)) + "\n", "utf-8")


def _must_be_first(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _Switches(ast.NodeTransformer):
    def __init__(self, found: dict[int, int]):
        self._found = found

    def visit(self, node: ast.AST) -> ast.AST:
        number = self._found.get(id(node))
        # the inner places of the wrong expression stay as they are: one fault at a time
        wrong = turned(node) if isinstance(node, ast.expr) and number is not None else None
        node = self.generic_visit(node)
        if wrong is None:
            return node
        assert isinstance(node, ast.expr)
        call = ast.Call(ast.Name("mutant_reached", ast.Load()), [ast.Constant(number)], [])
        return ast.IfExp(call, node, wrong)
