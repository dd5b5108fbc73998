"""Schemas of the configuration groups: the keys of each, their types and meanings; pydantic validates them."""

from __future__ import annotations

from dataclasses import field
from decimal import Decimal
from typing import Any, Literal

from annotated_types import MinLen

from gpbench.hyper import (
    Annotated,
    Fraction,
    Ge,
    Gt,
    Le,
    Lt,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    dataclass,
)

Task = Literal["regression", "binary", "multiclass", "counts", "events"]
Scheme = Literal["single", "asynchronous", "synchronous"]
Kind = Literal["predict", "sample", "solve"]


@dataclass(frozen=True)
class Method:
    """The keys of conf/method/*.yaml that are not hyperparameters of the method."""

    name: str  #: name of the file; it is not written into the file
    label: str  #: name in tables and figures
    module: str  #: Python module of the method
    reference: str  #: citation key in conf/references.bib
    tasks: list[Task]  #: tasks that the method can learn
    max_rows: PositiveInt | None = None  #: largest number of training rows; null: no limit
    beyond: str = ""  #: a method for more rows than `max_rows`, which fits that are skipped for that name
    max_inputs: PositiveInt | None = None  #: largest number of inputs; null: no limit
    max_outputs: PositiveInt | None = None  #: largest number of targets predicted at once; null: no limit
    family: str = ""  #: key of the method in budgets; empty: the last part of `module`
    steps: PositiveInt | None = None  #: number of updates; null: the budget decides
    closed_form: bool = False  #: the method has no updates, so that no budget applies
    #: kinds of studies that the method suits; `sample` needs a Markov chain, `solve` a method of linear systems
    kinds: list[Kind] = field(default_factory=lambda: ["predict"])
    #: schemes that suit the method: chains have no gradients to push, and noise drawn per row cannot be shared
    schemes: list[Scheme] = field(default_factory=lambda: ["single", "asynchronous", "synchronous"])
    #: one process, a parameter server whose workers push stale gradients, or workers that share every mini-batch
    scheme: Scheme = "single"
    workers: PositiveInt = 1  #: number of processes, if the scheme is not `single`
    #: a first guess, before anything is measured: of an update (closed forms: of a fit) on one CPU thread, with 500
    #: training rows of 10 columns
    seconds_per_step: PositiveFloat = 0.02
    rows_power: NonNegativeFloat = 0.25  #: the power of the number of training rows that it grows with
    #: operations of an update in each layer, which take a GPU as long as they take to start; null: no estimate for one
    operations_per_layer: PositiveInt | None = None
    #: hyperparameter -> what studies with `tune` try of it: a list of values, or a range {low: 0.001, high: 0.1}, whose
    #: logarithm is uniform; what the user sets is not tuned
    tunable: dict[str, Any] = field(default_factory=dict)
    tunes_itself: str = ""  #: hyperparameter that counts the trials of a search of its own; a study's `tune` sets it


@dataclass(frozen=True)
class Upstream:
    """What is documented about a raw file that data.dvc does not pin yet; `gpbench data pin` checks it."""

    urls: list[str]  #: addresses, tried in this order; `URL#MEMBER` is a member of an archive
    size: PositiveInt | None = None  #: in bytes
    md5: str | None = None  #: of the file
    sha256: str | None = None  #: of the file


