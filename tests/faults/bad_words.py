"""Bad words on the command line: arguments, overrides, cells. Each should be one line, exit 1 or 2, nothing written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from gpbench.config import schema

COMMANDS = {
    "plan": (), "cost": (), "certify": (), "status": (), "record": (), "cite": (), "backlog": (), "verify": (),
    "track": (), "unlock": (), "reference": (), "papers": (), "references": (), "runs": (), "retry": (),
    "collect": ("x",), "verdict": ("x",), "crate": ("x",), "fit": ("method=linear",), "why": ("linear/mine",),
    "new": ("method", "x"), "predict": ("x", "x.csv"), "challenge": ("x.csv",), "adopt": ("x",), "list": ("runs",),
}  # fmt: skip
DATA = ("list", "show", "verify", "fetch", "prepare", "splits", "add", "pin")
STRANGE = ("defualt", "no such", "../default", "a$(touch pwn)", "a;b", "-", "", ".", "ä", "x" * 300, "default/", "\0")
CELL = ("fit", "method=linear", "dataset=mine", "budget=smoke")
NUMBERS = {
    "splits": ("x", "-1", "0", "1.5", "inf", "nan", "1_0", "²", "null", "[1]", "{a: 1}", "true", "1e999", "'1 0'"),
    "first_split": ("x", "-1", "1.5", "inf", "1_0", "99", "1,2"),
    "replicas": ("x", "-1", "0", "1.5", "100000", "1_0", "10000000000"),
    "noise_block": ("x", "0", "2.5", "1_000"),
    "svgp.num_inducing": ("many", "0", "-5", "1.5", "1_0", "null", "[5]", "true", "inf"),
    "svgp.learning_rate": ("x", "0", "-1", "inf", "-inf", "nan", "1_0", "null", "[1]", "true", "'1,5'", "--1"),
    "svgp.steps": ("x", "0", "-1", "1.5"),
    "svgp.kernel": ("rfb", "1", "[rbf]", "rbf+", "'rbf * rfb'"),
    "trainer.threads": ("x", "0", "-1", "1.5"),
    "trainer.max_minutes": ("x", "0", "-1", "inf", "nan"),
    "trainer.device": ("gpu", "1"),
    "protocol.splits.seed": ("x", "-1", "4294967296", "99999999999999999999", "1.5"),
    "protocol.splits.train_fraction": ("0", "1", "-0.1", "1.5", "nan", "x"),
    "protocol.splits.scheme": ("shufle", "1"),
    "protocol.splits.count": ("0", "-1", "x", "true"),
    "protocol.splits.test_rows": ("{bostn: 5}", "{boston: 0}", "5", "{boston: 506}", "{boston: 9999}"),
    "protocol.metrics": ("[mnl]", "mnll", "[1]"),
    "protocol.spread": ("sd",),
    "protocol.outputs": ("second",),
    "protocol.leaks": ("[test_y]",),
    "budget.steps": (
        "{svpg: {small: 1, medium: 1, large: 1}}",
        "5",
        "{svgp: 5}",
        "{svgp: {small: 0}}",
        "{svgp: {small: true, medium: 1, large: 1}}",
    ),
    "budget.hyper": ("{svpg: {batch_size: 5}}", "{svgp: {batch_sise: 5}}", "{svgp: {batch_size: true}}", "{svgp: 5}"),
    "budget.r_hat": ("1", "0.9", "inf", "x"),
    "budget.gain": ("0", "-1", "nan"),
    "dtype": ("float16", "64", "[float64]"),
    "kind": ("predic", "[predict]"),
    "methods": ("svgp", "[svpg]", "[]", "[1]", "[[svgp]]", "{svgp: 1}", "[svgp,svgp]", "null", "[SVGP]"),
    "datasets": ("boston", "[bostn]", "[]", "[boston,boston]", "null", "['../boston']", "[none]"),
    "protocol": ("comon", "null", "[common]"),
    "budget": ("quik", "1"),
    "trainer": ("tpu", "null"),
    "figures": ("[foo]", "ranks", "[1]"),
    "tables": ("[foo]", "cost"),
    "probes": ("[foo]", "bounds", "[bounds,bounds]"),
    "pairs": ("[[svgp]]", "[[svgp,svgp]]", "[[svgp,foo]]", "[svgp,dsvi]", "svgp"),
    "published": ("[foo]", "rossi2021"),
    "per_split": ("[foo]",),
    "challengers": ("[foo]", "['../x']"),
    "only": ("[foo]",),
    "presets": ("{bostn: {svgp: dsvi}}", "{boston: {svgp: dsvy}}", "{boston: svgp}"),
    "splits_of": ("{bostn: 1}", "{boston: 0}", "{boston: 21}", "3"),
    "variants": (
        "{a b: {method: svgp}}",
        "{new: {}}",
        "{new: {method: svpg}}",
        "{new_{x}: {method: svgp}}",
        "[svgp]",
        "{new: {method: svgp, datasets: 5}}",
        "{new: {method: svgp, datasets: [[boston]]}}",
        "{new: {method: svgp, datasets: boston}}",
    ),
}
OVERRIDES = (
    "splits", "splits=", "=1", "splits==1", "splits=2 splits=3", "svgp.num_inducing=5 svgp.num_inducing=6", "splits='2",
    "methods=[svgp", "methods=[svgp]]", "methods={", "svgp=5", "svgp.=5", ".num_inducing=5", "svgp..num_inducing=5",
    "svpg.num_inducing=5", "*.num_inducin=5", "**=5", "*=5", "svgp.name=x", "svgp.module=os", "svgp.reference=x",
    "svgp.tasks=[binary]", "svgp.closed_form=true", "linear.steps=5", "constant.steps=100", "trainer.name=x",
    "~splits", "+splits=2", "++splits=2", "splits=${splits}", "splits=${oc.env:HOME}", "splits=$HOME", "study=default",
    "name=x", "title=x", "svgp.num_inducing=5;touch", "svgp.scheme=async",
    "budget=smoke budget=quick", "mirror=/x", "first_split=5 splits=99", "datasets=[boston,yacht", "splits=2,3",
    "svgp.max_rows=0", "svgp.seconds_per_step=0", "svgp.max_inputs=-1", "protocol.splits.sizes=[0]",
    "protocol.splits.stratified=true", "protocol.splits.scheme=k_fold protocol.splits.sqrt_test=true",
    "protocol.splits.scheme=k_fold protocol.splits.count=1", "protocol.splits.scheme=balanced",
)  # fmt: skip
CELLS = (
    ("fit",), ("fit", "linear"), ("fit", "linear/mine"), ("fit", "method=linear"), ("fit", "dataset=mine"),
    ("fit", "method=linear,svgp", "dataset=mine"), ("fit", "method=[linear]", "dataset=mine"),
    ("fit", "method=linear", "dataset=mine,boston"), ("fit", "method=linear", "method=svgp", "dataset=mine"),
    ("fit", "method=../linear", "dataset=mine"), ("fit", "method=", "dataset=mine"), ("fit", "METHOD=linear"),
    (*CELL, "split=x"), (*CELL, "split=-1"), (*CELL, "split=20"), (*CELL, "split=²"), (*CELL, "split=1_0"),
    (*CELL, "split=1.0"), (*CELL, "split=0", "split=1"), (*CELL, "split=ALL"), (*CELL, "split=99999999999999999999"),
    (*CELL, "replica=x"), (*CELL, "replica=-1"), (*CELL, "replica=10000000"), (*CELL, "splt=0"), (*CELL, "seed=1"),
    (*CELL, "method.steps=5"), (*CELL, "method.alpha=x"), (*CELL, "metod.steps=5"), (*CELL, "kind=sample"),
    (*CELL, "kind=x"), (*CELL, "dtype=float16"), (*CELL, "noise_block=0"), (*CELL, "budget.steps=1"),
    (*CELL, "figures=[ranks]"), (*CELL, "protocol=comon"), (*CELL, "trainer=gpuu"),
    (*CELL, "split=1", "trainer.device=cuda"),
    ("fit", "method=svm", "dataset=mine"), ("fit", "method=svgp", "dataset=mine", "method.num_inducing=-1"),
    ("why",), ("why", "zz"), ("why", ""), ("why", "linear/mien"), ("why", "lineer/mine"), ("why", "linear/mine/0"),
    ("why", "method=linear"), ("why", "method=linear", "dataset=mine", "studdy=x"), ("why", "0123456789abcdef"),
    ("why", "method=linear", "method=svgp", "dataset=mine"), ("why", "linear/mine", "dsvi/mine"), ("why", "linear/"),
    ("retry", "zz"), ("retry", ""), ("retry", "0" * 16), ("retry", "../x"), ("references", "nope"),
    ("references", "nope", "--draws", "no.csv"), ("list", "method"), ("list",), ("new",), ("new", "data", "x"),
    ("new", "method"), ("new", "method", "svgp"), ("new", "method", "a b"), ("new", "method", "class"),
    ("new", "method", "../x"), ("new", "method", "1x"), ("new", "method", "mine", "--out", "no/such/folder"),
    ("cost", "--cores", "0"), ("cost", "--cores", "x"), ("cost", "--cores", "1.5"), ("cost", "--cores", "1_0"),
    ("backlog", "walk"), ("backlog", "run", "--cores", "0"), ("backlog", "run", "--minutes", "0"),
    ("backlog", "run", "--minutes", "nan"), ("backlog", "run", "--minutes", "x"), ("adopt", "default", "--check", "0"),
    ("adopt", "nope"), ("adopt", "default", "--against", "/no/such"), ("adopt", "../x"), ("plan", "a", "b"), (),
    ("plann",), ("PLAN",), ("--nope",), ("data",), ("data", "nope"), ("data", "prepare"), ("data", "prepare", "mien"),
    ("data", "show", "nope"), ("data", "fetch"), ("data", "fetch", "--files", "../x"), ("data", "pin", "nope"),
    ("data", "fetch", "--files", "/etc/passwd"), ("data", "fetch", "--files", "no/such"), ("data", "verify", "nope"),
    ("data", "verify", "mine", "--statistics", "x.txt"), ("data", "splits", "mine", "--split", "20"),
    ("data", "splits", "mine", "--split", "-1"), ("data", "splits", "mine", "--split", "x"), ("data", "splits"),
    ("data", "splits", "mine", "--protocol", "x"), ("data", "splits", "mine", "boston"), ("data", "list", "nope"),
    ("data", "add"), ("data", "add", "no.csv"), ("data", "add", "no.csv", "--target", "y"), ("plan", "--overrides"),
)  # fmt: skip


def cases() -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is wrong, and the words of a command."""
    for command, words in COMMANDS.items():
        yield f"{command}: unknown option", (command, *words, "--nope")
    for action in DATA:
        yield f"data {action}: unknown option", ("data", action, "mine", "--nope")
    for command in ("plan", "cost", "certify", "status", "record", "cite"):
        yield from (
            (f"{command}: study {name[:20]!r}", (command, name)) for name in STRANGE if name or command != "status"
        )
    for command in ("collect", "verdict", "crate"):
        yield from ((f"{command}: run {name[:20]!r}", (command, name)) for name in STRANGE)
    for key, values in NUMBERS.items():
        yield from ((f"{key}={value}", ("plan", "--overrides", f"{key}={value}")) for value in values)
    yield from ((f"override {text}", ("plan", "--overrides", text)) for text in OVERRIDES)
    for prefix, cls in (
        ("", schema.Study),
        *((f"{g}.", getattr(schema, g.title())) for g in ("trainer", "budget", "protocol")),
    ):
        for field in dataclasses.fields(cls):
            typo = f"{prefix}{field.name[:-1]}s" if field.name[-1] != "s" else f"{prefix}{field.name}s"
            yield f"typo {typo}", ("plan", "--overrides", f"{typo}=1")
    yield from ((f"words {' '.join(words)[:60]}", words) for words in CELLS)
