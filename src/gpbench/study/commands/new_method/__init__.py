"""`gpbench new method NAME`: a working method to start from, one Python file and one YAML. No torch."""

import contextlib
import keyword
from pathlib import Path

from gpbench import config, methods
from gpbench.config.compose import OWN_NAME, OWN_NAMES
from gpbench.errors import UserError
from gpbench.places import Places, write_aside

CONFIGURATION = """# {label}: one line on what it is (citation)
label: {label}
module: {module}
reference: mackay1992  # the key of your source in conf/references.bib
tasks: [regression]
max_rows: null
schemes: [single, asynchronous]  # the objective is no sum over rows
"""


def method(where: Places, name: str, package: Path | None) -> list[Path]:
    """Write the module and the YAML of a new method, both or none: into the project, or into the folder of a package.
    UserError for a name that is taken or no identifier, and for a folder that is no package."""
    if not OWN_NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(f"{name!r} is not a name of a method: {OWN_NAMES} and no word of Python")
    if taken := config.options(where.conf, "method").get(name):
        raise UserError(f"method {name!r} exists: {taken}; choose another name")
    module, code, conf = _project(where) if package is None else _package(package)
    label = name.replace("_", " ").capitalize()
    contents = {
        code / f"{name}.py": Path(__file__).with_name("method.py").read_bytes().decode().replace("LABEL", label, 1),
        conf / "method" / f"{name}.yaml": CONFIGURATION.format(label=label, name=name, module=f"{module}.{name}"),
    }
    for path, text in contents.items():  # one of this text was left by a command that was killed
        if path.exists() and not (path.is_file() and path.read_bytes() == text.encode()):
            raise UserError(f"{path} exists; choose another name")
    with contextlib.ExitStack() as stack:  # renamed together when it ends, the module before what names it
        for path, text in reversed(contents.items()):
            stack.enter_context(write_aside(path)).write_text(text, encoding="utf-8")
    return list(contents)


def _project(where: Places) -> tuple[str, Path, Path]:
    """Module, folder of modules and conf/ of a checkout; of the one that runs, lest the module be not found."""
    folder = where.root / "src" / "gpbench" / "methods"
    if folder.resolve() not in [Path(path).resolve() for path in methods.__path__]:
        raise UserError(f"gpbench does not run from {folder}; name the folder of a package of yours by --out")
    return "gpbench.methods", folder, where.conf


def _package(folder: Path) -> tuple[str, Path, Path]:
    """The same of a package, which has an __init__.py."""
    folder = folder.absolute()
    if not (folder / "__init__.py").is_file():
        raise UserError(f"{folder} is no Python package: it has no __init__.py; name the folder of one by --out")
    parts, top = [folder.name], folder
    while (top.parent / "__init__.py").is_file():
        top = top.parent
        parts.insert(0, top.name)
    if not all(part.isidentifier() for part in parts):
        raise UserError(f"{'.'.join(parts)!r} is not a name of a Python package; rename the folder")
    return ".".join(parts), folder, folder / "conf"