@dataclass(frozen=True)
class Source:
    """Where a data set comes from (raw files, or a package that contains it), and how it is read."""

    #: reader: a bundled data set of a package, a generator of gpbench, or a file format
    kind: Literal[
        "sklearn",
        "mlxtend",
        "simulated",
        "table",
        "excel",
        "idx",
        "auto_encoder",
        "r",
        "svmlight",
        "airline",
        "completion",
    ]
    targets: list[str]  #: names of the target columns; with `bins`, the name of the counts
    #: the rows of the files are events, counted on a regular grid with this many bins per coordinate of `window`
    bins: list[PositiveInt] = field(default_factory=list)
    item: str = ""  #: name inside the package, or of the generator
    files: list[str] = field(default_factory=list)  #: paths below data/raw; their rows follow one another in this order
    beside: bool = False  #: the files hold columns of the same rows, rather than rows that follow one another
    #: file -> what is documented about it, for those of `files` that data.dvc does not pin
    unpinned: dict[str, Upstream] = field(default_factory=dict)
    separator: str = ","  #: a character, or `whitespace`
    #: where column names are: nowhere, in the first line, or in @attribute lines (ARFF, KEEL)
    header: Literal["none", "line", "attributes"] = "none"
    sheet: str = ""  #: sheet of an Excel file; empty: the first
    #: names of all columns, replacing those in the files; without either they are x0, x1, ... and the targets
    names: list[str] = field(default_factory=list)
    targets_first: bool = False  #: if columns have no names, the targets are the first columns rather than the last
    #: cell that stands for a missing value (`empty`: an empty one; a number however it is written, but in `categories`
    #: only as here); rows with it in an input or target are left out
    missing: str = ""
    #: numbers (from 0, in the files) of rows to leave out
    leave_out: list[NonNegativeInt] = field(default_factory=list)
    #: text column -> its values, each of which becomes an indicator column (only the second of two values)
    categories: dict[str, list[str]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)  #: cell of the target -> class, where they differ
    only_labels: bool = False  #: rows with other labels are left out instead of refused


@dataclass(frozen=True)
class Expect:
    """Statistics that an independent source states; preparing refuses data that differ in the digits given."""

    #: mean of each target; in quotes if the last digit is 0: '9.1880'
    target_mean: list[Decimal] = field(default_factory=list)
    target_sd: list[Decimal] = field(default_factory=list)  #: population standard deviation of each target
    target_min: list[Decimal] = field(default_factory=list)  #: minimum of each target
    target_max: list[Decimal] = field(default_factory=list)  #: maximum of each target
    input_min: list[Decimal] = field(default_factory=list)  #: minimum of each input
    input_max: list[Decimal] = field(default_factory=list)  #: maximum of each input
    class_counts: list[PositiveInt] = field(default_factory=list)  #: rows of each class, in the order of `classes`
    duplicate_rows: NonNegativeInt | None = None  #: number of rows (inputs and targets) that repeat an earlier one
    duplicate_inputs: NonNegativeInt | None = None  #: number of rows whose inputs repeat those of an earlier one
    constant_inputs: list[str] | None = None  #: names of inputs that have one value only


@dataclass(frozen=True)
class Dataset:
    """conf/dataset/*.yaml: one catalogue entry."""

    name: str  #: name of the file; it is not written into the file
    title: str  #: name in tables and figures
    task: Task  #: what is learned; `events`: points without a target
    source: Source  #: where the data come from and how they are read
    md5: str | None  #: of the prepared arrays; null: not pinned, so that preparing prints it and stops
    rows: PositiveInt  #: number of rows
    columns: PositiveInt  #: number of inputs
    licence: str = ""  #: terms of use, as the source states them
    citation: str = ""  #: citation key in conf/references.bib
    url: str = ""  #: page that describes the data set
    #: data of one's own: `licence`, `citation` and `url` may be empty, and raw files are not pinned in data.dvc
    private: bool = False
    #: inputs are pixels of square images (in a regression the first pixels, and the targets are the others)
    images: bool = False
    classes: list[str] = field(default_factory=list)  #: names of the classes, numbered from 0 in this order
    #: simulated data: columns after the targets with what they were drawn from (latent values, parameters)
    truth: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)  #: columns that are neither inputs nor targets
    units: dict[str, str] = field(default_factory=dict)  #: column -> unit, where known
    #: the official split trains on this many rows, the first ones, and tests on the others
    train_rows: PositiveInt | None = None
    window: list[tuple[float, float]] = field(default_factory=list)  #: events: [lower, upper] of each coordinate
    on_request: bool = False  #: large, or missing in some mirrors: `snakemake data` leaves it out
    expect: Expect = field(default_factory=Expect)  #: statistics that preparing checks
    notes: str = ""  #: what a reader of results should know about the data

    def __post_init__(self) -> None:
        if absent := [key for key in ("licence", "citation", "url") if not (self.private or getattr(self, key))]:
            raise ValueError(f"{', '.join(absent)} missing; write them, or `private: true` for data of your own")


