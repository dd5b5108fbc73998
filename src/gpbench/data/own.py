"""A table of one's own as a private data set: its catalogue entry, raw file and prepared arrays, in one step."""

import dataclasses
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Literal

import yaml

from gpbench import config
from gpbench.config.compose import OWN_NAME, OWN_NAMES, defaults
from gpbench.config.schema import Dataset, Source, Task
from gpbench.data import prepare, table
from gpbench.data.raw import fetch
from gpbench.data.readers import encode, formats
from gpbench.errors import UserError, count
from gpbench.places import Places, write_aside, write_text

MARKS = re.compile(r"[,%$€£\s]")  # that people write within numbers
STRANGE = re.compile(r"\$\{|[\x00-\x1f\x7f-\x9f]")  # what descriptions take for a key, and terminals for a command
CLASSES = ("binary", "multiclass")
EXTENSIONS = re.compile(rf"(?<=.)\.[^.]*({'|'.join(map(re.escape, formats.OPENERS))})?$")
Columns = dict[str, list[str]]  # name -> cells


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What a user says of a table: names of columns, the cell that stands for a missing value, task and name."""

    targets: Sequence[str]
    categorical: Sequence[str] = ()
    drop: Sequence[str] = ()
    missing: str = ""
    task: Task | Literal[""] = ""
    name: str = ""


def add(path: Path, wishes: Wishes, where: Places) -> tuple[Dataset, int]:
    """Add the CSV at `path`, whose first line names its columns, as a private data set; and how many rows lack a cell.

    Writes data/raw/NAME/FILE, conf/dataset/NAME.yaml and data/prepared/NAME.npz. Raises UserError, with nothing
    written, for a name that is taken and for a table that cannot be read, with file, line and column."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; give a CSV whose first line names its columns")
    name = _free_name(name_of(path, wishes.name), where)
    item = f"{name}/{path.name}"
    dataset, names, rows = _describe(path, item, name, wishes)
    parsed = encode.build(dataset, names, rows)
    table.check(parsed, name, dataset.task, len(dataset.classes))
    dataset = dataclasses.replace(dataset, rows=len(parsed.inputs), columns=parsed.inputs.shape[1], md5=parsed.md5)
    raw, entry = where.raw / item, where.conf / "dataset" / f"{name}.yaml"
    content = path.read_bytes()
    text = yaml.dump(_changed(dataset), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    with fetch.lock(name, where):
        _free_name(name, where)  # another process may have taken it since
        if not (is_new := not raw.exists()) and raw.read_bytes() != content:
            raise UserError(f"{raw} holds other data, of a set that has no entry; delete it, or choose another --name")
        try:  # the entry comes last: as long as there is none, the set can be added again
            with write_aside(raw) as temporary:
                temporary.write_bytes(content)
            prepare.prepare(dataset, where)
            write_text(entry, text)
            prepare.require_current(config.compose(where.conf, "dataset", name), where)
        except BaseException:
            for made in (entry, where.prepared_file(name), *([raw] if is_new else [])):
                made.unlink(missing_ok=True)
            raise
    return dataset, len(rows) - dataset.rows


class _Dumper(yaml.SafeDumper):
    """Quotes texts that do not begin with a letter: OmegaConf reads 1e-05 as a number, which PyYAML writes bare."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        quoted = None if data[:1].isalpha() or data[:1] == "_" else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=quoted)


_Dumper.add_representer(str, _Dumper.represent_str)


def name_of(path: Path, name: str) -> str:
    """What a table is called: as the user says, or as its file."""
    return name or re.sub(r"\W+", "_", EXTENSIONS.sub("", path.name.lower())).strip("_")


def _free_name(name: str, where: Places) -> str:
    """The name, if no data set has it."""
    if not OWN_NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a name of a data set ({OWN_NAMES}); choose a --name")
    if existing := config.options(where.conf, "dataset").get(name):
        raise UserError(f"data set {name!r} exists ({existing}); choose another --name, or delete that file if yours")
    return name


def _describe(path: Path, item: str, name: str, wishes: Wishes) -> tuple[Dataset, list[str], list[encode.Row]]:
    """The entry of a CSV, without what only its arrays tell; names of the columns and rows of cells."""
    with formats.opened(path) as stream:
        first = next(filter(bytes.strip, stream), b"").decode(errors="replace")
    if "\r" in first and "\n" not in first:
        raise UserError(f"{path}: its lines end by a carriage return alone; save it with the line ends of today")
    source = Source("table", list(wishes.targets), files=[item], header="line", missing=wishes.missing)
    source = dataclasses.replace(source, separator=formats.separator(first))
    names, lines = formats.text(path, source)
    rows = list(lines)
    if not names:
        raise UserError(f"{path} is empty; give a CSV whose first line names its columns")
    for kind, chosen in (("target", wishes.targets), ("column", [*wishes.categorical, *wishes.drop])):
        config.require_known(kind, chosen, names, f"the columns of {path}")
    chosen = [*wishes.targets, *wishes.categorical, *wishes.drop]
    if twice := [column for column in chosen if chosen.count(column) > 1]:
        raise UserError(f"{path}: {twice[0]!r} is named twice in --target, --categorical and --drop; name it once")
    columns = _columns(path, names, rows, source, wishes)
    inputs = [column for column in columns if column not in wishes.targets]
    if not inputs:
        raise UserError(f"{path} has no column besides targets and dropped ones; at least one input is needed")
    _refuse_text(path, columns, wishes)
    categories = {column: sorted(set(columns[column])) for column in inputs if column in wishes.categorical}
    for column, values in categories.items():
        _refuse_ways(f"{path}: column {column!r}", values, "--drop")
    task, classes = _task(path, columns, wishes)
    texts = [*names, *wishes.missing.split(), item, *classes, *itertools.chain(*categories.values())]
    if strange := list(filter(STRANGE.search, texts)):
        raise UserError(f"{path}: {strange[0]!r} has ${{ or a control character, which no description has; rename it")
    source = dataclasses.replace(source, categories=categories)
    title, drop = EXTENSIONS.sub("", path.name), list(wishes.drop)
    return Dataset(name, title, task, source, None, 1, 1, private=True, classes=classes, drop=drop), names, rows


def _columns(path: Path, names: list[str], rows: list[encode.Row], source: Source, wishes: Wishes) -> Columns:
    """The cells of the columns that are kept, of the rows that have a value in all of them."""
    if "" in names:
        place = names.index("") + 1
        raise UserError(f"{path}: column {place} has no name; name it (pandas: to_csv(index=False) omits the index)")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path}: columns {repeated} stand in the header more than once; rename all but one")
    for where, cells in rows:
        if len(cells) != len(names):
            raise UserError(f"{where}: {len(cells)} columns, expected {len(names)}")
    used = {name: i for i, name in enumerate(names) if name not in wishes.drop}
    if unnamed := [name for name in used if re.fullmatch(r"Unnamed: [\d.]+", name)]:
        raise UserError(f"{path}: {unnamed[0]!r} is what pandas calls a column without a name; --drop or rename it")
    named = [names.index(name) for name in wishes.categorical]
    kept = [cells for _, cells in rows if not encode.has_missing(source, cells, used.values(), named)]
    if not kept:
        raise UserError(f"{path} has no complete rows below its header")
    return {name: [cells[i] for cells in kept] for name, i in used.items()}


def _refuse_text(path: Path, columns: Columns, wishes: Wishes) -> None:
    """Name all columns at once that are no numbers though neither classes nor categories, and what to do about them."""
    first, leave_out = wishes.targets[0], "--missing {} to leave out such rows"
    if wishes.missing:
        leave_out = "write all missing cells alike, as --missing takes one ({} for these)"
    free = {*wishes.categorical, *([first] if wishes.task in CLASSES else [])}
    others = {name: [cell for cell in columns[name] if not _is_number(cell)] for name in columns if name not in free}
    texts = {name: cells for name, cells in others.items() if cells}
    if empty := [name for name, cells in columns.items() if "" in cells]:
        raise UserError(f"{path}: empty cells in {', '.join(empty)}; --drop a column, or {leave_out.format('empty')}")
    if marked := [name for name, cells in texts.items() if any(_is_number(MARKS.sub("", cell)) for cell in cells)]:
        wrong = f"numbers with commas, blanks, % or a currency in {', '.join(marked)}"
        raise UserError(f"{path}: {wrong}; write them as 1234.5, or see --categorical and --task")
    if not wishes.task and texts.get(first) == columns[first]:
        del texts[first]  # of text alone: classes
    for name in wishes.targets:
        if name in texts:
            cell, is_odd = repr(texts[name][0]), encode.is_odd_number(texts[name][0])
            fault = "which is not a finite number;" if is_odd else "which is not a number; take --task multiclass, or"
            raise UserError(f"{path}: target {name!r} holds {cell}, {fault} {leave_out.format(cell)}")
    if texts:
        shown = ", ".join(f"{name} ({cells[0]!r})" for name, cells in texts.items())
        remedy = f"add --categorical {shlex.join(texts)}, --drop, or {leave_out.format('WORD')}"
        raise UserError(f"{path}: columns with what is not a finite number: {shown}; {remedy}")


def _task(path: Path, columns: Columns, wishes: Wishes) -> tuple[Task, list[str]]:
    """The task and the names of the classes: text, or two numbers, are classes unless the user says otherwise."""
    cells = columns[wishes.targets[0]]
    target = f"{path}: target {wishes.targets[0]!r}"
    if odd := next(filter(encode.is_odd_number, cells), None):
        raise UserError(f"{target} holds {odd!r}, which is not a finite number")
    values = sorted(set(cells), key=lambda cell: (float(cell) if _is_number(cell) else math.inf, cell))
    numbers = all(map(_is_number, values))
    size = len(set(map(Decimal, values))) if numbers else len(values)
    likely: Task = "regression" if numbers and size != 2 else "binary" if size == 2 else "multiclass"
    task = wishes.task or likely
    if task not in CLASSES:
        return task, []
    if len(wishes.targets) > 1:
        raise UserError(f"{path}: a task of classes has one target, not {len(wishes.targets)}; see --target and --task")
    _refuse_ways(target, values, "--task")
    if len(values) < 2 or (task == "binary" and len(values) != 2):
        raise UserError(f"{target} has {count(len(values), 'value')}: not {task}; see --task")
    if not (wishes.task or numbers) and size == len(cells):
        raise UserError(f"{target} has another text in every row ({cells[0]!r}, ...): write numbers, or see --task")
    return task, values


def _refuse_ways(subject: str, values: list[str], option: str) -> None:
    """Refuse numbers as names of which some are one number, as which pandas would read them, too."""
    if all(map(_is_number, values)) and (size := len(set(map(Decimal, values)))) < len(values):
        ways = f"writes {count(size, 'number')} in {len(values)} ways: {', '.join(values)}"
        raise UserError(f"{subject} {ways}; take one way for each, or see {option}")


def _is_number(cell: str) -> bool:
    return encode.number(cell) is not None


def _changed(dataset: Dataset) -> dict[str, object]:
    """The keys of an entry that differ from their defaults, `source` likewise."""

    def differing(item: Dataset | Source, leave_out: Iterable[str] = ()) -> dict[str, object]:
        default = defaults(type(item))
        values = {key: getattr(item, key) for key in default if key not in leave_out}
        return {key: value for key, value in values.items() if value != default[key]}

    return differing(dataset, ("name", "source")) | {"source": differing(dataset.source)}
