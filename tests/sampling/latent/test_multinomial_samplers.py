"""The samplers of the multinomial logit GP: every approach by the joint-distribution test (geweke2004), derivatives by
finite differences, and a posterior by brute force."""

import dataclasses

import numpy as np
import pytest
import torch
from geweke import packed
from multinomial_cases import F64, approach, generator, normals, one_hot, prior_draws
from scipy import special, stats

from gpbench.sampling import hmc
from gpbench.sampling.latent import multinomial, weights

ROWS, FUNCTIONS, SOURCES = 3, 3, 2
APPROACHES = {
    "a": (2000, 6, 0.9, 0.9),
    "b": (2000, 6, 0.9, 0.9),
    "c": (400, 4, 0.7, 0.9),
    "d": (400, 3, 0.7, 0.5),
    "e": (2000, 6, 0.9, 1.0),
    "f": (400, 4, 0.7, 1.0),
    "dirichlet": (2000, 6, 0.9, 0.7),
}
"""Approach -> chains, transitions, and step sizes of f and of theta with which some proposals are refused."""
LEVEL = 0.01
"""Of all approaches together."""


def functions(model, state, simplex):
    """Bounded functions of the joint law `[chains, functions]`."""
    f, theta, y = state["f"], state["theta"], model.y
    rank = theta.exp() if simplex else torch.from_numpy(stats.gamma(2, scale=0.5).cdf(theta.exp().numpy()))
    t = torch.tanh(f / 2)
    fit = (model.log_lik(f) / 2).exp()
    alpha = torch.tanh(state["log_concentration"].exp())
    parts = [
        rank.flatten(1),
        rank.square().flatten(1),
        (rank[:, :, :1] * rank[:, :, 1:]).flatten(1),
        t.flatten(1),
        t.square().flatten(1),
        (t[:, :, :1] * t[:, :, 1:]).flatten(1),
        (t[:, :1] * t[:, 1:]).flatten(1),
        (rank[..., None] * t[:, :, None, :2].square()).flatten(1),
        (y * t).flatten(1),
        y[:, 1:].flatten(1),
        (rank[..., None] * y[:, :, None, :1]).flatten(1),
        torch.stack([fit, fit.square(), fit * rank[:, 0, 0]], 1),
    ]
    if simplex:
        parts += [torch.stack([alpha, alpha.square(), alpha * rank.square().sum((1, 2))], 1)]
    return torch.cat(parts, 1)


def z_scores(name, seed=1):
    """Of chains that start from the joint law, after transitions and new y in turns, against fresh draws."""
    (chains, rounds, *steps), simplex, rng = APPROACHES[name], name == "dirichlet", np.random.default_rng(seed)
    model, state = prior_draws(chains, ROWS, FUNCTIONS, SOURCES, seed, simplex)
    acceptances = []
    for _ in range(rounds):
        operator = approach(name, model, 2, *steps)
        state, info = operator.step(operator.init(state), generator(operator, rng, chains, ROWS))
        acceptances.append([float(info[f"{part}.acceptance"].mean()) for part in ("latents", "theta")])
        model = dataclasses.replace(model, y=one_hot(rng, state["f"]))
        state["log_lik"] = model.log_lik(state["f"])
    ours = functions(model, state, simplex)
    fresh = functions(*prior_draws(12 * chains, ROWS, FUNCTIONS, SOURCES, seed + 1, simplex), simplex)
    error = (ours.var(0) / len(ours) + fresh.var(0) / len(fresh)).sqrt()
    return (ours.mean(0) - fresh.mean(0)) / error, np.mean(acceptances, 0)


def limit(z):
    """The largest |z| that chance allows."""
    return float(stats.norm.isf(LEVEL / len(APPROACHES) / len(z) / 2))


@pytest.mark.parametrize("name", APPROACHES)
@pytest.mark.slow
def test_the_posterior_is_left_invariant(name):
    z, acceptance = z_scores(name)
    assert ((acceptance > 0.3) & (acceptance < 0.97)).all()  # the Metropolis tests are at work
    assert float(z.abs().max()) < limit(z), z


