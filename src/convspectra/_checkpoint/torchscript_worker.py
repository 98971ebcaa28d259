"""Which convolutions are in the code of a TorchScript file, as JSON.

A script in a process of its own, with the sources by name in JSON as input: Python's
parser can take much memory, or give up, on sources that are made for it. The code is
parsed and looked at. None of it is run or compiled.
"""

import ast
import json
import re
import sys
from typing import Any

CONVOLUTION = re.compile(
    "conv[123]d|conv_transpose[123]d|_convolution|_convolution_mode|linear"
)
PADS = ("torch.pad", "__torch__.torch.nn.functional.pad")
UNKNOWN = {"unknown": True}


class Method:
    """A function of a class: what its variables are assigned, and what it calls."""

    def __init__(self, node: ast.FunctionDef) -> None:
        self.parameters = [argument.arg for argument in node.args.args]
        self.assigned: dict[str, ast.expr | None] = {}
        self.calls: list[ast.Call] = []
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                self.calls.append(inner)
            elif isinstance(inner, ast.Assign):
                for target in inner.targets:
                    self._assign(target, inner.value)
            elif isinstance(inner, ast.AnnAssign):
                self._assign(inner.target, inner.value)

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        """Note a value; of a variable that is assigned twice none is known."""
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                plain = target is name and name.id not in self.assigned
                self.assigned[name.id] = value if plain else None

    def follow(self, node: ast.expr | None) -> ast.expr | None:
        """What an expression stands for, through the variables that it names."""
        for _ in range(len(self.assigned) + 1):
            if not isinstance(node, ast.Name) or node.id not in self.assigned:
                return node
            node = self.assigned[node.id]
        return None

    def path(self, node: ast.expr | None) -> list[str] | None:
        """The attributes that lead from `self` to something, None if none do."""
        found: list[str] = []
        while True:
            node = self.follow(node)
            match node:
                case ast.Attribute(value=value, attr=name):
                    found.append(name)
                    node = value
                case ast.Call(
                    func=ast.Name(id="getattr"),
                    args=[value, ast.Constant(value=str(name))],
                ):
                    found.append(name)
                    node = value
                case ast.Name(id=name) if name == self.parameters[0]:
                    return found[::-1]
                case ast.Name(id="CONSTANTS"):
                    return ["CONSTANTS", *found[::-1]]
                case _:
                    return None
            if len(found) > 100:
                return None

    def value(self, node: ast.expr | None) -> Any:
        """A literal, or the path of an attribute."""
        node = self.follow(node)
        try:
            return ast.literal_eval(node) if node is not None else UNKNOWN
        except (ValueError, TypeError, SyntaxError):
            path = self.path(node)
            return UNKNOWN if path is None else {"path": path}


def dotted(node: ast.expr) -> str:
    """The name of a function, such as torch.conv2d."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "?", *parts[::-1]])


def found_in(methods: dict[str, Method]) -> list[dict[str, Any]]:
    """The convolutions of a class, each with what its weight and arguments are."""
    found = []
    for name, method in methods.items():
        for call in method.calls:
            module, _, operator = dotted(call.func).rpartition(".")
            if module != "torch" or not CONVOLUTION.fullmatch(operator):
                continue
            source, weight, _, *rest = (*call.args, *[None] * 3)
            paths = weights(name, method, weight, methods)
            pad = padding(method, source)
            rest = [method.value(each) for each in call.args[3:]]
            found += [
                {"operator": operator, "path": path, "arguments": rest, "pad": pad}
                for path in paths
            ]
    return found


def weights(
    name: str, method: Method, node: ast.expr | None, methods: dict[str, Method]
) -> list[list[str]]:
    """The paths of what may be the weight: what a method is called with, if that."""
    path = method.path(node)
    if path:
        return [path]
    node = method.follow(node)
    if not isinstance(node, ast.Name) or node.id not in method.parameters[1:]:
        return []
    place = method.parameters.index(node.id) - 1
    paths = []
    for caller in methods.values():
        for call in caller.calls:
            function = call.func
            if (
                isinstance(function, ast.Attribute)
                and function.attr == name
                and caller.path(function.value) == []
                and place < len(call.args)
            ):
                path = caller.path(call.args[place])
                paths += [path] if path and path not in paths else []
    return paths


def padding(method: Method, node: ast.expr | None) -> list[Any] | None:
    """The arguments of the `pad` that makes the input of a convolution."""
    made = method.follow(node)
    if isinstance(made, ast.Call) and dotted(made.func) in PADS:
        return [method.value(argument) for argument in made.args[1:]]
    return None


def finals(node: ast.ClassDef) -> dict[str, Any]:
    """The constants of a class."""
    found = {}
    for item in node.body:
        match item:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                try:
                    found[name] = ast.literal_eval(value)
                except (ValueError, TypeError, SyntaxError):
                    continue
    return found


def classes(sources: dict[str, str]) -> dict[str, Any]:
    """The convolutions and constants of each class, by its name."""
    found = {}
    for module, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                methods = {
                    item.name: Method(item)
                    for item in node.body
                    if isinstance(item, ast.FunctionDef) and item.args.args
                }
                calls = found_in(methods)
                if calls:
                    one = {"calls": calls, "constants": finals(node)}
                    found[f"{module}.{node.name}"] = one
    return found


if __name__ == "__main__":
    json.dump(classes(json.load(sys.stdin)), sys.stdout)