@dataclass(frozen=True)
class SplitRules:
    """How rows are split into training and test parts; `gpbench.data.splits` explains the schemes."""

    #: rule by which rows are assigned to the parts
    scheme: Literal["permutation", "shuffle", "train_test_split", "k_fold", "blocks", "balanced"] = "permutation"
    seed: Annotated[int, Ge(0), Lt(2**31)] = 1  #: seed of the permutations
    count: PositiveInt = 20  #: number of splits; `balanced`: number of splits of each size
    sizes: list[PositiveInt] = field(default_factory=list)  #: `balanced`: numbers of training rows
    train_fraction: Fraction = 0.9  #: fraction of the rows that train
    #: data set -> number of test rows, where it is not given by a fraction
    test_rows: dict[str, PositiveInt] = field(default_factory=dict)
    sqrt_test: bool = False  #: round(sqrt(n)) of n rows test
    stratified: bool = False  #: `k_fold` deals the rows of each class over the folds
    official: bool = True  #: a data set that has an official split uses only that one
    #: `thinning`: in data sets of counts, half of the events (at random) test instead of held-out rows;
    #: `train_fraction` and `test_rows` apply to the other data sets
    counts: Literal["rows", "thinning"] = "rows"


@dataclass(frozen=True)
class Protocol:
    """conf/protocol/*.yaml: splits, scaling, outputs and leaks, and which scores a paper prints."""

    name: str  #: name of the file; it is not written into the file
    title: str  #: one line for tables and reports
    splits: SplitRules  #: how rows are split
    metrics: list[str]  #: metrics that tables report
    #: what is printed beside a mean over splits
    spread: Literal["population sd", "sample sd", "standard error", "two sd"]
    inputs: Literal["standardise", "as they are"] = "standardise"  #: scaling of the inputs
    targets: Literal["standardise", "as they are"] = "standardise"  #: scaling of regression targets
    #: which of several targets are predicted; `truth`: all, followed by the columns `truth` of simulated data
    outputs: Literal["first", "last", "all", "truth"] = "first"
    #: test information that scaling uses, as a paper did: `test_x`, the inputs of the test rows
    leaks: list[Literal["test_x"]] = field(default_factory=list)


@dataclass(frozen=True)
class Sizes:
    """Number of updates by size of the training inputs, which is rows x columns."""

    small: PositiveInt  #: below 10^4
    medium: PositiveInt  #: below 3 x 10^5
    large: PositiveInt  #: from 3 x 10^5

    def steps(self, values: int) -> int:
        """Number of updates for so many values: training rows x columns."""
        return self.small if values < 10_000 else self.medium if values < 300_000 else self.large


@dataclass(frozen=True)
class Budget:
    """conf/budget/*.yaml: the number of updates (never seconds) of each method or family of methods."""

    name: str  #: name of the file; it is not written into the file
    title: str  #: one line for tables and reports
    #: method or family -> number of updates; `default` applies to those not listed, `lbfgs` to all fits by L-BFGS
    steps: dict[str, Sizes]
    #: fits by gradients end once they have converged; `steps` are the most
    until_converged: bool = False
    #: method or family -> hyperparameters that are part of the budget (number of tuning trials, say)
    hyper: dict[str, dict[str, float | int]] = field(default_factory=dict)
    #: number of mini-batches on which `probes: [bounds]` evaluates the objective of a finished fit
    bound_batches: PositiveInt = 100
    bound_rows: PositiveInt = 50_000  #: number of training rows in each of these mini-batches
    #: largest R-hat at which chains count as converged (with 100 effective draws); null: 1.05, and chains that have not
    #: converged are marked and ranked all the same; they never have a verdict
    r_hat: Annotated[float, Gt(1)] | None = None
    #: fits by gradients must have converged by the rule that ends them, whose limit of the gain (nats a datum,
    #: predicted for as many steps again) is 0.02 (0.005 by L-BFGS), or still improve by less than this, where it is
    #: larger; null: fits that still improve are marked, and ranked all the same
    gain: PositiveFloat | None = None


