"""Variants of a study: methods with settings, one for each combination of listed values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from gpbench import config, places
from gpbench.errors import UserError
from gpbench.study.commands import snakemake_graph as graph
from gpbench.study.fitting import entries
from gpbench.study.planning import compatibility
from gpbench.study.planning import plan as planning
from gpbench.study.planning.resolve import resolve


@pytest.fixture
def study(project):
    """Writes a study of one data set with the given variants, resolves it, and returns its cells by method."""

    def write(variants: dict, overrides: str = "", **keys):
        content = {"name": "mine", "title": "Mine", "methods": [], "datasets": ["wine"], "splits": 1} | keys
        (project / "conf/study/mine.yaml").write_text(yaml.safe_dump(content | {"variants": variants}, sort_keys=False))
        return {cell.method: cell for cell in resolve(places.find(), "mine", overrides).cells}

    return write


RFF = {"method": "dgp_rff", "label": "{kernel}, {num_features} features", "kernel": ["rbf", "arc_cosine"]}


def test_a_variant_for_each_combination_of_listed_values(study):
    found = study({"{kernel}_{num_features}": RFF | {"num_features": [5, 10], "hidden_width": 2}}, methods=["svgp"])
    assert list(found) == ["svgp", "rbf_5", "rbf_10", "arc_cosine_5", "arc_cosine_10"]
    cell = found["arc_cosine_5"]
    assert cell.label == "arc_cosine, 5 features"
    assert cell.settings == {"kernel": "arc_cosine", "num_features": 5, "hidden_width": 2}
    assert cell.settings.items() <= cell.what.method.hyper.items()
    assert found["svgp"].settings == {}


def test_a_variant_is_the_fit_of_its_settings_from_the_command_line(study):
    small = {"method": "dgp_rff", "num_features": 5, "likelihood": "softmax"}
    (cell,) = study({"small": small}, datasets=["wdbc"]).values()
    assert cell.address.overrides == "num_features=5 likelihood=softmax"
    words = "methods=[dgp_rff] datasets=[wdbc] splits=1 dgp_rff.num_features=5 dgp_rff.likelihood=softmax"
    (same,) = resolve(places.find(), "default", words).cells
    assert [f.fit_id for f in cell.fits] == [f.fit_id for f in same.fits]


def test_listed_values_may_be_of_any_type(study):
    """Decimals, text that is no word and lists become part of a name; labels and settings keep them as they are."""
    found = study(
        {
            "m_{num_inducing}_{noise_variance}": {
                "method": "svgp",
                "label": "{num_inducing}, {noise_variance}",
                "num_inducing": [20, 50],
                "noise_variance": [0.01, 1e-05],
            }
        }
    )
    assert list(found) == ["m_20_0_01", "m_20_1e_05", "m_50_0_01", "m_50_1e_05"]
    assert [cell.label for cell in found.values()] == ["20, 0.01", "20, 1e-05", "50, 0.01", "50, 1e-05"]
    assert [cell.what.method.hyper["noise_variance"] for cell in found.values()] == [0.01, 1e-05] * 2
    texts = study({"{kernel}": {"method": "svgp", "kernel": ["rbf", "linear + rbf * periodic"]}})
    assert {name: cell.what.method.hyper["kernel"] for name, cell in texts.items()} == {
        "rbf": "rbf", "linear_rbf_periodic": "linear + rbf * periodic"
    }  # fmt: skip
    lists = study({"dkl_{hidden_units}": {"method": "dkl", "hidden_units": [[10], [10, 5]]}}, datasets=["boston"])
    assert {name: cell.what.method.hyper["hidden_units"] for name, cell in lists.items()} == {
        "dkl_10": (10,), "dkl_10_5": (10, 5)
    }  # fmt: skip
    assert list(lists["dkl_10_5"].settings["hidden_units"]) == [10, 5]


def test_overrides_reach_one_variant_or_all_of_a_method(study):
    variants = {"rff_{num_features}": {"method": "dgp_rff", "num_features": [5, 10]}}
    found = study(variants, "dgp_rff.hidden_width=4 rff_10.batch_size=7")
    assert [found[name].what.method.hyper["hidden_width"] for name in found] == [4, 4]
    assert [found[name].what.method.hyper["batch_size"] for name in found] == [200, 7]
    everywhere = study(variants, "*.hidden_width=6")
    assert {cell.what.method.hyper["hidden_width"] for cell in everywhere.values()} == {6}


def test_a_preset_stands_in_for_the_method_of_a_variant(study):
    variants = {"wide": {"method": "dgp_rff", "num_features": 7}}
    (cell,) = study(variants, presets={"wine": {"dgp_rff": "dgp_rff_images"}}).values()
    chosen = cell.what.method.hyper
    assert (cell.address.method, chosen["hidden_width"], chosen["num_features"]) == ("dgp_rff_images", 50, 7)


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({"a": {"num_features": 5}}, "variant 'a' of study 'mine' names no method; give it a key 'method'"),
        ({"a": {"method": "dgp_rff", "num_features": [5, 10]}}, "the name 'a' is taken; put every listed key into it"),
        ({"a_{layers}": {"method": "dgp_rff"}}, "has no setting 'layers' to put into its name or label"),
        ({"a": {"method": "dgp_rf"}}, "unknown method 'dgp_rf'"),
        ({"a": {"method": "dgp_rff", "num_feature": 5}}, "did you mean 'num_features'?"),
        ({"a": {"method": "dgp_rff", "num_features": 0}}, "num_features: Input should be greater than or equal to 1"),
        ({"a_{num_features": {"method": "dgp_rff"}}, "'a_{num_features' is not a valid template"),
        ({"a_{}": {"method": "dgp_rff"}}, "'a_{}' is not a valid template"),
        ({"a_{num_features.x}": {"method": "dgp_rff", "num_features": 5}}, "is not a valid template"),
        ({"a": {"method": "dgp_rff", "label": 3}}, "label must be a string, got 3"),
        ({"a/b": {"method": "dgp_rff"}}, "'a/b' is not a valid name"),
        ({"budget": {"method": "dgp_rff"}}, "'budget' is not a valid name"),
        ({"a": {"method": "dgp_rff", "module": "os"}}, "'module' cannot be overridden"),
        ({"a": {"method": "dgp_rff", "datasets": ["wein"]}}, "unknown dataset 'wein'"),
        ({"a": {"method": "dgp_rff", "num_features": []}}, "num_features lists no value, which makes no variant"),
        ({"a": {"method": "dgp_rff", "datasets": []}}, "datasets lists no value, which makes no variant"),
    ],
)
def test_invalid_variants_are_refused_in_one_line(study, variants, message):
    with pytest.raises(UserError) as caught:
        study(variants)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_methods_of_one_label_are_told_apart_by_their_names(study):
    """Tables and figures would have two rows of one name; a label may stand on two data sets, as for settings that a
    paper gives data set by data set. An empty mapping clears what the file has."""
    same = {"method": "svgp", "label": "Sparse"}
    found = study({"a": same | {"jitter": 0.1}, "b": same | {"jitter": 0.2}}, methods=["constant"])
    assert [cell.label for cell in found.values()] == ["Constant", "Sparse (a)", "Sparse (b)"]
    variants = {
        name: {"method": "svgp", "label": "Sparse", "jitter": jitter, "datasets": [name]}
        for name, jitter in (("wine", 0.1), ("boston", 0.2))
    }
    assert {cell.label for cell in study(variants, datasets=["wine", "boston"]).values()} == {"Sparse"}
    assert set(study(variants, "variants={}", methods=["svgp"])) == {"svgp"}


@pytest.mark.parametrize("word", ["*.num_features=7", "dgp_rff.num_features=7", "rff_10.num_features=7"])
def test_what_variants_vary_cannot_be_overridden(study, word):
    """Else names, labels and axes of figures would show the old values."""
    with pytest.raises(UserError, match="'num_features' cannot be overridden: the variants of study 'mine'"):
        study({"rff_{num_features}": {"method": "dgp_rff", "num_features": [5, 10]}}, word)


def test_settings_are_those_that_were_composed(study):
    found = study({"rff": {"method": "dgp_rff", "num_features": 5}}, "rff.num_features=7")
    assert found["rff"].settings == {"num_features": 7}


def test_papers_without_numbers_and_impossible_probes_are_refused_before_any_fit(study, project):
    (project / "published").mkdir()
    (project / "published/cutajar2017.csv").touch()
    for keys, said in (
        ({"published": ["cutajar2071"]}, "did you mean 'cutajar2017'?"),
        ({"pairs": [["dgp_rff", "dgp_rf"]]}, "unknown method 'dgp_rf' in pairs of study 'mine'"),
        ({"probes": ["layers"]}, "probe 'layers' of study 'mine' needs one input, 'wine' has more"),
        ({"probes": ["surfaces"]}, "probe 'surfaces' of study 'mine' needs two inputs, 'wine' has more"),
    ):
        with pytest.raises(UserError) as caught:
            study({}, methods=["dgp_rff"], **keys)
        assert said in str(caught.value)


def test_settings_impossible_for_a_task_are_skipped_with_their_reason(study):
    flat = {"method": "dgp_rff", "hidden_layers": 0, "feed_forward": True}
    found = study({"flat": flat, "bell": {"method": "dgp_rff", "likelihood": "gaussian"}})
    assert found["flat"].skip == "feed_forward needs a hidden layer, hidden_layers is 0"
    assert found["bell"].skip == "the gaussian likelihood is for regression data, not multiclass"


def test_a_data_set_on_request_without_md5_is_skipped_with_a_remedy(study):
    """It is listed, and stops nobody who has not asked for its files."""
    found = study({}, methods=["constant"], datasets=["wine", "year"], protocol="ashman2020")
    assert found["constant"].address.dataset == "year"
    assert found["constant"].skip.startswith("has no md5 yet; run `gpbench data pin year`")


def test_schemes_choose_the_entry_and_are_part_of_the_identity(study, monkeypatch):
    monkeypatch.setattr(compatibility.os, "cpu_count", lambda: 2)
    shared = {"method": "dgp_rff", "workers": [1, 4, 5]}
    found = study({"{scheme}_{workers}": shared | {"scheme": ["asynchronous", "synchronous"]}}, methods=["dgp_rff"])
    assert entries.entry(found["synchronous_4"].what).__name__ == "gpbench.study.fitting.distributed.synchronous"
    assert (found["asynchronous_4"].what.trained_by, found["asynchronous_4"].what.workers) == ("asynchronous", 4)
    assert found["asynchronous_5"].skip == "5 workers, at most 2 a core"
    monkeypatch.setattr(compatibility.os, "cpu_count", lambda: 64)
    three = {"method": "dgp_rff", "scheme": "synchronous", "workers": 3, "batch_size": 50}
    assert study({"a": three})["a"].skip == "50 rows a step cannot be shared equally by 3 workers"
    assert study({"a": {"method": "dgp_rff", "workers": 2}})["a"].skip == "2 workers need a scheme"
    natural = {"method": "svgp", "scheme": "asynchronous", "workers": 1, "natural_gradients": "all"}
    assert study({"a": natural})["a"].skip.startswith("its steps need gradients of the present parameters")
    monkeypatch.setattr(compatibility.importlib.util, "find_spec", lambda name: None)
    without_ray = study({"a": three | {"scheme": "asynchronous"}})["a"]
    assert without_ray.skip == "scheme asynchronous needs ray: pip install gpbench[distributed]"
    assert (found["dgp_rff"].what.trained_by, found["dgp_rff"].what.workers) == ("single", 1)
    assert len({cell.fits[0].fit_id for cell in found.values()}) == 7
    where = places.find()
    resolved = replace(resolve(where, "mine"), cells=(found["asynchronous_4"],))
    plan = planning.build(where, "mine", "", resolved)
    assert [graph._needs(batch, plan.cost).threads for batch in plan.batches] == [4]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("constant", "scheme synchronous needs a method with updates"),
        ("bsgp_1", "trained by scheme single only"),
        ("dnn_images", "trained by scheme single or asynchronous only"),
        ("dgp_rff", ""),
    ],
)
def test_methods_declare_the_schemes_that_suit_them(study, method, said):
    (cell,) = study({"a": {"method": method, "scheme": "synchronous", "workers": 2}}).values()
    assert cell.skip == said


def test_a_method_file_can_build_on_another(project):
    base, built = (config.compose(places.find().conf, "method", f"dgp_rff_2017{more}") for more in ("", "_binary"))
    assert built.header.module == base.header.module
    assert (built.hyper.likelihood, base.hyper.likelihood) == ("softmax", None)
    assert built.hyper.samples_late == base.hyper.samples_late == 100


def test_only_selects_methods_of_a_study(study):
    variants, pairs = {"rff_{num_features}": RFF | {"kernel": "rbf", "num_features": [5, 10]}}, [["svgp", "rff_5"]]
    whole = study(variants, methods=["svgp"])
    some = study(variants, "only=[rff_10,svgp]", methods=["svgp"], pairs=pairs)
    assert list(some) == ["svgp", "rff_10"]
    assert [cell.fits for cell in some.values()] == [whole[name].fits for name in some]
    with pytest.raises(UserError, match=r"unknown method 'rff_7' in only of study 'mine'; did you mean"):
        study(variants, "only=[rff_7]", methods=["svgp"])


def test_a_variant_of_some_data_sets_is_skipped_on_the_others(study):
    variants = {"a": {"method": "dgp_rff", "datasets": ["boston"]}, "b": {"method": "dgp_rff"}}
    cells = study(variants)
    assert {name: cell.skip for name, cell in cells.items()} == {"a": "the study has it for boston only", "b": ""}
    assert {name: cell.skip for name, cell in study(variants, datasets=["boston"]).items()} == {"a": "", "b": ""}
