import numpy as np
import pandas as pd
import pytest

from gpbench.study.storage import arrays

CHAIN = {"names": np.array(["a", "layer1.log_lengthscale"]), "draws": np.arange(6.0).reshape(3, 2)}
TRACE = pd.DataFrame({"step": [1, 2], "objective": [-2.0, -1.0], "mnll": [np.nan, 0.5]})


def test_parts_come_back_whole_or_by_name(tmp_path):
    components = {"mean": np.ones((2, 3, 1), np.float32)}
    trace = {name: column.to_numpy() for name, column in TRACE.items()}
    arrays.write(tmp_path, {"components": components, "chain": CHAIN, "trace": trace})
    assert [path.name for path in tmp_path.iterdir()] == [arrays.NAME]
    chain = arrays.read(tmp_path, "chain")
    assert chain.keys() == CHAIN.keys()
    assert all(np.array_equal(chain[name], CHAIN[name]) for name in CHAIN)
    assert arrays.read(tmp_path, "chain", only=("draws",)).keys() == {"draws"}
    assert arrays.read(tmp_path, "components")["mean"].dtype == np.float32
    pd.testing.assert_frame_equal(arrays.trace(tmp_path), TRACE)
    assert arrays.has(tmp_path, "trace")


def test_what_is_not_there_is_empty(tmp_path):
    arrays.write(tmp_path, {"chain": {}, "trace": {}})
    assert not list(tmp_path.iterdir())
    assert not arrays.has(tmp_path, "chain")
    assert arrays.read(tmp_path, "chain") == {}
    assert arrays.trace(tmp_path).empty
    arrays.write(tmp_path, {"chain": CHAIN})
    assert not arrays.has(tmp_path, "trace")
    assert arrays.trace(tmp_path).empty


def test_objects_are_refused(tmp_path):
    with pytest.raises(ValueError, match="allow_pickle"):
        arrays.write(tmp_path, {"trace": {"note": np.array(["a", None], dtype=object)}})
