"""The commands of docs/own-data.md, as they stand there but for a quicker method, from a CSV to a comparison."""

import csv
import re
import shlex
from pathlib import Path

import pandas as pd

import gpbench as api
from projects import REPOSITORY

PAGE = REPOSITORY / "docs" / "own-data.md"


def test_the_commands_of_the_page_do_what_it_says(project, gpbench):
    with Path("mine.csv").open("w", newline="") as stream:
        rows = [("a" if i % 3 else "b", i % 5, (i % 5) + 4 * (i % 3 > 0) + 0.1 * (-1) ** i) for i in range(40)]
        csv.writer(stream).writerows([("site", "wind", "power"), *rows])
    Path("new.csv").write_text("wind,site\n2,b\n4,a\n")
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.replace("svgp", "linear") for line in "".join(blocks).splitlines()]
    assert len(lines) == 6
    for line in lines:
        command, _, target = line.partition(" > ")
        if "challenge" in line:
            splits = pd.read_csv("splits.csv").query("part == 'test'")
            splits.assign(mean=splits["power"] + 0.5, sd=1.0, y=splits["power"]).to_csv("theirs.csv", index=False)
        if line.startswith("gpbench"):
            answer = gpbench(*shlex.split(command)[1:])
            assert answer.code == 0, (line, answer.err)
            if target:
                Path(target).write_text(answer.out)
    assert abs(pd.read_csv("answer.csv")["mean"] - [2, 8]).max() < 0.2
    for split in (0, 1):
        api.fit("linear", "mine", split, budget="smoke")
    study = re.search(r"overrides='(.*)'", lines[-1])[1]
    compared = api.compare("default", f"{study} methods=[linear] splits=2 budget=smoke")
    assert set(compared["method"]) | set(compared["best"]) == {"linear", "theirs"}
