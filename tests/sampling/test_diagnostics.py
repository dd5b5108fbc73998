"""R-hat and effective sample sizes of chains whose answers are known."""

import warnings

import numpy as np
import pytest
from scipy.signal import lfilter

from gpbench.sampling import diagnostics

CHAINS, DRAWS = 4, 5000


def autoregressive(rho: float, seed: int = 0, quantities: int = 3) -> np.ndarray:
    """Stationary AR(1) chains `[chains, draws, quantities]` of variance 1."""
    noise = np.random.default_rng(seed).standard_normal((CHAINS, DRAWS, quantities))
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=1)


def test_more_chains_than_draws_and_short_halves_are_no_reason_to_warn(caplog):
    draws = np.random.default_rng(0).normal(size=(6, 4, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        several, single = diagnostics.summary(draws), diagnostics.summary(draws[:1])
        errors = diagnostics.monte_carlo_errors(draws)
    assert caplog.messages == []
    assert np.isfinite([several["r_hat"], several["ess_bulk"], errors["mean"]]).all()
    assert np.isnan(single["r_hat"]).all()


@pytest.mark.parametrize("rho", [-0.3, 0.0, 0.5, 0.9])
def test_effective_sample_size_of_autoregressive_chains(rho):
    # the mean of an AR(1) chain is worth N (1 - rho) / (1 + rho) independent draws
    found = diagnostics.summary(autoregressive(rho))
    expected = CHAINS * DRAWS * (1 - rho) / (1 + rho)
    assert found["ess_bulk"].shape == found["ess_tail"].shape == found["r_hat"].shape == (3,)
    np.testing.assert_allclose(found["ess_bulk"], expected, rtol=0.15)
    assert (np.abs(found["r_hat"] - 1) < 0.01).all()


def test_chains_that_disagree_have_a_large_r_hat():
    draws = autoregressive(0.5)
    draws[:2, :, 0] += 1.0  # in location
    draws[:2, :, 1] *= 3.0  # in scale, which only the folded ranks show
    found = diagnostics.summary(draws)
    assert (found["r_hat"][:2] > 1.1).all()
    assert found["r_hat"][2] < 1.01
    assert found["ess_bulk"][0] < 0.05 * found["ess_bulk"][2]
    assert found["ess_tail"][1] < 0.05 * found["ess_tail"][2]


def test_a_drift_within_chains_has_a_large_r_hat():
    draws = autoregressive(0.0)[:, :, 0] + np.linspace(0, 2, DRAWS)
    assert diagnostics.summary(draws)["r_hat"] > 1.1


def test_quantities_have_any_shape_and_nan_stays_in_its_quantity():
    draws = autoregressive(0.5, quantities=4).reshape(CHAINS, DRAWS, 2, 2)
    draws[0, 0, 0, 0] = np.nan
    found = diagnostics.summary(draws)
    for values in found.values():
        assert np.isnan(values).tolist() == [[True, False], [False, False]]


def test_the_halves_of_a_single_chain_are_compared():
    single = autoregressive(0.5)[:1]
    found = diagnostics.summary(single)
    assert found["r_hat"].tolist() == diagnostics.summary(single.reshape(2, DRAWS // 2, 3))["r_hat"].tolist()
    assert (np.abs(found["r_hat"] - 1) < 0.01).all()
    np.testing.assert_allclose(found["ess_bulk"], DRAWS / 3, rtol=0.2)
    assert (diagnostics.summary(single + np.linspace(0, 2, DRAWS)[:, None])["r_hat"] > 1.1).all()
    assert np.isnan(diagnostics.summary(single[:, :7])["r_hat"]).all()
    # of an odd number of draws the middle one is in no half
    odd, halves = single[:, :-1], np.concatenate([single[:, : DRAWS // 2 - 1], single[:, DRAWS // 2 : -1]])
    assert diagnostics.summary(odd)["r_hat"].tolist() == diagnostics.summary(halves)["r_hat"].tolist()


def test_monte_carlo_errors_of_independent_normal_draws():
    """1 / sqrt(N) of their mean and 1 / sqrt(2 N) of their standard deviation, which are 0 and 1."""
    found, count = diagnostics.monte_carlo_errors(autoregressive(0.0)), CHAINS * DRAWS
    np.testing.assert_allclose(found["mean"], count**-0.5, rtol=0.05)
    np.testing.assert_allclose(found["sd"], (2 * count) ** -0.5, rtol=0.05)


def chains() -> list[dict[str, np.ndarray]]:
    """What four chains leave: mean and log density at three rows, two lengthscales and a fixed noise variance."""
    drawn = autoregressive(0.5, quantities=8)[:, :500]
    found = [{"rows": np.arange(3), "mean": one[:, :3, None], "log_density": one[:, 3:6, None]} for one in drawn]
    fixed = [{"lengthscale": one[:, 6:], "noise_variance": np.full(500, r)} for r, one in enumerate(drawn)]
    return [one | other for one, other in zip(found, fixed, strict=True)]


def test_mixing_is_the_worst_of_mean_and_log_density():
    drawn = chains()
    for r, chain in enumerate(drawn):
        chain["log_density"][:, 2] += 0.3 * r
    found = diagnostics.mixing(drawn)
    each = [diagnostics.summary(np.stack([chain[name] for chain in drawn])) for name in ("mean", "log_density")]
    assert (found["chains"], found["draws"]) == (4, 500)
    assert found["r_hat"] == each[1]["r_hat"][2, 0] == max(part["r_hat"].max() for part in each)
    assert found["ess_bulk"] == min(part["ess_bulk"].min() for part in each)
    assert found["ess_tail"] == min(part["ess_tail"].min() for part in each)
    assert found["r_hat_row"] == pytest.approx(each[0]["r_hat"].mean())
    assert found["r_hat_row_sd"] == pytest.approx(each[0]["r_hat"].std())
    draws = [np.stack([chain[name] for chain in drawn]).astype(float) for name in ("mean", "log_density")]
    errors = [diagnostics.monte_carlo_errors(part)["mean"] / part.std((0, 1)) for part in draws]
    assert found["mcse"] == pytest.approx(np.max(errors), rel=1e-9)


def test_chains_that_swing_have_more_effective_draws_than_moves():
    """Only of chains that mostly stand still are moves the limit: not where a tenth of the draws are the one before."""
    noise = np.random.default_rng(0).standard_normal((4, 2, 501, 3, 1))
    swinging = noise[:, :, 1:] - 0.5 * noise[:, :, :-1]  # a correlation of -0.4 with the draw before
    swinging[:, :, 10::10] = swinging[:, :, 9:-1:10]
    drawn = [{"mean": mean, "log_density": density, "rows": np.arange(3)} for mean, density in swinging]
    assert diagnostics.mixing(drawn)["ess_bulk"] > 4 * 500


def test_covariance_parameters_are_reported_and_not_judged():
    drawn = chains()
    plain = diagnostics.mixing(drawn)
    assert plain["r_hat_covariance"] < 1.05, "a parameter that no chain moves is no draw"
    lengthscales = np.stack([chain["lengthscale"] for chain in drawn])
    assert plain["ess_covariance"] == diagnostics.summary(lengthscales)["ess_bulk"].min()
    slow = [chain | {"slow": np.repeat(chain["lengthscale"][::50], 50, axis=0)} for chain in drawn]
    assert diagnostics.mixing(slow)["ess_covariance"] < plain["ess_covariance"] / 5, "the least"
    drawn[0]["lengthscale"] += 3.0
    found = diagnostics.mixing(drawn)
    assert found["r_hat_covariance"] > 1.2
    assert found["ess_covariance"] < plain["ess_covariance"] / 10
    assert found["r_hat"] == plain["r_hat"]
    bare = [{name: chain[name] for name in ("rows", "mean", "log_density")} for chain in drawn]
    assert np.isnan(diagnostics.mixing(bare)["r_hat_covariance"])


def test_constant_rows_are_left_out_but_chains_that_never_move_are_not():
    drawn = chains()
    for chain in drawn:
        chain["mean"][:, 1] = chain["log_density"][:, 1] = 0.0
    found, of_mean = diagnostics.mixing(drawn), diagnostics.summary(np.stack([chain["mean"] for chain in drawn]))
    assert found["r_hat"] < 1.05
    assert found["r_hat_row"] == pytest.approx(np.delete(of_mean["r_hat"], 1, axis=0).mean())
    for r, chain in enumerate(drawn):
        chain["mean"][:, 1] = r
    assert diagnostics.mixing(drawn)["r_hat"] > 1e6
    for chain in drawn:
        chain["mean"][:], chain["log_density"][:] = 0.0, 1.0
    assert np.isnan(diagnostics.mixing(drawn)["r_hat"])


def test_short_chains_and_nan_draws_have_no_r_hat():
    short = [{name: values[:3] for name, values in chain.items()} for chain in chains()]
    found = diagnostics.mixing(short)
    assert (found["chains"], found["draws"]) == (4, 3)
    assert np.isnan([found["r_hat"], found["ess_bulk"], found["r_hat_covariance"]]).all()
    drawn = chains()
    drawn[1]["log_density"][7, 0] = np.nan
    assert np.isnan(diagnostics.mixing(drawn)["r_hat"])


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (4, 100, 0)])
def test_summaries_of_short_chains_or_of_no_quantity_are_nan(shape):
    for values in diagnostics.summary(np.zeros(shape)).values():
        assert values.shape == shape[2:]
        assert np.isnan(values).all()


@pytest.mark.parametrize("rho", [-0.3, 0.0, 0.5, 0.9])
def test_the_effective_sample_size_of_geyer_of_autoregressive_chains(rho):
    each = np.stack([diagnostics.geyer_ess(chain) for chain in autoregressive(rho, quantities=50)])
    assert each.shape == (CHAINS, 50)
    np.testing.assert_allclose(each.mean(), DRAWS * (1 - rho) / (1 + rho), rtol=0.03)


def test_the_sum_of_geyer_is_that_of_its_definition():
    """Lag by lag, without Fourier transforms."""
    x = autoregressive(0.7)[0, :201, 0]
    centred = x - x.mean()
    rho = np.array([centred[: 201 - k] @ centred[k:] for k in range(202)]) / (centred @ centred)
    pairs, total = rho[0::2] + rho[1::2], 0.0
    for m, pair in enumerate(pairs):
        if pair <= 0:
            break
        total += min(pair, *pairs[: m + 1])
    assert 2 < m < 100
    assert diagnostics.geyer_ess(x[:, None]) == pytest.approx(201 / (2 * total - 1), rel=1e-12)


def test_constant_chains_have_one_effective_draw_and_alternating_chains_at_most_the_bound():
    draws = np.stack([np.full(1000, 7.0), np.tile([1.0, -1.0], 500)], 1)
    np.testing.assert_allclose(diagnostics.geyer_ess(draws), [1.0, 1000 * 3])
    assert diagnostics.geyer_ess(np.ones((1, 2))).tolist() == [1.0, 1.0]
    assert diagnostics.geyer_ess(autoregressive(0.5)[0].reshape(DRAWS, 3, 1)).shape == (3, 1)


def test_r_hat_of_gelman_and_rubin_is_that_of_its_definition():
    draws = autoregressive(0.5) + np.arange(CHAINS)[:, None, None] * [0.0, 0.1, 1.0]
    found = diagnostics.gelman_rubin(draws.mean(1), draws.var(1, ddof=1), DRAWS)
    within = draws.var(1, ddof=1).mean(0)
    pooled = (DRAWS - 1) / DRAWS * within + (1 + 1 / CHAINS) * draws.mean(1).var(0, ddof=1)
    np.testing.assert_allclose(found, np.sqrt(pooled / within), rtol=1e-12)
    # levels 0 to 3 have variance 5/3, a chain has 1
    assert found[2] == pytest.approx(np.sqrt(1 + 1.25 * 5 / 3), rel=0.03)
    assert np.isnan(diagnostics.gelman_rubin(draws[:1].mean(1), draws[:1].var(1), DRAWS)).all()


def left(draws: np.ndarray, iterations: list[int]) -> list[dict[str, np.ndarray]]:
    """What chains `[chains, draws, quantities]` leave, of which the first two quantities are watched."""
    return [
        {
            "draws": one[:, :2],
            "every": one[::10],
            "iterations": np.array(iterations),
            "mean": np.stack([one[:t].mean(0) for t in iterations]),
            "variance": np.stack([one[:t].var(0, ddof=1) for t in iterations]),
        }
        for one in draws
    ]


def test_convergence_is_the_worst_of_the_watched_variables_and_of_all_moments():
    draws = autoregressive(0.5, quantities=4)
    draws[1, :1000, 3] += 5.0  # which is not watched, and over in the end
    draws[..., 2] = 1.0  # which no chain moves
    found = diagnostics.convergence(left(draws, [1000, 2000, 5000]))
    each = diagnostics.summary(draws[..., :2])
    assert (found["chains"], found["draws"]) == (CHAINS, DRAWS)
    thinned = diagnostics.summary(draws[:, ::10, [0, 1, 3]])
    assert found["r_hat"] == thinned["r_hat"].max() > 1.05 > each["r_hat"].max()
    assert found["ess_every"] == min(thinned["ess_bulk"].min(), thinned["ess_tail"].min())
    old = [{name: value for name, value in chain.items() if name != "every"} for chain in left(draws, [5000])]
    assert diagnostics.convergence(old)["r_hat"] == each["r_hat"].max() < 1.01
    assert (found["ess_bulk"], found["ess_tail"]) == (each["ess_bulk"].min(), each["ess_tail"].min())
    assert found["r_hat_classic_1000"] > 2 > found["r_hat_classic_2000"] > found["r_hat_classic_5000"] > 1.05
    assert found["r_hat_classic"] == found["r_hat_classic_5000"]
    # of the first 1,000 transitions nothing is known where every third was kept
    of_some = diagnostics.convergence(left(draws, [1000, 2000, 5000]), transitions=3 * DRAWS)
    assert of_some == {name: value for name, value in found.items() if not name.startswith("r_hat_classic_")}
    assert "r_hat_classic_10000" not in found
    stuck = np.broadcast_to(np.arange(CHAINS)[:, None, None], (CHAINS, DRAWS, 2))
    assert diagnostics.convergence(left(stuck, [DRAWS]))["r_hat_classic"] == np.inf


def test_convergence_is_also_that_of_watched_variables_and_of_the_location_of_all():
    """Where the watched ones disagree, and the other ones, slow ones, have more effective draws in their tails."""
    chains = left(autoregressive(0.99, quantities=4), [DRAWS])
    for number, chain in enumerate(chains):
        chain["draws"] = chain["draws"] + number
    found = diagnostics.convergence(chains)
    watched, every = (diagnostics.summary(np.stack([chain[name] for chain in chains])) for name in ("draws", "every"))
    assert found["r_hat"] == watched["r_hat"].max() > every["r_hat"].max()
    assert found["ess_every"] == every["ess_bulk"].min() < every["ess_tail"].min()


def test_a_chain_that_moved_once_has_not_hundreds_of_effective_draws():
    """The rank-normalised estimate of 400 draws, all alike but the last, is 400."""
    stuck = np.full((1, 400, 2), 0.9)
    stuck[:, -1] = 0.77
    moments = {"iterations": np.array([400]), "mean": stuck[0, :1], "variance": stuck[0, :1]}
    found = diagnostics.convergence([{"draws": stuck[0], "every": stuck[0]} | moments])
    assert [found[name] for name in ("ess_bulk", "ess_tail", "ess_every")] == [1, 1, 1]
    by_row = {"mean": stuck[0, :, :1, None], "log_density": stuck[0, :, 1:, None], "rows": np.arange(1)}
    assert diagnostics.mixing([by_row])["ess_bulk"] == 1
    # a row that seldom moves, of a chain that does, is judged as before
    rare = autoregressive(0.5)[:, :400]
    rare[:, :, 0] = (rare[:, :, 1] > 2.5) * 1.0
    moving = [{"draws": part} | moments for part in rare]
    assert diagnostics.convergence(moving)["ess_bulk"] == diagnostics.summary(rare)["ess_bulk"].min()


def test_the_largest_monte_carlo_error_is_that_of_the_slowest_number():
    rng = np.random.default_rng(0)
    slow, noise = np.zeros((4, 20_000)), rng.standard_normal((4, 20_000))
    for t in range(1, 20_000):
        slow[:, t] = 0.9 * slow[:, t - 1] + noise[:, t]
    draws = np.stack([5 * rng.standard_normal((4, 20_000)), slow, np.ones((4, 20_000))], -1)
    # in its sd, sqrt((1 + a) / (1 - a) / T); what never moves has none
    assert diagnostics.largest_error(draws) == pytest.approx(np.sqrt(19 / 80_000), rel=0.1)
    assert diagnostics.largest_error(draws[:, :, :1]) == pytest.approx(80_000**-0.5, rel=0.05)
    assert np.isnan(diagnostics.largest_error(draws[:, :, 2:]))
    moments = {"iterations": np.array([20_000]), "mean": draws[0, :1], "variance": draws[0, 1:2] ** 2}
    chains = [{"draws": part} | moments for part in draws]
    assert diagnostics.convergence(chains)["mcse"] == diagnostics.largest_error(draws)