@dataclass(frozen=True)
class Trainer:
    """conf/trainer/*.yaml: how a fit runs; never part of its identity."""

    name: str  #: name of the file; it is not written into the file
    device: Literal["cpu", "cuda"] = "cpu"  #: device of the tensors
    threads: PositiveInt = 1  #: CPU threads of a fit, and of each of its workers
    replicas: PositiveInt = 5  #: largest number of fits of a cell in one tensor batch
    #: fits are batched if (inducing inputs or features) x (rows of a step) is at most this; others run one at a time
    small: NonNegativeInt = 60_000
    #: largest total size (rows x rows each) of the covariance matrices that exact GPs keep in one tensor batch of
    #: Markov chains; the chains of a split stay together if they fit, even if there are more than `replicas`
    square: NonNegativeInt = 800_000
    batch_minutes: PositiveFloat = 2.0  #: predicted minutes of fitting in one job
    jobs: PositiveInt = 4  #: a job takes at most one `jobs`-th of what is left to fit, but at least 15 seconds
    #: most minutes that a job asks a cluster for, such as the limit of a partition; null: no cap
    job_minutes: PositiveInt | None = None
    checkpoint_seconds: Annotated[float, Ge(0)] = 20.0  #: seconds between checkpoints
    log_points: PositiveInt = 200  #: number of points in the trace of the objective
    eval_points: NonNegativeInt = 10  #: largest number of points in the trace of the test scores, but two at least
    eval_every: PositiveInt = 50  #: updates from one of these to the next, at least, on average
    max_minutes: PositiveFloat | None = None  #: a fit that takes longer stops and can be resumed; null: no limit
    #: compile the loss of methods that Adam trains (torch.compile, on a GPU with CUDA graphs): up to half a minute a
    #: fit; methods with steps of their own, natural gradients among them, and asynchronous workers run as always
    compile: bool = False
    live: bool = False  #: send the objective of running fits to MLflow, at MLFLOW_TRACKING_URI or in mlflow.db


