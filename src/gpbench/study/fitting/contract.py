"""What a method must return (docs/adding.md), checked whenever it is asked: a mistake of a new method is one line about
that method, and no error of the code that goes on with its answer. No torch."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from gpbench.errors import UserError
from gpbench.methods.base import ClosedFormMethod, SamplerMethod, Shapes, State

STATE = "a State of tensors whose first axis is that of replicas, with params in the type of the inputs"
OBJECTIVE = "a tensor of shape [R], a number for each replica"
PREDICT = {"predict": "a predictive of its task: Categorical [T] of all classes, GaussianMixture or Counts [T, P], ..."}
CLOSED_FORM = {"fit": "a dict of what was learnt"} | PREDICT
STEPPED = {"init": STATE, "start": STATE, "noise_shapes": "gpbench.methods.base.Shapes"} | PREDICT
STEPPED |= dict.fromkeys(("loss", "profile", "step"), OBJECTIVE)
SOLVED = {"measure": "a dict of numbers, with iterations and stopped (0 or 1), and without fit_id, step and seconds"}
CHAIN = {"report": "a dict of tensors of shape [R]", "variables": "a list of as many different names as it has numbers"}


def held(method: Any) -> Any:
    """The method, held to its contract from now on."""
    of_chains = CHAIN if isinstance(method, SamplerMethod) else {}
    asked_of = CLOSED_FORM if isinstance(method, ClosedFormMethod) else STEPPED | of_chains | SOLVED
    for name, wanted in asked_of.items():
        if hasattr(method, name):
            setattr(method, name, functools.partial(_ask, method, getattr(method, name), name, wanted))
    return method


def _ask(method: Any, call: Callable[..., Any], name: str, wanted: str, *words: Any, **named: Any) -> Any:
    """What a method answers; UserError where it is none of what is wanted."""
    answer = call(*words, **named)
    if named:  # a method may ask itself by keywords
        words = inspect.signature(call).bind(*words, **named).args
    if not _keeps(name, answer, words) or name == "predict" and not _is_of_task(method, answer, words[1].shape[-2]):
        shape = f" {list(answer.shape)}" if hasattr(answer, "shape") else ""
        odd = _misfits(name, answer, words) if STEPPED.get(name) == STATE and isinstance(answer, State) else ""
        returned = f"{name} returned {type(answer).__name__}{shape}{odd and f' with {odd}'}"
        raise UserError(f"{type(method).__module__}: {returned}; it must return {wanted} (docs/adding.md)")
    if STEPPED.get(name) == STATE:
        _set_apart(answer)
    return answer


def _keeps(name: str, answer: Any, words: tuple[Any, ...]) -> bool:
    if STEPPED.get(name) == OBJECTIVE:
        like = next(iter(words[0].params.values())).data
        return isinstance(answer, type(like)) and answer.shape == like.shape[:1]
    if STEPPED.get(name) == STATE:
        return isinstance(answer, State) and not _misfits(name, answer, words)
    if name == "measure":
        return isinstance(answer, dict) and _is_measured(answer)
    if name == "report":
        replicas = next(iter(words[0].params.values())).shape[:1]
        return isinstance(answer, dict) and all(getattr(value, "shape", ()) == replicas for value in answer.values())
    if name == "variables":
        return isinstance(answer, list) and len({*answer}) == len(answer) == words[1]
    if name == "predict":
        return hasattr(answer, "is_finite") and hasattr(answer, "log_prob")
    return isinstance(answer, dict if name == "fit" else Shapes)


def _misfits(name: str, state: State, words: tuple[Any, ...]) -> str:
    """Parts of a state without the replicas as first axis, and params in another type than the inputs."""
    like, replicas = (words[0].x, 1) if name == "init" else (words[0].inputs, len(words[1]))
    shapes = {part: [*getattr(value, "shape", ())] for part, value in (state.buffers | state.params).items()}
    odd = [f"{part} {shape}" for part, shape in shapes.items() if shape[:1] != [replicas]]
    types = {part: getattr(value, "dtype", type(value)) for part, value in state.params.items()}
    return ", ".join(odd + [f"{part} in {kind}" for part, kind in types.items() if kind != like.dtype])


def _is_of_task(method: Any, answer: Any, rows: int) -> bool:
    """Whether a predictive of so many rows has all classes of the data and no others, or in regression alone can be
    rescaled, as densities can: of counts one would be scored as if it were a probability."""
    if method.num_classes:
        return hasattr(answer, "probabilities") and answer.probabilities().shape == (rows, method.num_classes)
    is_shaped = getattr(answer, "shape", None) in (None, (rows, method.num_targets))
    is_of_task = hasattr(answer, "affine") == (method.task == "regression") and not hasattr(answer, "probabilities")
    return is_shaped and is_of_task


def _is_measured(answer: Mapping[str, Any]) -> bool:
    """Whether a trace can take the numbers of a system beside its own."""
    is_named = {"iterations", "stopped"} <= answer.keys() and not {"fit_id", "step", "seconds"} & answer.keys()
    are_numbers = is_named and all(isinstance(value, Real) for value in answer.values())
    return are_numbers and math.isfinite(answer["iterations"]) and answer["stopped"] in (0, 1)


def _set_apart(state: State) -> None:
    """Give parameters that share memory with another tensor (rows of x, say) a copy, for they are moved in place. Where
    several replicas are stacked, they have one anyway."""
    for name, value in state.params.items():
        others = [*(v for k, v in state.params.items() if k != name), *state.buffers.values()]
        span, theirs = _reach(value), map(_reach, others)
        if any(max(span.start, other.start) < min(span.stop, other.stop) for other in theirs):
            state.params[name] = value.clone()


def _reach(tensor: Any) -> range:
    """Addresses from the first to the last number of a tensor."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.data_ptr()
    return range(first, first + tensor.element_size() * (last + 1))
