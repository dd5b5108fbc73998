"""Citations of a study, and its RO-Crate (https://www.researchobject.org/ro-crate/specification/1.1/)."""

import hashlib
import json
import re
import subprocess
import sys
import zipfile

import pandas as pd
import pytest
from synthetic_study import build, change_scores, change_study

from gpbench import places
from gpbench.cli.main import main
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.report.export import citations, crate


def one_failed(method, dataset, split):
    return ("failed", "x") if (method, dataset, split) == ("constant", "banana", 1) else ("done", "")


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    """A project with the real conf/ and a finished study whose outputs are stand-ins."""
    root = tmp_path_factory.mktemp("project")
    (root / "conf").symlink_to(places.find().conf)
    folder = build(root / "results" / "tiny", ["svgp", "constant"], ["boston", "banana"], 2, one_failed)
    minutes = pd.read_parquet(folder / "scores.parquet")["split"]
    times = ("2024-01-01T00:0" + each.astype(str) + ":00.000+00:00" for each in (minutes, minutes + 2))
    change_scores(folder, **dict(zip(("started", "ended"), times, strict=True)))
    change_study(folder, title="A tiny study", commit="", versions={"torch": "2.0"})
    found = Places(root, root / "store")
    found.plans.mkdir()
    planned = [{"fit_id": fit_id} for fit_id in crate.View(folder).fits["fit_id"]]
    (found.plans / "tiny.json").write_text(json.dumps({"cells": [{"fits": planned}]}))
    for path in crate.files(crate.View(folder), found.plans / "tiny.json").values():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            end = {".png": b"IEND\xaeB`\x82", ".pdf": b"%%EOF\n", ".html": b"</html>"}.get(path.suffix, b"\n")
            path.write_bytes(b'{"cells": []}' if path.suffix == ".json" else b"content of " + path.name.encode() + end)
    return found


