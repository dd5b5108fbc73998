"""Pages of papers, our findings in sentences, and the ledger of protocols."""

import shutil

import numpy as np
import pandas as pd
import pytest
import yaml
from claims_cases import BETTER, CARD, CONF, judged, quick_run, run

from gpbench.config.evidence import Claim, Comparison, Evidence, Explanation
from gpbench.errors import UserError
from gpbench.report.papers import claims, finding, protocol
from projects import REPOSITORY


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return quick_run(tmp_path_factory.mktemp("claims") / "quick")


@pytest.fixture(scope="module")
def text(quick):
    """The page of a paper with one claim, and two rows of its scorecard: one explained, one open."""
    claim = Claim("Two layers win.", "Table 4", [Comparison(**BETTER | {"datasets": ["boston", "yacht"]})])
    why = Explanation("Table 4", "It stops early.", "experiment 1", dataset="boston")
    evidence = Evidence("2020-01-01", "An old finding.", [claim], explanations=[why])
    card = CARD[(CARD["source"] == "ashman2020") & (CARD["item"] == "Table 4")].iloc[:20]
    card = card.assign(verdict="not run: x", run="", ours_method="svgp").set_index(np.arange(20))
    card.loc[0, ["verdict", "run"]] = "worse", "quick"
    card.loc[9, "verdict"] = "differs"
    card.loc[1, ["verdict", "run", "published"]] = "better", "quick", 1.0
    card.loc[2, ["verdict", "run", "published"]] = "better", "quick", 777.0  # passed before the first recorded step
    return finding.page("ashman2020", evidence, card, [quick], CONF, "none\n")


def test_a_difference_of_what_is_better_when_higher_is_shown_as_it_is_and_not_as_a_loss(quick):
    """For 54 % of effective draws against 0.4 % a page had "HMC v2 < ELL-SS, -53.6"."""
    (result,) = judged([quick], metric="accuracy")
    loss, (*_, relation, label, shown, _, _, _, _) = result.difference, finding._difference(result)
    assert loss.mean < 0
    assert (relation, label) == ("DSVI (2 layers) > SVGP", "accuracy")
    assert shown == f"{-loss.mean:+.3f} [{-loss.upper:+.3f}, {-loss.lower:+.3f}]"
    assert finding._datasets([result], 1) == f"boston {-loss.mean:+.2f} [{-loss.upper:+.2f}, {-loss.lower:+.2f}]"


def test_a_page_shows_verdict_statistic_and_evidence_of_each_claim(text, quick):
    d = judged([quick])[0].difference
    row = (
        f"| 1 | common | boston | DSVI (2 layers) &lt; SVGP | MNLL | {d.mean:+.3f} [{d.lower:+.3f}, {d.upper:+.3f}] | "
    )
    assert row in text
    assert "| Two layers win. | Table 4 | - | holds (1 holds, 1 not run) at budget quick (1) |" in text
    assert "quick, budget quick, commit 0123abc |" in text
    assert "- `snakemake --cores 2 --config study=uci_common`" in text
    assert "**The finding is older than its evidence**: quick (2026-01-02)" in text


def test_a_finding_is_as_old_as_its_last_fit(quick, monkeypatch):
    days = ["2026-01-01T00:00"] * (len(quick.view.done) - 1) + ["2026-01-03T23:59"]
    monkeypatch.setitem(quick.view.done, "ended", days)
    found = [finding._newer(Evidence(day, "x", []), [quick.view]) for day in ("2026-01-03", "2026-01-02")]
    assert found[0] == []
    assert "quick (2026-01-03)" in found[1][0]


def test_what_was_not_run_names_the_last_of_its_studies():
    (lacking,) = judged([], studies=["uci_common", "uci_converged"])
    assert "- `snakemake --cores 2 --config study=uci_converged`" in finding._commands([[lacking]])
    assert len(finding._commands([[lacking, lacking]])) == 3


def test_data_sets_that_tell_nothing_are_counted(tmp_path):
    claim = Claim("Depth pays.", "DSVI", [Comparison(**BETTER | {"datasets": ["boston", "energy"]})])
    text = finding.bullets([claim], [run(tmp_path / "one", splits=1)], CONF)
    assert text == "- **Depth pays.** DSVI: not significant on 2 data sets (-0.50 to -0.50) (one, 1 split).\n"


@pytest.mark.parametrize("of", ["finding", "untested"])
def test_a_run_that_a_finding_names_is_listed(quick, of):
    claim = Claim("Chains agree.", "Figure 5", untested="quick alone" if of == "untested" else "no score")
    evidence = Evidence("2020-01-01", f"Chains of `{'quick' if of == 'finding' else 'none'}` agree.", [claim])
    page = finding.page("ashman2020", evidence, CARD.iloc[:0], [quick], CONF, "none\n")
    assert "| quick | common | quick |" in page.split("## Runs that this page uses")[1]


def test_worse_rows_stand_below_their_explanation_or_are_open(text):
    explained, left = text.split("It stops early. Shown by: experiment 1")[1].split("**Open**")
    assert explained.count("- Table 4, boston") == 1 == left.count("- Table 4, concrete")
    assert "worse at budget" in explained
    assert "differs (our data set)" in left