@dataclass(frozen=True)
class Study:
    """conf/study/*.yaml: a list of cells."""

    name: str  #: name of the file; it is not written into the file
    title: str  #: heading of the report
    methods: list[str]  #: names in conf/method
    datasets: list[str]  #: names in conf/dataset
    #: `predict`: held-out rows are scored; `sample`: the draws of Markov chains are judged, nothing is predicted;
    #: `solve`: solvers are measured on linear systems of all rows
    kind: Kind = "predict"
    protocol: str = "common"  #: name in conf/protocol
    budget: str = "quick"  #: name in conf/budget
    trainer: str = "cpu"  #: name in conf/trainer
    dtype: Literal["float64", "float32"] = "float64"  #: floating-point type of the fits
    noise_block: PositiveInt = 50  #: number of updates after which the random streams are seeded again
    #: number of settings that every fit tries of what its method's `tunable` names, on a fifth of its training rows
    #: held out, before it is made with the best of them; 0: none
    tune: Annotated[NonNegativeInt, Le(10_000)] = 0
    splits: PositiveInt = 5  #: number of splits per data set (one where its protocol has an official one)
    first_split: NonNegativeInt = 0  #: number of the first split
    #: number of fits of every split, which differ by their random streams: restarts or Markov chains
    replicas: PositiveInt = 1
    splits_of: dict[str, PositiveInt] = field(default_factory=dict)  #: data set -> at most so many splits of it
    #: data set -> method -> the method file that replaces it there (a preset for images, say)
    presets: dict[str, dict[str, str]] = field(default_factory=dict)
    #: name -> {method, label, datasets, key: value, ...}: further methods of the study, which are a method with other
    #: settings; a list of values (of lists, where a value is a list) makes one variant per value, and `{key}` stands
    #: for the value in the label, and for its small letters and digits, joined by _, in the name (0.01: 0_01);
    #: `datasets`: those of the study that it is fitted to, where not all
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: methods and variants to run, to select a part of a large study; empty: all
    only: list[str] = field(default_factory=list)
    #: what finished fits are evaluated for besides predictions: the objective on large batches, the functions of each
    #: layer over one input or over two, the inputs of the test rows, probabilities of classes over two inputs, kept
    #: draws of the inducing inputs and of the first layer's kernel, inducing inputs before and after training, kept
    #: draws of the values there, of the weights of sources, and the weights of kernels that were optimised
    probes: list[
        Literal[
            Literal["bounds", "layers", "surfaces", "inputs", "probabilities"],
            Literal["inducing", "starts", "whitened", "weights", "kernel_weights"],
        ]
    ] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)  #: figures in addition to those of every study
    tables: list[str] = field(default_factory=list)  #: tables in addition to those of every study
    #: pairs of methods whose scores the table `differences` compares: the first minus the second
    pairs: list[tuple[str, str]] = field(default_factory=list)
    #: citation keys of the papers in the scorecard (may be empty); null: all of published/
    published: list[str] | None = None
    #: names of published/per_split/*.yaml: methods whose scores authors released for each of our splits
    per_split: list[str] = field(default_factory=list)
    #: names below challengers/: predictions of others, added by `gpbench challenge`, that stand beside ours
    challengers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PrintedSplits:
    """published/per_split/NAME.yaml: whose scores NAME.csv holds, and of which data sets they are paired with ours."""

    label: str  #: in tables and figures
    reference: str  #: citation key
    protocol: str  #: in conf/protocol, whose splits these are
    paired: dict[str, str]  #: data set -> what shows that its splits, rows and target are ours
    printed: str = ""  #: method and setting in published/<reference>.csv, where that has their means


@dataclass(frozen=True)
class Item:
    """One figure or table of a paper: the study and output that reproduce it, or what is missing for that."""

    title: str  #: what the figure or table shows
    study: str = ""  #: name in conf/study
    overrides: str = ""  #: overrides of that study for this item: `only=[...]`, `datasets=[...]`
    figure: str = ""  #: name of a figure of gpbench
    table: str = ""  #: name of a table of gpbench; `published`: printed numbers beside reproduced ones
    printed: str = ""  #: for the table `published`: value of the column `item` in published/PAPER.csv
    later: str = ""  #: what gpbench still lacks to reproduce the item
    #: what was printed and ours does not show; of a table `published` it follows from published/PAPER.csv
    lacks: str = ""


@dataclass(frozen=True)
class Paper:
    """conf/paper/*.yaml: the figures and tables of a paper, by name."""

    name: str  #: citation key in conf/references.bib, which is the name of the file
    title: str  #: title of the paper
    #: fig2, table4, ...: `snakemake figures/PAPER_fig2.pdf`, `snakemake tables/PAPER_table4.csv`
    items: dict[str, Item]


@dataclass(frozen=True)
class Run:
    """A study with its overrides, as `snakemake --config` takes them."""

    study: str
    overrides: str = ""
    #: of its methods only these; its name and its records stay those of the study
    methods: Annotated[list[str], MinLen(1)] | None = None
    datasets: Annotated[list[str], MinLen(1)] | None = None  #: of its data sets only these


@dataclass(frozen=True)
class Backlog:
    """conf/backlog.yaml: runs that wait for an idle machine."""

    runs: list[Run]  #: in the order of their value
    piece_minutes: PositiveFloat = 10.0  #: predicted minutes of fitting after which finished fits are recorded
