"""What a method must return (docs/adding.md), checked whenever it is asked: a mistake of a new method is one line about
that method, and no error of the code that goes on with its answer. No torch."""

import functools
from collections.abc import Callable
from typing import Any

from gpbench.errors import UserError
from gpbench.methods.base import ClosedFormMethod, Shapes, State

STATE = "a State, whose params and buffers are tensors with the axis of replicas first"
OBJECTIVE = "a tensor of shape [R], a number for each replica"
PREDICT = {"predict": "a predictive distribution, such as gpbench.predictive.distributions.GaussianMixture"}
CLOSED_FORM = {"fit": "a dict of what was learnt"} | PREDICT
STEPPED = {"init": STATE, "start": STATE, "noise_shapes": "gpbench.methods.base.Shapes"} | PREDICT
STEPPED |= dict.fromkeys(("loss", "profile", "step"), OBJECTIVE)


def held(method: Any) -> Any:
    """The method, held to its contract from now on."""
    for name, wanted in (CLOSED_FORM if isinstance(method, ClosedFormMethod) else STEPPED).items():
        if hasattr(method, name):
            asked = f"{type(method).__module__}: {name}", wanted
            setattr(method, name, functools.partial(_ask, getattr(method, name), name, *asked))
    return method


def _ask(call: Callable[..., Any], name: str, asked: str, wanted: str, *words: Any) -> Any:
    """What a method answers; UserError where it is none of what is wanted."""
    answer = call(*words)
    if not _keeps(name, answer, words):
        shape = f" {list(answer.shape)}" if hasattr(answer, "shape") else ""
        found = f"{type(answer).__name__}{shape}"
        raise UserError(f"{asked} returned {found}; it must return {wanted} (docs/adding.md)")
    return answer


def _keeps(name: str, answer: Any, words: tuple[Any, ...]) -> bool:
    if STEPPED.get(name) == OBJECTIVE:
        like = next(iter(words[0].params.values())).data
        return isinstance(answer, type(like)) and answer.shape == like.shape[:1]
    if STEPPED.get(name) == STATE:
        replicas = 1 if name == "init" else len(words[1])
        tensors = [*answer.params.values(), *answer.buffers.values()] if isinstance(answer, State) else [answer]
        return all(getattr(tensor, "shape", ())[:1] == (replicas,) for tensor in tensors)
    if name == "predict":
        return hasattr(answer, "is_finite") and hasattr(answer, "log_prob")
    return isinstance(answer, dict if name == "fit" else Shapes)
