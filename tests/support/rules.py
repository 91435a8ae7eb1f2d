"""The house rules of docs/en/architecture.md, checked on a package's syntax trees: each rule returns its violations."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Imports allowed for each layer within the package. A name includes everything below it.
LAYERS: dict[str, tuple[str, ...]] = {
    "i18n": (),
    "jobs": ("i18n", "remote"),
    "remote": (),
    "backends": ("i18n", "jobs", "remote"),
    "diagnosis": ("i18n", "jobs"),
    "fanout": ("i18n", "jobs", "remote", "backends.base"),
    "render": ("i18n", "jobs", "backends.base"),
    "transfer": ("i18n", "jobs", "backends.base", "fanout"),
    "recording": ("i18n", "jobs", "backends.base", "diagnosis", "fanout", "render"),
    "smoke": ("i18n", "jobs", "remote", "backends.base", "diagnosis", "fanout", "render"),
    "stacks": ("i18n", "jobs", "remote", "backends.base", "diagnosis", "fanout", "render"),
    # A wrapper is the other end of the hosts backend, and speaks to its peers through it.
    "run": ("i18n", "jobs", "remote", "backends.base", "backends.hosts", "diagnosis", "fanout", "render"),
    "cli": (
        *("i18n", "jobs", "remote", "backends", "diagnosis", "fanout", "render"),
        *("recording", "run", "smoke", "stacks", "transfer"),
    ),
    "packaging": (),
    "__main__": ("cli", "jobs"),
    "__init__": (),
}

#: The layers that may import each third-party package.
KNOWS: dict[str, tuple[str, ...]] = {
    "typer": ("cli",),
    "rich": ("render",),
    "yaml": ("render", "backends.kubernetes"),
    "kubernetes": ("backends.kubernetes",),
    "aiohttp": ("backends.kubernetes",),
    "yarl": ("backends.kubernetes",),
    "asyncssh": (
        *(f"backends.hosts.{name}" for name in ("checkup", "connect", "hostkeys", "jobkeys", "keys", "stream")),
        "run.serving",
    ),
    "torch": ("remote.smoke.probe", "cli.demo_job.train"),
    "zstandard": ("recording.packed",),
    "apprise": ("cli.commands.notify",),
    "pydantic_core": ("diagnosis.scanner",),
    "babel": ("packaging.messages",),
}

#: Kinds of backend, which must not import each other.
BACKENDS = ("backends.kubernetes", "backends.hosts")

#: Import name -> its extra; all others are dependencies.
_EXTRAS = {"torch": "smoke", "babel": "dev", "zstandard": "zstd", "apprise": "notify"}

#: Import name -> distribution, if they differ.
DISTRIBUTIONS = {"yaml": "pyyaml", "pydantic_core": "pydantic-core"}

#: Standalone programs: they import only the standard library (and packages granted by KNOWS) and modules next to them.
ALONE = ("remote", "remote.smoke.probe", "cli.demo_job")

#: Executes text that it was sent.
RUNS_TEXT = ("remote.boot",)

MAX_LINES = 1_000
#: Must be a single file: it runs under plain torchrun, copied to where it is needed.
ONE_FILE = ("remote.smoke.probe",)


@dataclass(frozen=True)
class Module:
    """A source file. `name` is dotted, without the package's name: `cli.exec`, `jobs`, `__main__`."""

    package: str
    name: str
    text: str
    is_package: bool = False

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def layer(self) -> str:
        return self.name.partition(".")[0]

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 0)}: {what}"


def load(folder: Path) -> list[Module]:
    """All modules of the package in `folder`."""
    return [_module(folder, path) for path in sorted(folder.rglob("*.py"))]


def _module(folder: Path, path: Path) -> Module:
    parts = path.relative_to(folder).with_suffix("").parts
    is_package = parts[-1] == "__init__" and len(parts) > 1
    return Module(folder.name, ".".join(parts[:-1] if is_package else parts), path.read_text(), is_package)


def within(name: str, scope: str) -> bool:
    """Whether `name` is `scope` or below it."""
    return name == scope or name.startswith(scope + ".")


def imports(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """All imports, at any level, as absolute dotted names; `from a import b` gives `a.b`."""
    own = [module.package, *module.name.split(".")] if module.name != "__init__" else [module.package]
    parent = own if module.is_package or module.name == "__init__" else own[:-1]
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parent[: len(parent) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node, f"{start}.{alias.name}") for alias in node.names)


