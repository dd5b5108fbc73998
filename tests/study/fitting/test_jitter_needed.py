"""A fit notes how often its matrices needed jitter; the note does not depend on what it was batched with or resumed."""

import pytest

from cases import SPLITS, Case, group
from gpbench.gp import linalg
from gpbench.study.records import JITTER

TIMES, LARGEST, MATRICES = JITTER


def needing(name, tmp_path_factory, **hyper):
    """Inducing inputs that no kernel tells apart."""
    return Case(name, "regression", tmp_path_factory, hyper={"jitter": 1e-18, "lengthscale": 1e6} | hyper)


def noted(outcome):
    return {name: outcome.info[name] for name in JITTER if name in outcome.info}


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_each_fit_notes_the_jitter_that_its_matrices_needed(optimiser, tmp_path_factory):
    case = needing("sgpr", tmp_path_factory, optimiser=optimiser)
    first, second, _ = map(noted, case.together)
    assert first[TIMES] >= case.steps / 2
    assert 0 < first[LARGEST] < 1e-4
    assert first[MATRICES] == "sparse GP"
    for outcome, together in zip(case.alone, (first, second), strict=True):
        assert noted(outcome) == together | {LARGEST: pytest.approx(together[LARGEST])}
    # how often it is looked at is no part of a fit
    assert noted(case.fit(group(case.cell, 0, eval_points=9))[0]) == first


def test_a_resumed_fit_has_the_note_of_an_uninterrupted_one(tmp_path_factory):
    case = needing("svgp", tmp_path_factory, optimiser="adam")
    splits, work = range(SPLITS), case.folder()
    assert {o.status for o in case.fit(group(case.cell, *splits, max_minutes=0.0), work=work)} == {"stopped"}
    resumed = case.fit(group(case.cell, *splits), work=work)
    assert [noted(outcome) for outcome in resumed] == [noted(outcome) for outcome in case.together]
    assert all(noted(outcome)[TIMES] > case.steps for outcome in resumed)
    assert linalg.events() == []


def test_a_fit_that_needed_none_notes_nothing(tmp_path_factory):
    assert noted(Case("svgp", "regression", tmp_path_factory).alone[0]) == {}