@pytest.fixture(scope="module")
def packed(where):
    """(what the archive holds, name -> bytes; its metadata, @id -> entity)."""
    with zipfile.ZipFile(crate.write(where, "tiny")) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    described = json.loads(content["ro-crate-metadata.json"])
    assert described["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
    assert len({entity["@id"] for entity in described["@graph"]}) == len(described["@graph"])
    return content, {entity["@id"]: entity for entity in described["@graph"]}


def test_the_crate_describes_exactly_the_files_that_it_holds(packed):
    content, entities = packed
    assert entities["ro-crate-metadata.json"]["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    root = entities[entities["ro-crate-metadata.json"]["about"]["@id"]]
    assert {"name", "description", "datePublished", "license"} <= root.keys()
    parts = {part["@id"] for part in root["hasPart"]}
    assert parts == content.keys() - {"ro-crate-metadata.json"}
    for name in parts:
        assert entities[name]["@type"] == "File"
        assert entities[name]["sha256"] == hashlib.sha256(content[name]).hexdigest()
        assert entities[name]["contentSize"] == str(len(content[name]))
        assert "/" in entities[name]["encodingFormat"]


def test_every_reference_of_the_crate_has_its_entity(packed):
    _, entities = packed

    def references(value):
        if isinstance(value, dict):
            return [value["@id"]] if value.keys() == {"@id"} else references(list(value.values()))
        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    named = set(references(list(entities.values())))
    assert named - entities.keys() == {"https://w3id.org/ro/crate/1.1"}


def test_the_crate_says_what_ran_on_what(packed):
    content, entities = packed
    run = entities["#run"]
    assert (run["@type"], run["instrument"]) == ("CreateAction", {"@id": "#gpbench"})
    assert (run["startTime"], run["endTime"]) == ("2024-01-01T00:00:00+00:00", "2024-01-01T00:03:00+00:00")
    assert [{"@id": name} in run["object"] for name in ("#data-boston", "plan.json")] == [True, True]
    assert entities["#gpbench"]["version"].endswith(", commit unknown")
    assert entities["./"]["name"] == "A tiny study"
    assert entities["#data-boston"]["citation"] == {"@id": "#harrison1978"}
    assert entities["#data-boston"]["identifier"].startswith("md5:")
    assert entities["#package-torch"]["version"] == "2.0"
    said = entities["./"]["description"]
    assert said == "Study tiny: 2 methods on 2 data sets, protocol common, budget quick; 7 of 8 fits done."
    assert b"@inproceedings{hensman2013," in content["citations.bib"]


def test_an_unfinished_study_is_refused_with_what_it_lacks(tmp_path, where):
    def status(method, dataset, split):
        return ("stopped", "x") if split == 2 else ("done", "")

    folder = build(tmp_path / "results" / "half", ["svgp"], ["boston"], 3, status, drop={("svgp", "boston", 1)})
    with pytest.raises(
        UserError, match=r"not finished: 1 fit missing, 1 fit stopped, \d+ files not written \(report.html, ...\); run"
    ):
        crate.write(Places(tmp_path, tmp_path / "store"), "half")
    assert not (folder / "crate.zip").exists()


def test_a_plan_of_later_code_is_not_packed_with_the_scores_of_before(where):
    plan = where.plans / "tiny.json"
    before = plan.read_bytes()
    plan.write_text(json.dumps({"cells": [{"fits": [{"fit_id": "f" * 16}]}]}))
    with pytest.raises(UserError, match="is not finished: 1 fit of a later plan not collected; run"):
        crate.write(where, "tiny")
    plan.write_bytes(before)


@pytest.mark.parametrize(
    "path",
    [
        *("scores.parquet", "statistics.json", "scorecard.csv", "report.html", "tables/cost.html", "tables/cost.tex"),
        *("figures/cost.png", "figures/cost.pdf"),
    ],
)
def test_a_run_with_a_file_that_is_cut_short_is_not_packed(where, path):
    file, packed = where.results / "tiny" / path, where.results / "tiny" / "crate.zip"
    content = file.read_bytes()
    packed.unlink(missing_ok=True)
    file.write_bytes(content[: len(content) // 2])
    try:
        with pytest.raises(UserError, match=rf"{path} is damaged \(.*\); delete it, and snakemake makes it again"):
            crate.write(where, "tiny")
    finally:
        file.write_bytes(content)
    assert not packed.exists()


def test_a_run_with_a_damaged_record_is_not_packed(where):
    recorded = where.root / "docs" / "results" / "tiny" / "scores.csv"
    recorded.parent.mkdir(parents=True)
    recorded.write_text("fit_id,method,dataset,split,replica\n0123456789abcdef,svgp,bos")
    try:
        with pytest.raises(
            UserError, match=r"scores.csv, line 2 is not a record \(the line is cut short\); restore it"
        ):
            crate.write(where, "tiny")
    finally:
        recorded.unlink()


def test_exactly_what_is_used_is_cited(where):
    used = citations.used(where, ["svgp", "svgp", "constant", "gradient_boosting"], ["boston"], "cutajar2017")
    assert used.keys() == {"hensman2013", "friedman2001", "harrison1978", "cutajar2017", "hernandezlobato2015"}
    assert used["hensman2013"] == ["method svgp (SVGP)"]
    text = citations.bibtex(where, used, "0123abc")
    assert re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE) == ["gpbench", *sorted(used)]
    assert "git commit 0123abc" in text
    assert "commit" not in citations.bibtex(where, {}, ""), "of an installation without one"
    assert text.count("{") == text.count("}")


def test_a_protocol_is_cited_by_the_paper_it_is_named_after(where):
    assert citations.used(where, [], [], "filippone2013_real").keys() == {"filippone2013"}
    both = citations.used(where, ["dgp_rff"], [], "cutajar2017")["cutajar2017"]
    assert [purpose.split()[0] for purpose in both] == ["method", "protocol"]


def test_a_key_without_entry_is_a_note_in_its_place(tmp_path):
    conf = places.find().conf
    (tmp_path / "conf").mkdir()
    for folder in ("method", "dataset", "protocol"):
        (tmp_path / "conf" / folder).symlink_to(conf / folder)
    (tmp_path / "conf" / "references.bib").write_text("@book{rasmussen2006,\n  title = {GPs},\n}\n")
    where = Places(tmp_path, tmp_path)
    text = citations.bibtex(where, citations.used(where, ["svgp", "exact_gp"], [], "common_all"), "")
    assert "% method svgp (SVGP)\n% no entry 'hensman2013' in conf/references.bib: add it there" in text
    assert "@book{rasmussen2006" in text


def test_cite_prints_the_study_and_names_an_unknown_one(capsys):
    assert main(["cite", "default", "--overrides", "methods=[exact_gp,dsvi] datasets=[boston,wine]"]) == 0
    text = capsys.readouterr().out
    keys = ("rasmussen2006", "salimbeni2017", "harrison1978", "aeberhard1991", "hernandezlobato2015")
    assert [f"{{{key}," in text for key in keys] == [True] * 5
    assert text.count("\n@") == 6
    assert main(["cite", "default", "--overrides", "methods=[exact_gp] datasets=[boston,wine]"]) == 0
    assert "aeberhard1991" not in capsys.readouterr().out, "exact_gp cannot be fitted to wine"
    assert main(["cite", "defalt"]) == 1
    assert "did you mean 'default'?" in capsys.readouterr().err


def test_citing_imports_no_heavy_library():
    words = ["cite", "default", "--overrides", "methods=[linear] datasets=[boston]"]
    code = (
        f"import sys; from gpbench.cli.main import main; main({words}); print({{'torch', 'pandas'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "@article{mackay1992," in done.stdout
    assert done.stdout.splitlines()[-1] == "set()"