def inner(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Imports of the package's modules, without the package's name."""
    for node, name in imports(module):
        package, _, rest = name.partition(".")
        if package == module.package and rest != "__version__":
            yield node, rest


def layers(module: Module) -> list[str]:
    """A layer imports only what the table allows; backends do not import each other."""
    if module.layer not in LAYERS:
        return [f"{module.name}: the layer {module.layer} is not in the table"]
    found = []
    for node, name in inner(module):
        granted = any(within(name, scope) for scope in (*LAYERS[module.layer], module.layer))
        if not granted or _crosses_backends(module.name, name):
            found.append(module.at(node, f"must not import {name}"))
    return found


def _crosses_backends(importer: str, imported: str) -> bool:
    """Whether a backend, or code shared by the backends, imports another backend."""
    kind = next((scope for scope in BACKENDS if within(imported, scope)), None)
    return kind is not None and within(importer, "backends") and not within(importer, kind)


def alone(module: Module) -> list[str]:
    """Standalone programs import nothing of the package except modules next to them."""
    found = []
    for scope in ALONE:
        if within(module.name, scope):
            found += [
                module.at(node, f"runs alone, must not import {name}")
                for node, name in inner(module)
                if not within(name, scope)
            ]
    return found


def third_party(module: Module) -> list[str]:
    """Only the layers in KNOWS import third-party packages."""
    found = []
    for node, name in imports(module):
        top = name.partition(".")[0]
        if top == module.package or top in sys.stdlib_module_names:
            continue
        if not any(within(module.name, scope) for scope in KNOWS.get(top, ())):
            found.append(module.at(node, f"must not import {top}"))
    return found


def undeclared(modules: Sequence[Module], pyproject: str) -> list[str]:
    """Imported packages are declared in pyproject.toml: as dependencies, or in the extra of `_EXTRAS`."""
    project = tomllib.loads(pyproject)["project"]
    declared = {"base": project["dependencies"], **project.get("optional-dependencies", {})}
    names = {group: {re.split(r"[^\w.-]", line)[0].lower() for line in lines} for group, lines in declared.items()}
    imported = {name.partition(".")[0] for module in modules for _, name in imports(module)}
    foreign = imported - sys.stdlib_module_names - {module.package for module in modules}
    return [
        f"{name} is imported and not declared"
        for name in sorted(foreign)
        if DISTRIBUTIONS.get(name, name) not in names.get(_EXTRAS.get(name, "base"), set())
    ]


def prints(module: Module) -> list[str]:
    """`print` only in render/; `rich.print` nowhere."""
    found = [module.at(node, "rich.print") for node, name in imports(module) if name == "rich.print"]
    for node in module.nodes:
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "rich.print" or (called in ("print", "builtins.print") and module.layer != "render"):
                found.append(module.at(node, called))
    return found


def swallowed(module: Module) -> list[str]:
    """No bare handler and no handler of all exceptions that does nothing."""
    found = []
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler):
            caught = {None} if node.type is None else {ast.unparse(t) for t in getattr(node.type, "elts", [node.type])}
            silent = all(isinstance(s, ast.Pass | ast.Continue) or _is_constant(s) for s in node.body)
            if silent and caught & {None, "Exception", "BaseException"}:
                found.append(module.at(node, "swallows every exception"))
    return found


def _is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def evaluated(module: Module) -> list[str]:
    """Text is never run as code or as a shell command: `eval`, `exec`, `os.system`, `os.popen`, `shell=True`."""
    found = []
    for node in module.nodes:
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if module.name in RUNS_TEXT and called == "exec":
                continue
            if called in ("eval", "exec", "os.system", "os.popen") or called.endswith("create_subprocess_shell"):
                found.append(module.at(node, called))
            if any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords):
                found.append(module.at(node, "shell=True"))
    return found


#: Fields with texts for people, and expressions that decide by such a text.
_TEXTS = ("message", "hint", "evidence")
_LOOKS = (
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "find", "index", "search", "match"),
    "replace",
)


def decided_by_text(module: Module) -> list[str]:
    """No decision by the text of a message: `in str(error)`, `error.message == ...`, `.message.startswith(...)`.

    The diagnosis is exempt: messages of logs and events are its evidence.
    """
    if module.layer == "diagnosis":
        return []
    caught = {node.name for node in module.nodes if isinstance(node, ast.ExceptHandler) and node.name}

    def is_text(node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("str", "repr") and node.args:
            return isinstance(node.args[0], ast.Name) and node.args[0].id in caught
        return isinstance(node, ast.Attribute) and node.attr in _TEXTS

    found = []
    for node in module.nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            literal = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)
            within = any(isinstance(op, ast.In | ast.NotIn) for op in node.ops) and is_text(sides[-1])
            if within or (literal and any(map(is_text, sides))):
                found.append(module.at(node, ast.unparse(node)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            on_text = node.func.attr in _LOOKS and is_text(node.func.value)
            if on_text or (node.func.attr in ("search", "match", "fullmatch") and any(map(is_text, node.args))):
                found.append(module.at(node, ast.unparse(node)))
    return found


#: Layers whose errors and reasons are messages, and the constructors of such texts.
_SPEAKING = ("jobs", "backends", "fanout", "transfer", "recording")
_ENDS = ("Lost", "FailedToStart")
_ERRORS = ("AtlctlError", "UsageError", "NothingMatched", "NotAllowed", "TimedOut", "Unreachable", "NoServer", "NoLog")
#: Command lines, which are not translated.
_COMMAND = re.compile("(atlctl|ulimit|worker-0:) ?")


def untranslated(module: Module) -> list[str]:
    """Error texts for people are a `Message`; a hint that is only a command needs no translation."""
    if module.layer not in _SPEAKING:
        return []
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    return [
        module.at(text, ast.unparse(text))
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in (*_ERRORS, *_ENDS)
        for text in call.args
        if isinstance(text, ast.Constant | ast.JoinedStr) and _is_sentence(text)
    ]


def _is_sentence(node: ast.Constant | ast.JoinedStr) -> bool:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "" for part in parts)
    return " " in text.strip() and _COMMAND.match(text) is None


def too_long(module: Module) -> list[str]:
    """A file has at most MAX_LINES lines."""
    lines = 0 if module.name in ONE_FILE else len(module.text.splitlines())
    return [f"{module.name}: {lines} lines, {MAX_LINES} at most"] if lines > MAX_LINES else []


def event_loops(modules: Sequence[Module]) -> list[str]:
    """Only one place starts the event loop; lists all of them if there are more."""
    starts = ("asyncio.run", "asyncio.Runner", "asyncio.new_event_loop")
    found = [
        module.at(node, ast.unparse(node.func))
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) in starts
    ]
    return found if len(found) > 1 else []
