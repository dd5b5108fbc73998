"""Named streams: golden seeds, pairing, independence."""

import hashlib
import inspect
from itertools import product

import numpy as np
import pytest
import torch

from gpbench import streams
from gpbench.streams import STREAMS, Key

KEY = Key("abb564557b8b6de64232ce22fb18cbf7", "common", 3, 1)


def test_a_seed_is_sha256_of_its_names():
    # `printf 'abb5...cbf7\x1fcommon\x1f3\x1f1\x1fnoise\x1f7' | sha256sum`, first 16 hexadecimal digits, halved
    assert streams.seed(KEY, "noise", 7) == GOLDEN["noise", 7]
    assert streams.seed(KEY, "init") == GOLDEN["init", 0]


@pytest.mark.parametrize(("stream", "block"), list(product(STREAMS, (0, 1, 40))))
def test_the_formula_of_a_seed(stream, block):
    text = f"{KEY.dataset}\x1fcommon\x1f3\x1f1\x1f{stream}\x1f{block}"
    assert streams.seed(KEY, stream, block) == int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) // 2


def test_the_method_is_not_in_it():
    assert Key._fields == ("dataset", "protocol", "split", "replica")
    assert list(inspect.signature(streams.seed).parameters) == ["key", "stream", "block"]


def test_every_name_matters():
    keys = [KEY] + [KEY._replace(**{name: value}) for name, value in OTHER.items()]
    seeds = {streams.seed(key, stream, block) for key, stream, block in product(keys, STREAMS, range(3))}
    assert len(seeds) == len(keys) * len(STREAMS) * 3


def test_names_do_not_run_together():
    assert streams.seed(Key("a", "b1", 1), "init") != streams.seed(Key("a", "b", 11), "init")


def test_an_unknown_stream_is_refused():
    with pytest.raises(ValueError, match="unknown stream 'nois'"):
        streams.seed(KEY, "nois")


def test_generators_repeat_and_differ_by_stream():
    assert np.array_equal(streams.rng(KEY, "batch").random(5), streams.rng(KEY, "batch").random(5))
    assert not np.array_equal(streams.rng(KEY, "batch").random(5), streams.rng(KEY, "init").random(5))
    draw = torch.randn(5, generator=streams.generator(KEY, "noise", 2))
    assert torch.equal(draw, torch.randn(5, generator=streams.generator(KEY, "noise", 2)))
    assert not torch.equal(draw, torch.randn(5, generator=streams.generator(KEY, "noise", 3)))


def test_a_source_goes_on_where_its_last_draw_ended():
    like = torch.empty(0, dtype=torch.float64)
    source = streams.source(KEY, "noise", 5, like)
    assert torch.equal(source(3, 20), streams.normal(KEY, "noise", 5, (3, 20), like))
    assert not torch.equal(source(3, 20), streams.normal(KEY, "noise", 5, (3, 20), like))


OTHER = {"dataset": "472f5ad695b55373eeded9dff8f86f4c", "protocol": "cutajar2017", "split": 4, "replica": 0}
GOLDEN = {("noise", 7): 5662565696786150847, ("init", 0): 6942560770368040716}
