"""What a batch of five splits saves on a CPU: a step of one fit alone over a fifth of one of five, by its size.

The sizes are those of `trainer.small`, (inducing inputs, features or units) x rows of a step."""

import timing
import torch
from steps import Work, our_step
from timing import NUM_INDUCING

SPLITS = 5
WORKS = {
    "SVGP, 20 x 100": Work("svgp", {"num_inducing": 20, "batch_size": 100, "optimiser": "adam"}),
    "SVGP, 100 x 500": Work("svgp", {"batch_size": 500, "optimiser": "adam"}),
    "DSVI-2, 20 x 100": Work("dsvi", {"num_inducing": 20, "batch_size": 100}),
    "DSVI-2, 100 x 500": Work("dsvi", {"batch_size": 500}),
    "BSGP-1, 100 x 500": Work("bsgp", {"num_inducing": NUM_INDUCING, "batch_size": 500}),
    "DGP-RFF, 100 x 200": Work("dgp_rff", {"batch_size": 200}),
    "BNN, 200 x 200": Work("bnn", {"batch_size": 200}),
    "IPVI-DGP, 100 x 1000": Work("ipvi_dgp", {"batch_size": 1000}),
}


def main() -> None:
    torch.set_num_threads(1)
    for name, work in WORKS.items():
        one, five = (our_step(work._replace(replicas=n), torch.float64) for n in (1, SPLITS))
        taken = timing.interleaved({"one": one, "five": five}, turn=0.05)
        print(f"{name:22s} {timing.interval_text(SPLITS * taken['one'] / taken['five'])}", flush=True)


if __name__ == "__main__":
    main()
