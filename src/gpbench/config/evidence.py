"""Schemas of published/claims/PAPER.yaml (what a paper claims, and what was found about it) and docs/findings.yaml."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Comparison:
    """What a claim says of two methods, on each of several data sets."""

    #: names in conf/study, under one protocol: the paper's, or ours (`common`)
    studies: list[str]
    methods: tuple[str, str]  #: of these studies
    metric: str  #: name of a metric
    datasets: list[str] = field(default_factory=list)  #: of these studies; empty: all
    #: of the first: `better`, or within the scorecard's margin `equal` or `not worse`
    expect: Literal["better", "equal", "not worse"] = "better"


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, or ours."""

    claim: str  #: one sentence
    where: str  #: section, figure or table; of ours: the conditions
    comparisons: list[Comparison] = field(default_factory=list)  #: what would show it
    untested: str = ""  #: why no comparison of two methods would


@dataclass(frozen=True)
class Deviation:
    """A place where public code does not do what the paper says."""

    paper: str
    code: str
    printed_by: Literal["paper", "code", "open"]  #: which of the two gives the printed numbers
    shown_by: str  #: the experiment, or for `open` the one that would tell


@dataclass(frozen=True)
class Explanation:
    """Why ours is worse than printed numbers, or differs from them."""

    item: str  #: column `item` of published/PAPER.csv; the other columns narrow it down
    why: str  #: one sentence
    shown_by: str  #: the experiment
    dataset: str = ""
    method_printed: str = ""
    setting: str = ""
    metric_printed: str = ""


@dataclass(frozen=True)
class Evidence:
    """published/claims/PAPER.yaml: what a paper claims, and what was found about it."""

    date: str  #: of the finding, YYYY-MM-DD
    finding: str
    claims: list[Claim]
    deviations: list[Deviation] = field(default_factory=list)
    explanations: list[Explanation] = field(default_factory=list)


@dataclass(frozen=True)
class Findings:
    """docs/findings.yaml: what the README says of methods."""

    claims: list[Claim]
