"""A hash of what a Python function does: of its compiled code and of all user code that it uses.

Comments, formatting, docstrings and the names of files are not in compiled code; constants, helper functions, classes and
the contents of closures are looked up and hashed too. Installed packages (PySpark, the standard library) count by name.
Compiled code differs between versions of Python: hashes of two versions cannot be compared (fingerprint.py records the
version).
"""

import dis
import functools
import hashlib
import sys
import types
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
# Attributes that say where a class or function is defined, not what it does.
_IGNORED_ATTRIBUTES = {
    "__module__", "__qualname__", "__name__", "__doc__", "__dict__", "__weakref__", "__firstlineno__",
    "__static_attributes__", "__annotations__", "__wrapped__", "_abc_impl", "__abstractmethods__", "__parameters__",
    "__orig_bases__", "__slotnames__", "__classcell__",
}  # fmt: skip


def code_hash(thing: Any) -> str:
    """Equal for functions, classes and values that do the same thing in the same way."""
    digest = hashlib.sha256()
    for part in _CodeWalker().parts(thing):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:32]


class _CodeWalker:
    """Walks through everything a function, class or value is made of, each object once."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        # Keeps visited objects alive, because another object could get the id of a freed one.
        self._alive: list[Any] = []

    def parts(self, thing: Any) -> Iterator[str]:  # noqa: PLR0912, C901  -- one branch for each kind of thing
        if isinstance(thing, _PLAIN_TYPES):
            yield f"{type(thing).__name__} {thing!r}"
            return
        if id(thing) in self._seen:
            yield f"again {self._seen[id(thing)]}"
            return
        self._seen[id(thing)] = len(self._seen)
        self._alive.append(thing)
        if isinstance(thing, types.CodeType):
            yield from self._code(thing)
        elif isinstance(thing, tuple | list):
            yield f"{type(thing).__name__} {len(thing)}"
            for element in thing:
                yield from self.parts(element)
        elif isinstance(thing, set | frozenset):
            yield f"set {len(thing)}"
            yield from sorted(code_hash(element) for element in thing)
        elif isinstance(thing, Mapping):
            yield f"mapping {len(thing)}"
            for key, value in thing.items():
                yield from self.parts(key)
                yield from self.parts(value)
        elif isinstance(thing, types.FunctionType):
            yield from self._function(thing)
        elif isinstance(thing, types.MethodType):
            yield "method"
            yield from self.parts(thing.__func__)
            yield from self.parts(thing.__self__)
        elif isinstance(thing, types.ModuleType):
            yield f"module {thing.__name__}"
        elif isinstance(thing, functools.partial):
            yield "partial"
            yield from self.parts([thing.func, thing.args, thing.keywords])
        elif isinstance(thing, staticmethod | classmethod):
            yield type(thing).__name__
            yield from self.parts(thing.__func__)
        elif isinstance(thing, property):
            yield "property"
            yield from self.parts([thing.fget, thing.fset, thing.fdel])
        elif isinstance(thing, type):
            yield from self._class(thing)
        else:
            yield from self._object(thing)

    def _function(self, function: types.FunctionType) -> Iterator[str]:
        if _installed(function):
            yield f"function {function.__module__}.{function.__qualname__}"
            return
        yield "function"
        yield from self._code(function.__code__)
        yield from self.parts([function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                yield from self.parts(cell.cell_contents)
            except ValueError:
                yield "empty"
        yield from self._globals(sorted(_names(function.__code__)), function.__globals__)

    def _globals(
        self, names: list[str], namespace: Mapping[str, Any], parents: tuple[types.ModuleType, ...] = ()
    ) -> Iterator[str]:
        for name in names:
            if name not in namespace or name.startswith("__"):
                continue
            value = namespace[name]
            yield " ".join(["global", *(parent.__name__ for parent in parents), name])
            yield from self.parts(value)
            # From a module of the user's, what the code names: `helpers.scale`.
            if isinstance(value, types.ModuleType) and not _is_installed(value) and value not in parents:
                yield from self._globals(names, vars(value), (*parents, value))

    def _code(self, code: types.CodeType) -> Iterator[str]:
        yield f"code {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags}"
        yield " ".join([*code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars])
        # By instruction, with what each refers to: a docstring moves the numbers of all other constants, and line breaks
        # leave instructions that do nothing.
        instructions = [instruction for instruction in dis.get_instructions(code) if instruction.opname != "NOP"]
        offsets = [instruction.offset for instruction in instructions]
        for instruction in instructions:
            if instruction.opcode in dis.hasconst:
                yield instruction.opname
                yield from (
                    self._code(instruction.argval)
                    if isinstance(instruction.argval, types.CodeType)
                    else self.parts(instruction.argval)
                )
            elif instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
                yield f"{instruction.opname} to {bisect_left(offsets, instruction.argval)}"
            else:
                yield f"{instruction.opname} {instruction.argval!r}"
        for entry in getattr(dis.Bytecode(code), "exception_entries", ()):
            yield f"except {[bisect_left(offsets, at) for at in (entry.start, entry.end, entry.target)]} {entry.depth}"

    def _class(self, class_: type) -> Iterator[str]:
        if _installed(class_):
            yield f"class {class_.__module__}.{class_.__qualname__}"
            return
        yield f"class {class_.__name__}"
        yield from self.parts(list(class_.__bases__))
        for name, value in sorted(vars(class_).items()):
            if name not in _IGNORED_ATTRIBUTES and not name.startswith("_cloudpickle"):
                yield name
                yield from self.parts(value)

    def _object(self, thing: Any) -> Iterator[str]:
        kind = type(thing)
        if kind.__module__.partition(".")[0] == "py4j":
            # A Java object of Spark's, with another number each time.
            yield "java"
            return
        yield f"object {kind.__module__}.{kind.__qualname__}" if _installed(kind) else f"object {kind.__name__}"
        if not _installed(kind):
            yield from self.parts(kind)
        inner = getattr(thing, "__dict__", None) or _slots(thing)
        if inner:
            for name, value in sorted(inner.items()):
                yield str(name)
                yield from self.parts(value)
            return
        text = repr(thing)
        # A default repr shows an address: only the class is known.
        yield "" if " at 0x" in text else text


def _names(code: types.CodeType) -> set[str]:
    """The names that code, and the functions inside it, look up."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _names(const)
    return names


def _slots(thing: Any) -> dict[str, Any]:
    names = [name for kind in type(thing).__mro__ for name in _listed(vars(kind).get("__slots__", ()))]
    return {name: getattr(thing, name) for name in names if hasattr(thing, name)}


def _listed(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _installed(thing: Any) -> bool:
    """Whether it can be looked up in an installed module: then its name identifies it."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    return module is not None and "<locals>" not in thing.__qualname__ and _is_installed(module)


def _is_installed(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return module.__name__ != "__main__"
    parts = Path(file).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return Path(sys.base_prefix).resolve() / "lib" in Path(file).resolve().parents or module.__name__.startswith(
        "riverrun."
    )