def test_without_a_judged_number_none_is_said_to_do_well():
    of_paper = CARD[CARD["verdict"].str.startswith("not run")]
    assert finding._explained(Evidence("2020-01-01", "None.", []), of_paper) == [
        "Of 0 judged numbers (0 inconclusive) none is worse than printed or differs.\n"
    ]


def test_a_printed_number_that_training_passes_is_shown_with_its_step(text):
    table = text.split("numbers that training passes**")[1]
    assert "| Table 4 | boston | SGP 500 | MNLL | 1.00 |" in table
    assert "777" not in table


def test_the_ledger_shows_what_each_protocol_adds(quick, tmp_path):
    splits = {"a": [f"yacht,{i},{i}" for i in range(5)] + [f"boston,{i},{i}" for i in range(4)]}
    splits["b"] = splits["a"][:4]  # lacks a split
    for name, lines in splits.items():
        (tmp_path / f"numbers_{name}.csv").write_text("\n".join(["dataset,split,mnll", *lines]))
    text = protocol.ledger([quick.view], CARD, tmp_path)
    assert "| boston | common | +0.693 |" in text
    mean = quick.view.per_split("mnll", "boston")["dsvi"]
    densities = f"{mean.mean():.3f} ± {mean.std():.3f} (5) | -0.250 ± 0.000 (5) | 0.500 ± 0.000 (5) |"
    assert f"| quick | boston | DSVI (2 layers) | {densities}" in text
    assert "Largest mean of a cell, either way: 0.250 and 0.500 nats." in text
    assert "| numbers | yacht | 1 | 5 | -1.500 | -1.000 | - |" in text
    assert "| numbers | boston |" not in text, "of too few splits"
    assert "| rossi2021 | population sd | 8 | 1.07 |" in text
    assert "no record has it" in protocol.ledger([], CARD, tmp_path / "none")


def test_the_ledger_puts_printed_numbers_on_one_scale_and_their_spreads_beside_each_other(quick, tmp_path):
    """The shift of `quick` is log 2; it tests 40 rows of 400."""
    printed = {"dataset": "boston", "protocol": "common", "spread_kind": "standard error", "spread": 0.1, "splits": 4}
    rows = [
        printed | {"source": "scaled2020", "ours_metric": "mnll_scaled", "factor": -1, "value": -1.0},
        printed | {"source": "plain2020", "ours_metric": "mnll", "factor": 1, "value": 2.0},
    ]
    text = protocol.ledger([quick.view], pd.DataFrame(rows), tmp_path)
    assert "| boston | scaled2020 | standardised | 1 | 1.00 | 0.693 | 1.69 |" in text
    assert "| boston | plain2020 | original | 1 | 2.00 | 0.00 | 2.00 |" in text
    errors = np.array([1, np.sqrt(1 + 4 / 9)])
    assert f"| scaled2020 | standard error | 4 | 2.00 | {errors[0]:.2f} | {errors[1]:.2f} |" in text


def test_pages_are_made_from_the_files_alone(tmp_path):
    (tmp_path / "published").mkdir()
    shutil.copytree(REPOSITORY / "published" / "claims", tmp_path / "published" / "claims")
    (tmp_path / "conf").symlink_to(CONF)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "errata.md").write_text("## rossi2021\n\n| no. | a | proof |\n|---|---|---|\n| 1 | b | c |\n")
    pages = finding.pages(tmp_path, CARD[CARD["verdict"] != "better"], [])
    assert set(pages) == set(CARD["source"])
    assert "| 1 | b |\n\nProofs" in pages["rossi2021"]
    assert "None noticed." in pages["ashman2020"]
    assert "10 claims with comparisons: 10 not run" not in pages["ashman2020"]
    assert "of 9 claims with comparisons: 9 not run" in pages["ashman2020"]


def test_our_findings_say_where_they_hold_with_the_differences(quick, tmp_path):
    path = tmp_path / "findings.yaml"
    found = {
        "claim": "Depth pays.",
        "where": "DSVI and SVGP",
        "comparisons": [BETTER | {"datasets": ["boston_uci", "energy"]}],
    }
    path.write_text(yaml.safe_dump({"claims": [found]}))
    text = finding.bullets(claims.ours(path, CONF), [quick], CONF)
    (energy,) = judged([quick], "energy")
    assert text == (
        f"- **Depth pays.** DSVI and SVGP: not run on boston_uci; holds on energy {energy.difference.mean:+.2f} "
        f"[{energy.difference.lower:+.2f}, {energy.difference.upper:+.2f}] ({quick.view.folder.name}, 5 splits).\n"
    )
    for n in range(60, 100):  # wherever the line ends
        path.write_text(yaml.safe_dump({"claims": [found | {"where": f"{'x' * n} DSVI - SVGP"}]}))
        text = finding.bullets(claims.ours(path, CONF), [quick], CONF)
        assert " - SVGP" in text or " -\n  SVGP" in text
        assert "\n  - " not in text
    path.write_text(yaml.safe_dump({"claims": [found | {"comparisons": [BETTER | {"methods": ["dsvi", "svpg"]}]}]}))
    with pytest.raises(UserError, match=r"unknown method 'svpg' in claim 1 of .*findings\.yaml; did you mean 'svgp'"):
        claims.ours(path, CONF)
