"""Signatures of operators, sensors and triggers: arguments, meanings and templates, from the code.

Modules that import Airflow are read, not imported.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
from typing import TYPE_CHECKING, Any, Final, cast

from docs_reference import (
    Docstring,
    Function,
    argument_row,
    maker_of,
    parameters_of,
    path_of,
)

from airflow_provider.runtime.jobdir.run_options import RunOptions, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUBMIT_OPTIONS: Final = ("SubmitOptions", "airflow_provider.hooks.submit_options")


@dataclasses.dataclass(frozen=True)
class Source:
    """A class of the package as it is parsed, and the module that it is in."""

    node: ast.ClassDef
    module: str

    @functools.cached_property
    def docstring(self) -> Docstring:
        """Its docstring."""
        return Docstring.of(self.node)

    def lineage(self) -> Iterator[Source]:
        """Yield the class and those of this package that it is derived from."""
        yield self
        for base in self.node.bases:
            found = _defined(base.id, self.module) if isinstance(base, ast.Name) else None
            if found is not None and isinstance(found[0], ast.ClassDef):
                yield from Source(found[0], found[1]).lineage()

    def value(self, attribute: str) -> Any:
        """Return the value of an attribute of the class; None if no class of its lineage has it."""
        for each in self.lineage():
            for node in each.node.body:
                if (found := _assigned(node, attribute)) is not None:
                    return value_of(found, each.module)
        return None


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a class.

    Attributes:
        name: of the argument.
        annotation: its type, as the code has it.
        default: its default as Python writes it; empty for an argument that must be given.
    """

    name: str
    annotation: str
    default: str

    def row(self, meaning: str) -> str:
        """Return its row in a table."""
        return argument_row(self.name, self.annotation, self.default, meaning)


# --- Reading the code ---------------------------------------------------------------------------


@functools.cache
def _body(module: str) -> Sequence[ast.stmt]:
    return ast.parse(path_of(module).read_text()).body


def _assigned(node: ast.stmt, name: str) -> ast.expr | None:
    match node:
        case ast.AnnAssign(target=ast.Name(id=found), value=value) if found == name:
            return value
        case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
            return value
        case _:
            return None


def _defined(name: str, module: str) -> tuple[ast.AST, str] | None:
    """Return the class or the value that a module has under a name, and its home."""
    for node in _body(module):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, module
        if (value := _assigned(node, name)) is not None:
            return value, module
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_provider"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _defined(alias.name, str(node.module))
    return None


def source_of(name: str, module: str) -> Source:
    """Return the class of a name in a module, wherever it is defined."""
    found = _defined(name, module)
    if found is None or not isinstance(found[0], ast.ClassDef):
        raise LookupError(f"{module} has no class {name}")
    return Source(found[0], found[1])


def value_of(node: ast.AST, module: str) -> Any:
    """Return the value of an expression of literals and of names that stand for them."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=parts):
            return tuple(each for part in parts for each in _parts(part, module))
        case ast.Name(id=name) if (found := _defined(name, module)) is not None:
            return value_of(*found)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return source_of(name, module).value(attribute)
        case ast.Attribute(value=member, attr="value"):  # of an enumeration
            return value_of(member, module)
        case _:
            raise LookupError(f"{module}: {ast.unparse(node)} is no literal")


def _parts(node: ast.expr, module: str) -> Sequence[Any]:
    if isinstance(node, ast.Starred):
        return cast("Sequence[Any]", value_of(node.value, module))
    return [value_of(node, module)]


def arguments_of(source: Source) -> Iterator[Argument]:
    """Yield the arguments of a class, its own before those of the classes below it."""
    seen = {"self"}
    for each in source.lineage():
        maker = maker_of(each.node)
        if maker is None:
            continue
        for argument in (*_written(maker, each.module), *_declared(each)):
            if argument.name not in seen:
                seen.add(argument.name)
                yield argument
        if maker.args.kwarg is None:
            return


def _written(maker: Function, module: str) -> Iterator[Argument]:
    """Yield the arguments that a signature lists."""
    for argument, default in parameters_of(maker):
        shown = repr(value_of(default, module)) if default else ""
        kind = ast.unparse(argument.annotation) if argument.annotation else ""
        yield Argument(argument.arg, kind, shown)


def _declared(source: Source) -> Iterator[Argument]:
    """Yield the arguments that are declared as options."""
    for kind in _taken(source):
        for each in kind.parameters():
            yield Argument(each.name, str(each.annotation), repr(each.default))


def _taken(source: Source) -> Iterator[Any]:
    """Yield the class of options that an ``__init__`` takes by ``@taking``."""
    maker = maker_of(source.node)
    for node in maker.decorator_list if maker is not None else ():
        match node:
            case ast.Call(func=ast.Name(id="taking"), args=[ast.Name(id=name)]):
                found = source_of(name, source.module)
                yield getattr(importlib.import_module(found.module), name)
            case _:
                pass


def templates_of(source: Source) -> set[str] | None:
    """Return the arguments that are fields with templates; None for a class without such fields.

    An argument may be stored as a field of another name, as ``params`` is as ``job_params``.
    """
    fields = source.value("template_fields")
    if fields is None:
        return None
    found = set(fields)
    maker = maker_of(source.node)
    for node in ast.walk(maker) if maker is not None else ():
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=field)], value=value) if field in fields:
                found |= {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
            case _:
                pass
    return found


def _meanings(sources: Sequence[Source]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        sections = source.docstring.sections
        for names, meaning in [*sections.get("Args", []), *sections.get("Attributes", [])]:
            for name in names.split(", "):
                found.setdefault(name, meaning)
        for kind in _taken(source):
            if issubclass(kind, RunOptions):
                for argument, field in kind.arguments().items():
                    found.setdefault(argument, f"{options_of(kind)[field].help}.")
    return found


# --- The page -----------------------------------------------------------------------------------


def rows_of(source: Source) -> dict[str, str]:
    """Return the row of each argument of a class."""
    meanings = _meanings([*source.lineage(), source_of(*SUBMIT_OPTIONS)])
    return {each.name: each.row(meanings.get(each.name, "")) for each in arguments_of(source)}