@pytest.mark.parametrize("name", APPROACHES)
def test_the_factors_of_a_state_are_those_of_its_theta(name):
    (_, _, *steps), rng = APPROACHES[name], np.random.default_rng(0)
    model, state = prior_draws(20, ROWS, FUNCTIONS, SOURCES, simplex=name == "dirichlet")
    operator, start = approach(name, model, 2, *steps), state["theta"]
    state = operator.init(state)
    for _ in range(3):
        state, _ = operator.step(state, generator(operator, rng, 20, ROWS))
        torch.testing.assert_close(state["chol"], model.factor(state["theta"]), rtol=1e-9, atol=1e-12)
    assert (state["theta"] != start).flatten(1).any(0).all()


def test_a_wrong_transition_fails_the_joint_distribution_test(monkeypatch):
    monkeypatch.setattr(weights.WeightsWalk, "propose", without_prior)
    z, _ = z_scores("e")
    assert float(z.abs().max()) > limit(z)


def without_prior(operator, state, generator):
    jump = generator.normal(operator.functions * operator.sources).reshape(state["theta"].shape)
    return state["theta"] + operator.step_size(state)[..., None] * jump, torch.zeros_like(state["theta"][..., 0])


def on_the_simplex(chains=4):
    """Pairs of weights `[chains, 3, 2]`, log w, and concentrations `[chains]`, none of them near an end."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.dirichlet([3.0, 3.0], (chains, 3))).log(), torch.linspace(0.5, 3.0, chains, dtype=F64)


def test_the_density_of_the_concentration_is_that_of_scipy():
    """Of w ~ Dirichlet(alpha, alpha) class by class and alpha ~ Exp(1), with log alpha as the variable."""
    theta, alpha = on_the_simplex()
    of_weights = stats.beta(alpha[:, None], alpha[:, None]).logpdf(theta[..., 0].exp()).sum(1)
    expected = of_weights + stats.expon.logpdf(alpha) + np.log(alpha.numpy())
    np.testing.assert_allclose(weights.concentration_density(alpha.log(), theta), expected, rtol=1e-9)


def test_a_dirichlet_proposal_is_corrected_by_its_way_back():
    """Proposals are Dirichlet(w / e^2 + min(0.1, alpha)); of two weights the first is Beta."""
    model, state = prior_draws(4, 3, 3, 2, simplex=True)
    operator, size, (theta, alpha) = weights.DirichletWalk(model, 0.7), 0.7, on_the_simplex()
    alpha[0] = 0.03
    state |= {"theta.step_size": torch.full((4,), size, dtype=F64), "theta": theta, "log_concentration": alpha.log()}
    proposal, ratio = operator.propose(state, packed(normals(np.random.default_rng(3), 4, operator.fixed), 3, 0))
    (old, rest), (new, new_rest) = (part.exp().numpy().transpose(2, 0, 1) for part in (theta, proposal))
    prior = stats.beta(alpha[:, None], alpha[:, None])
    floor = alpha.numpy().clip(max=0.1)[:, None]
    there = stats.beta(old / size**2 + floor, rest / size**2 + floor).logpdf(new)
    back = stats.beta(new / size**2 + floor, new_rest / size**2 + floor).logpdf(old)
    np.testing.assert_allclose(ratio, prior.logpdf(new) - prior.logpdf(old) + back - there, rtol=1e-6)


def test_walks_of_weights_are_accepted_class_by_class_by_likelihood_and_prior(monkeypatch):
    """log p(y | f') + log p(theta') - log p(y | f) - log p(theta), f_c' = L_c' L_c^-1 f_c, one after another."""
    gains = []
    monkeypatch.setattr(hmc, "acceptance", lambda gain: torch.ones_like(gains.append(gain) or gain))
    model, state = prior_draws(4, ROWS, FUNCTIONS, SOURCES)
    operator = weights.WeightsWalk(model, 0.7)
    after, _ = operator.step(operator.init(state), packed(normals(np.random.default_rng(0), 4, operator.fixed), 3, 0))
    f, new = state["f"].numpy().copy(), after["theta"].numpy()
    prior = (stats.loggamma(2, -np.log(2)).logpdf(theta).sum(2) for theta in (new, state["theta"].numpy()))
    ratio = np.subtract(*prior)

    def log_lik():
        return (model.y.numpy() * special.log_softmax(f, 1)).sum((1, 2))

    for c, gain in enumerate(gains):
        before = log_lik()
        for r, grams in enumerate(model.grams.numpy()):
            roots = (np.linalg.cholesky(np.tensordot(np.exp(t[r, c]), grams, 1)) for t in (new, state["theta"].numpy()))
            there, here = roots
            f[r, c] = there @ np.linalg.solve(here, f[r, c])
        np.testing.assert_allclose(gain, log_lik() - before + ratio[:, c], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(after["f"], f, rtol=1e-6)


def test_class_by_class_a_walk_of_five_weights_is_accepted_as_often_as_known():
    """On the prior alone, rows without a class: .77 of steps of 0.2, and .54 where all 20 weights move together."""
    chains, rng = 4000, np.random.default_rng(0)
    model, state = prior_draws(chains, 1, 4, 5)
    model = dataclasses.replace(model, y=torch.zeros_like(model.y))
    operator = weights.WeightsWalk(model, 0.2)
    state = operator.init(state | {"log_lik": model.log_lik(state["f"])})
    one = packed(normals(rng, chains, operator.fixed), 1, 0)
    _, ratio = operator.propose(state, one)
    _, info = operator.step(state, packed(normals(rng, chains, operator.fixed), 1, 0))
    assert float(info["theta.acceptance"].mean()) == pytest.approx(0.77, abs=0.01)
    assert float(ratio.sum(1).exp().clamp_max(1).mean()) == pytest.approx(0.54, abs=0.02)


def test_operations_of_trajectories_are_counted():
    """Of 2 steps in units of n^3, by class: a factor and an inverse a gradient; those of a metric, there and back."""
    model, state = prior_draws(4, ROWS, FUNCTIONS, SOURCES)
    infos = []
    for name, part in (("a", 1), ("d", 1), ("d", 0)):
        operator = approach(name, model, 2, 0.1, 0.1).parts[part]
        made = generator(operator, np.random.default_rng(0), 4, ROWS)
        infos.append(operator.step(operator.init(state), made)[1])
    plain, of_theta, of_f = infos
    assert (plain["cholesky"], plain["inverse"]) == (3 * 3 + 3, 3 * 3)
    assert of_theta["product"] == 3 * 5 * 3  # a pair of sources at each of five points
    assert torch.equal(of_theta["inverse"], 3 * (of_theta["cholesky"] - 3))
    assert of_f["inverse"] == 5 * 27
    assert torch.equal(of_f["cholesky"], 3 * of_f["product"])


def test_chains_leave_a_start_of_small_concentration():
    """With weights as alpha = .012 draws them, one of which is nearly 1; rows have no class, so that the target is the
    prior, of which 74 % lies above alpha = 0.3. By proposals Dirichlet(w / e^2 + 0.1) no chain moves."""
    chains, rng = 20, np.random.default_rng(0)
    model, state = prior_draws(chains, 1, 3, 5, simplex=True)
    model = dataclasses.replace(model, y=torch.zeros_like(model.y))
    operator, alpha = weights.DirichletWalk(model, 0.4), torch.full((chains,), 0.012, dtype=F64)
    theta = weights.log_gammas(alpha[:, None, None].expand(-1, 3, 5), *normals(rng, 2, chains, 3, 5)).log_softmax(-1)
    state |= {"theta": theta, "log_concentration": alpha.log(), "chol": model.factor(theta)}
    state |= {"log_lik": model.log_lik(state["f"]), "theta.step_size": torch.full((chains,), 0.4, dtype=F64)}
    most = alpha
    for _ in range(1000):
        state, _ = operator.step(state, packed(normals(rng, chains, operator.fixed), 1, 0))
        most = torch.maximum(most, state["log_concentration"].exp())
    assert (most > 0.3).double().mean() > 0.74


@pytest.mark.parametrize("name", "abcdef")
@pytest.mark.slow
def test_a_posterior_by_importance_sampling(name):
    """Two rows of two classes, where draws from the prior, weighted by the likelihood, tell all."""
    y = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=F64)
    model, start = prior_draws(100_000, 2, 2, 2, seed=3)
    weight = dataclasses.replace(model, y=y).log_lik(start["f"]).softmax(0)
    wanted = torch.stack(seen(start), 1)
    mean = weight @ wanted
    error = (weight.square() @ (wanted - mean).square()).sqrt()

    (_, _, *steps), chains, rng = APPROACHES[name], 2000, np.random.default_rng(4)
    model, state = prior_draws(chains, 2, 2, 2, seed=5)
    model = dataclasses.replace(model, y=y.expand(chains, -1, -1))
    operator = approach(name, model, 3, *steps)
    state = operator.init(model.state(state["theta"], state["f"]))
    for _ in range(25):
        state, _ = operator.step(state, generator(operator, rng, chains, 2))
    ours = torch.stack(seen(state), 1)
    error = (error.square() + ours.var(0) / chains).sqrt()
    assert ((mean - wanted.mean(0)).abs() > 10 * error).any()  # the posterior is not the prior
    z = ((ours.mean(0) - mean) / error).abs()
    assert float(z.max()) < limit(z), z


def seen(state):
    """Functions of two rows of two classes, of which the first have posterior means unlike those of the prior."""
    f, w = state["f"], state["theta"].exp()
    difference = torch.tanh((f[:, 0] - f[:, 1]) / 2)
    return [
        difference[:, 0],
        difference[:, 1],
        f[:, 0, 0] * f[:, 1, 0],
        w[:, 0, 0],
        w[:, 1, 1],
        w[:, 0, 0] * f[:, 0, 0],
    ]


def latents_target():
    model, state = prior_draws(3, 3, 3, 2)
    return multinomial.LatentsTarget(model, state["chol"]), normals(np.random.default_rng(1), 3, 9)


def weights_target():
    model, state = prior_draws(1, 3, 3, 2)
    return weights.WeightsTarget(model, state["f"]), 0.5 * normals(np.random.default_rng(1), 3, 2)


@pytest.mark.parametrize("make", [latents_target, weights_target])
def test_gradients_and_derivatives_of_the_metric(make):
    target, position = make()
    point, size = target.at(position), 1e-5

    def metric(position):
        factor = target.factor(position)
        return factor @ factor.mT

    u = normals(np.random.default_rng(2), *position.shape)
    for k in range(position.shape[1]):
        step = torch.zeros_like(position)
        step[:, k] = size
        slope = (target.at(position + step).value - target.at(position - step).value) / (2 * size)
        torch.testing.assert_close(point.gradient[:, k], slope, rtol=1e-6, atol=1e-8)
        changed = (metric(position + step) - metric(position - step)) / (2 * size)
        trace = torch.linalg.solve(metric(position), changed).diagonal(dim1=1, dim2=2).sum(1)
        torch.testing.assert_close(point.traces[:, k], trace, rtol=1e-6, atol=1e-8)
        quadratic = torch.einsum("ri,rij,rj->r", u, changed, u)
        torch.testing.assert_close(target.quadratics(point, u)[:, k], quadratic, rtol=1e-6, atol=1e-8)


def test_the_metric_of_weights_is_the_information_of_f_and_the_curvature_of_the_prior():
    model, state = prior_draws(40_000, 3, 1, 2, seed=6)
    theta = torch.tensor([0.3, -0.4], dtype=F64).expand(len(state["f"]), 1, 2)
    f = (model.factor(theta) @ normals(np.random.default_rng(7), len(theta), 1, 3, 1))[..., 0]
    target = weights.WeightsTarget(model, f)
    score = target.point(theta[:, 0]).gradient - model.prior.gradient(theta[:, 0])
    products = score[:, :, None] * score[:, None]
    factor = target.factor(theta[:, 0])[0]
    information = factor @ factor.T - torch.diag(model.prior.curvature(theta[0, 0]))
    assert ((products.mean(0) - information).abs() < 4 * products.std(0) / len(products) ** 0.5).all()


def test_the_metric_of_latent_values_is_that_of_f_in_other_coordinates():
    target, position = latents_target()
    f, _ = target.latents(position)
    pi = f.softmax(1)
    eye = torch.eye(9, dtype=F64)
    dense = torch.stack([torch.block_diag(*factors) for factors in target.chol])
    phi = torch.diag_embed(pi).flatten(1, 2)
    metric = torch.linalg.inv(dense @ dense.mT) + torch.diag_embed(pi.flatten(1)) - phi @ phi.mT
    factor = target.factor(position)
    torch.testing.assert_close(factor @ factor.mT, dense.mT @ metric @ dense, rtol=1e-9, atol=1e-9)
    assert (factor @ factor.mT - eye).abs().max() > 0.1


def test_the_mass_of_trajectories_of_f_is_that_of_the_class_frequencies():
    """K^-1 + diag(pi) - Phi Phi^T at pi_ic the share of class c: of five rows 3, 1 and 1, and one of padding."""
    model, state = prior_draws(1, 6, 3, 2)
    weight = torch.tensor([[1.0] * 5 + [0.0]], dtype=F64)
    y = torch.nn.functional.one_hot(torch.tensor([[0, 0, 0, 1, 2, 0]])).mT * weight[:, None]
    model, size = dataclasses.replace(model, y=y, weight=weight), 18
    many = dataclasses.replace(model, y=y.expand(size, -1, -1), weight=weight.expand(size, -1))
    density = multinomial.HMC(many, 2, 0.1, homogeneous=True).density(state["chol"].expand(size, -1, -1, -1))
    root = density.latents(torch.eye(size).to(F64))[0].flatten(1).mT  # f = A w
    pi = (torch.tensor([[0.6], [0.2], [0.2]], dtype=F64) * weight).flatten()
    phi = torch.cat([torch.diag(part) for part in pi.split(6)])
    k = torch.block_diag(*(factor @ factor.mT for factor in state["chol"][0]))
    precision = torch.linalg.inv(k) + torch.diag(pi) - phi @ phi.mT
    torch.testing.assert_close(root @ root.mT @ precision, torch.eye(size).to(F64), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "f", "dirichlet"])
def test_chains_do_not_depend_on_each_other_nor_on_a_nan_chain(name):
    model, state = prior_draws(4, 3, 3, 2, simplex=name == "dirichlet")
    noise = normals(np.random.default_rng(8), 4, 200)
    state["f"][2] = torch.nan
    state["log_lik"] = model.log_lik(state["f"])

    def advance(rows):
        part = dataclasses.replace(model, grams=model.grams[rows], y=model.y[rows], weight=model.weight[rows])
        operator = approach(name, part, 2, 0.6, 0.5)
        size = operator.fixed + 3 * operator.per_row
        chain = operator.init({key: value[rows] for key, value in state.items()})
        return operator.step(chain, packed(noise[rows, :size], 3, operator.per_row))

    together, told = advance(slice(0, 4))
    assert (together["f"][[0, 1, 3]] != state["f"][[0, 1, 3]]).any()
    assert float(told["latents.acceptance"][2]) == 0
    assert together["f"][2].isnan().all()
    for r in (0, 1, 3):
        alone, _ = advance(slice(r, r + 1))
        for key in ("f", "theta", "chol", "log_lik"):
            torch.testing.assert_close(together[key][r : r + 1], alone[key], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "f", "dirichlet"])
def test_padding_rows_change_nothing(name):
    model, state = prior_draws(2, 3, 3, 2, simplex=name == "dirichlet")
    pad = torch.nn.functional.pad
    padded = dataclasses.replace(
        model, grams=pad(model.grams, (0, 1, 0, 1)), y=pad(model.y, (0, 1)), weight=pad(model.weight, (0, 1))
    )
    longer = state | padded.state(state["theta"], pad(state["f"], (0, 1)))
    ends = []
    for part, chain, rows in ((model, state, 3), (padded, longer, 4)):
        operator = approach(name, part, 2, 0.6, 0.5)
        noise = normals(np.random.default_rng(9), 2, 200)[:, : operator.fixed + 3 * operator.per_row]
        noise = pad(noise, (0, (rows - 3) * operator.per_row))
        end, _ = operator.step(operator.init(chain), packed(noise, rows, operator.per_row))
        ends.append(end)
    torch.testing.assert_close(ends[1]["theta"], ends[0]["theta"], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(ends[1]["f"][..., :3], ends[0]["f"], rtol=1e-9, atol=1e-11)
    assert (ends[1]["f"][..., 3] == 0).all()
    assert (ends[0]["f"] != state["f"]).any()


def test_gammas_of_small_shapes_have_their_law():
    shapes = torch.full((200_000,), 0.3, dtype=F64)
    normal, other = normals(np.random.default_rng(10), 2, len(shapes))
    drawn = weights.log_gammas(shapes, normal, other)
    assert stats.kstest(drawn.numpy(), stats.loggamma(0.3).cdf).pvalue > 0.01
    tiny = weights.log_gammas(torch.tensor([1e-4]), torch.tensor([-3.0]), torch.tensor([-3.0]))
    assert tiny.dtype == torch.float32
    assert tiny.isfinite().all()
