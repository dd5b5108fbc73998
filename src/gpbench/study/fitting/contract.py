"""What a method must return (docs/adding.md), checked whenever it is asked: a mistake of a new method is one line about
that method, and no error of the code that goes on with its answer. No torch."""

import functools
from collections.abc import Callable
from typing import Any

from gpbench.errors import UserError
from gpbench.methods.base import ClosedFormMethod, Shapes, State


def held(method: Any) -> Any:
    """The method, held to its contract from now on."""
    contract = CLOSED_FORM if isinstance(method, ClosedFormMethod) else STEPPED
    for name in filter(functools.partial(hasattr, method), contract):
        setattr(method, name, _checked(method, name, *contract[name]))
    return method


def _checked(method: Any, name: str, wanted: str, keeps: Callable[..., bool]) -> Callable:
    """A function of a method that raises UserError where its answer is none that is wanted."""
    call = getattr(method, name)

    def checked(*words: Any) -> Any:
        answer = call(*words)
        if not keeps(answer, *words):
            asked = f"{type(method).__module__}: {name}"
            raise UserError(f"{asked} returned {_described(answer)}; it must return {wanted} (docs/adding.md)")
        return answer

    return checked


def _described(answer: Any) -> str:
    """Types and shapes of an answer, of a state those of its params."""
    parts = {f"{name} ": a for name, a in answer.params.items()} if isinstance(answer, State) else {"": answer}
    shapes = {name: f" {list(a.shape)}" if hasattr(a, "shape") else "" for name, a in parts.items()}
    return ", ".join(f"{name}{type(a).__name__}{shapes[name]}" for name, a in parts.items())


def _is_state(answer: Any, replicas: int) -> bool:
    if not isinstance(answer, State):
        return False
    tensors = [*answer.params.values(), *answer.buffers.values()]
    return all(getattr(tensor, "shape", ())[:1] == (replicas,) for tensor in tensors)


def _is_objective(answer: Any, state: State, *_: Any) -> bool:
    like = next(iter(state.params.values())).data
    return isinstance(answer, type(like)) and answer.shape == like.shape[:1]


def _predicts(answer: Any, *_: Any) -> bool:
    return hasattr(answer, "is_finite") and hasattr(answer, "log_prob")


PREDICT = "a predictive distribution, such as gpbench.predictive.distributions.GaussianMixture", _predicts
OBJECTIVE = "a tensor of shape [R], a number for each replica", _is_objective
STATE = "a State, whose params and buffers are tensors with the axis of replicas first"
CLOSED_FORM: dict[str, tuple[str, Callable[..., bool]]] = {
    "fit": ("a dict of what was learnt", lambda answer, *_: isinstance(answer, dict)),
    "predict": PREDICT,
}
STEPPED: dict[str, tuple[str, Callable[..., bool]]] = {
    "init": (STATE, lambda answer, *_: _is_state(answer, 1)),
    "start": (STATE, lambda answer, data, keys: _is_state(answer, len(keys))),
    "noise_shapes": ("gpbench.methods.base.Shapes", lambda answer, *_: isinstance(answer, Shapes)),
    "loss": OBJECTIVE,
    "profile": OBJECTIVE,
    "step": OBJECTIVE,
    "predict": PREDICT,
}
