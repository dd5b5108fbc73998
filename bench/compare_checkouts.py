"""Do two checkouts give the same scores, bit for bit? One small fit of every method, preset and task in each of them.

    python bench/compare_checkouts.py OLD NEW [--out FOLDER] [--only PATTERN]

OLD and NEW are checkouts with an environment of their own (`.venv`). A fit is compared by every number of its points,
its trace (without seconds), its components, its chain and the model of a control. Kept results of OLD are taken again.
GPBENCH_MIRROR names the raw files of data sets that do not ship with a package. Exits 1 where a number differs.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

# a data set of every task that a method may have; images for the presets of images
DATASETS = {
    "regression": "boston",
    "binary": "wdbc",
    "multiclass": "wine",
    "counts": "coal_counts",
    "images": "digits",
    "vlt": "vlt_100_2",
    "ord": "ord_100_2",
    "lcx": "lcx_100_2",
    "lrg": "lrg_100_2",
    "modalities": "modalities",
}
SAMPLED = {  # fits of kind `sample`: name of the method -> data set
    "mcmc_gp": "lrg_100_2",
    "mcmc_gp_probit": "probit_50_2",
    "mcmc_gp_counts": "lcx_100_2",
    "mcmc_gp_volatility": "vlt_100_2",
    "mcmc_gp_ordinal": "ord_100_2",
    "bsgp_1": "boston",
    "mcmc_svgp": "wdbc",
    "dgp_mcmc": "diabetes",
    "multinomial_gp_modalities": "modalities",
}
SAMPLERS = ("sa", "aa", "asis", "khr", "surr", "pm", "marginal", "latents", "theta_given_f", "theta_given_nu")
OF_TRUTH = ("latents", "theta_given_f", "theta_given_nu")  # samplers that need the true f and psi
# aep on images takes ten minutes a fit; deeper networks run the code of two layers
SLOW = (
    "aep_images",
    "aep_2017_images",
    *(f"{m}_{depth}" for m in ("bsgp", "sghmc_dgp", "ipvi_dgp") for depth in (3, 4, 5)),
)
SMALL = ("budget=smoke", "noise_block=20", "split=0")


def cells(methods: list[str]) -> list[list[str]]:
    """Settings of every fit, as words of `gpbench fit`; a checkout refuses what a method cannot do."""
    made = []
    for method in methods:
        for task, dataset in DATASETS.items():
            if method in SLOW:
                continue
            wants_images = method.endswith("_images")
            if wants_images != (task == "images") or method.split("_")[-1] in ("modalities", "regions"):
                continue
            if task in ("vlt", "ord", "lcx", "lrg", "modalities"):
                continue
            made.append([f"method={method}", f"dataset={dataset}"])
    made += [[f"method={m}_modalities", "dataset=modalities"] for m in ("multinomial_gp", "simple_mkl")]
    made += [["method=mcmc_gp_volatility", "dataset=vlt_100_2"], ["method=mcmc_gp_ordinal", "dataset=ord_100_2"]]
    for method, dataset in SAMPLED.items():
        made.append([f"method={method}", f"dataset={dataset}", "kind=sample", "protocol=filippone2013"])
        made.append([f"method={method}", f"dataset={dataset}", "kind=sample"])
    for sampler in SAMPLERS:
        given = ["protocol=filippone2013", "method.ard=true"] if sampler in OF_TRUTH else []
        made.append(["method=mcmc_gp", "dataset=lrg_100_2", "kind=sample", f"method.sampler={sampler}", *given])
    return made


WORKER = """
import io, json, os, sys, contextlib, hashlib, traceback
try:
    from gpbench.cli.main import main
except ImportError:
    from gpbench.cli import main
for line in sys.stdin:
    words = json.loads(line)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["fit", *words])
        except BaseException as error:
            code, _ = 99, err.write(repr(error))
    text = out.getvalue()
    fit_id = json.loads(text)["fit_id"] if text.startswith("{") else ""
    print(json.dumps([words, code, fit_id, err.getvalue().strip().splitlines()[-1:]]), file=sys.__stdout__, flush=True)
"""


def digest(folder: Path) -> dict[str, str]:
    """Digest of the numbers of each part of what a fit left, without seconds."""
    import numpy as np
    import pandas as pd

    parts = {}
    for path in sorted(folder.glob("*.parquet")):
        table = pd.read_parquet(path).drop(columns="seconds", errors="ignore")
        parts[path.stem] = table.to_csv(float_format="%.17g").encode()
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            for name in sorted(name for name in arrays.files if not name.endswith("seconds")):
                part = name.split("/")[0] if "/" in name else path.stem  # of arrays.npz, and the model of controls
                parts[part] = parts.get(part, b"") + name.encode() + arrays[name].tobytes()
    parts = {part: hashlib.sha256(content).hexdigest()[:12] for part, content in parts.items()}
    return parts


def run(root: Path, out: Path, wanted: list[list[str]]) -> dict[str, dict]:
    """What every fit of a checkout left, kept in `out` so that a second call goes on where the first ended."""
    store, kept = out / "store", out / "digests.json"
    known = json.loads(kept.read_text()) if kept.is_file() else {}
    todo = [words for words in wanted if " ".join(words) not in known]
    out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "GPBENCH_STORE": str(store),
        "GPBENCH_ROOT": str(root),
        "CI": "1",
        "OMP_NUM_THREADS": "1",
    }
    (store / ".spool").mkdir(parents=True, exist_ok=True)
    stamp = store / ".spool" / ".begun"  # no tracker beside the fits
    stamp.touch()
    os.utime(stamp, (4e9, 4e9))
    command = [root / ".venv/bin/python", "-c", WORKER]
    with subprocess.Popen(
        command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        for words in todo:
            worker.stdin.write(json.dumps([*words, *SMALL]) + "\n")
            worker.stdin.flush()
            _, code, fit_id, message = json.loads(worker.stdout.readline())
            found = {"code": code, "message": message, "files": digest(store / fit_id) if fit_id else {}}
            known[" ".join(words)] = found
            kept.write_text(json.dumps(known, indent=1))
            print(f"{root.name}: {' '.join(words)}: {'ok' if code == 0 else message}", file=sys.stderr)
        worker.stdin.close()
    return known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--out", type=Path, default=Path("compare"))
    parser.add_argument("--only", default="*", help="pattern of methods, as in dsvi*")
    arguments = parser.parse_args()
    methods = sorted(path.stem for path in (arguments.old / "conf/method").glob("*.yaml"))
    wanted = [words for words in cells(methods) if fnmatch.fnmatch(words[0], f"method={arguments.only}")]
    old, new = (
        run(root.resolve(), arguments.out.resolve() / side, wanted)
        for side, root in (("old", arguments.old), ("new", arguments.new))
    )
    same = differ = refused = 0
    for words in (" ".join(words) for words in wanted):
        one, other = old[words], new[words]
        if one["code"] and other["code"]:
            refused += 1
        elif one["files"] == other["files"] and one["files"]:
            same += 1
        else:
            differ += 1
            parts = [name for name in one["files"] if one["files"][name] != other["files"].get(name)]
            print(f"differs: {words}: {', '.join(parts) or other['message']}")
    print(f"{same} fits are the same bit for bit, {differ} differ, {refused} are refused by both")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
