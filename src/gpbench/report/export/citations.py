"""BibTeX of what a study uses: its methods, data sets and protocol, and gpbench itself. No torch, no pandas."""

import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from gpbench import config
from gpbench.places import Places

UNPUBLISHED = "baseline"  # `reference` of a method without a publication
SPLITS = {"permutation": "hernandezlobato2015"}
"""Scheme of a protocol's splits -> the source of these splits (see `gpbench.data.splits`)."""
_ENTRY = re.compile(r"^@\w+\{([^,\s]+),.*?^\}", re.MULTILINE | re.DOTALL)


def entries(conf: Path) -> dict[str, str]:
    """Citation key -> BibTeX entry, of conf/references.bib of the project and of its plugins."""
    files = [path for folder in config.folders(conf) if (path := folder / "references.bib").is_file()]
    return {match[1]: match[0] for path in files for match in _ENTRY.finditer(path.read_text(encoding="utf-8"))}


def used(where: Places, methods: Iterable[str], datasets: Iterable[str], protocol: str) -> dict[str, list[str]]:
    """Citation key -> the purposes it is cited for; methods: names in conf/method, or of released scores by split.

    Raises UserError for a name without a file in conf/; a key may be missing from conf/references.bib."""
    purposes: dict[str, list[str]] = {}
    released = {path.stem for path in where.per_split.glob("[!.]*.yaml")}
    for name in dict.fromkeys(methods):
        if (where.challengers / name).is_dir():  # somebody's predictions, which have no entry here
            continue
        if name in released:
            whose = config.printed_splits(where.per_split, name)
            purposes.setdefault(whose.reference, []).append(f"released scores {name} ({whose.label})")
            continue
        header = config.compose(where.conf, "method", name).header
        if header.reference != UNPUBLISHED:
            purposes.setdefault(header.reference, []).append(f"method {name} ({header.label})")
    for name in dict.fromkeys(datasets):
        dataset = config.compose(where.conf, "dataset", name)
        if dataset.citation:  # private data have none
            purposes.setdefault(dataset.citation, []).append(f"data set {name} ({dataset.title})")
    # the paper that a protocol is named after (`filippone2013_real`: filippone2013), and the source of its splits
    named, scheme = protocol.split("_")[0], config.compose(where.conf, "protocol", protocol).splits.scheme
    for key in filter(None, (named if named in entries(where.conf) else "", SPLITS.get(scheme))):
        purposes.setdefault(key, []).append(f"protocol {protocol}")
    return purposes


def bibtex(where: Places, purposes: dict[str, list[str]], commit: str) -> str:
    """The entries of these keys (see `used`) in alphabetical order, each below its purposes; gpbench first.

    A note stands where conf/references.bib lacks an entry: one that is missing must not take the others with it."""
    known = entries(where.conf)
    absent = "% no entry {key!r} in conf/references.bib: add it there"
    parts = [f"% {'; '.join(purposes[k])}\n{known.get(k, absent.format(key=k))}" for k in sorted(purposes)]
    return "\n\n".join([_gpbench(commit), *parts]) + "\n"


def _gpbench(commit: str) -> str:
    about = metadata.metadata("gpbench")
    note = f"Version {about['Version']}" + (f", git commit {commit}" if commit else "")
    # BibTeX styles sort an entry without an author by `key`
    fields = {"key": "gpbench", "title": f"{{gpbench}}: {about['Summary']}", "note": note}
    lines = [f"  {name} = {{{text}}}" for name, text in fields.items()]
    return "% the program that compared the methods\n@misc{gpbench,\n" + ",\n".join(lines) + "\n}"


def of_study(where: Places, study: str, overrides: str) -> str:
    """BibTeX of a study, or of a run of one, for the cells that can be fitted."""
    from gpbench.study.planning import plan
    from gpbench.study.storage import provenance

    resolved = plan.resolved(where, *plan.study_words(where, study, overrides))
    cells = resolved.cells
    addresses = [cell.address for cell in cells if not cell.skip]
    methods, datasets = [address.method for address in addresses], [address.dataset for address in addresses]
    purposes = used(where, [*methods, *resolved.study.per_split], datasets, cells[0].address.protocol)
    return bibtex(where, purposes, provenance.commit(where.root).commit)
