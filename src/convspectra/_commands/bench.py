"""The command that measures: ourselves beside others, or what training costs."""

import argparse
import sys
from dataclasses import asdict

from .._bench.run import bench as measure
from .._optional import require
from .._render import BENCH_MEANS, BENCH_RATIOS, BENCH_TRAINING, as_json, say, table


def bench(args: argparse.Namespace) -> int:
    """Measure, print ratios, and leave everything in a folder."""
    if args.training:
        return _training(args)
    jobs = args.jobs.split(",")
    found, right = measure(args.output, full=args.full, jobs=jobs, fresh=args.fresh)
    if args.json:
        as_json(asdict(found))
    else:
        table(BENCH_RATIOS, found.ratios)
        sys.stdout.write("\n")
        table(BENCH_MEANS, found.means)
    say(f"results.md, figure.png and results.json are in {args.output}.")
    return int(not right)


def _training(args: argparse.Namespace) -> int:
    require("torch", extra="torch")
    from .._bench.training import training

    found = training(args.output)
    if args.json:
        as_json(found)
    else:
        table(BENCH_TRAINING, [found | found["median_seconds"]])
    say(f"training.json is in {args.output}.")
    return int(not found["right"])
