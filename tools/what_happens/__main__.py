"""Measures what other libraries do, for docs/reference/what-happens.md: ``python tools/what_happens``.

It writes `results.json` and the tables of the page; ``python tools/what_happens tokens icc`` these alone. All need the
packages of constraints.txt; some need more, beside them and without their dependencies (`pip install --no-deps`):

- decoders: av==18.1.0 torchcodec==0.17.0 librosa==0.11.0 lazy_loader audioread pooch numba llvmlite, and FFmpeg
  (`apt install ffmpeg`)
- confidence: sglang==0.5.23, of which one file is read
- missing_reward: verl==0.9.1 tensordict pyvers orjson hydra-core omegaconf antlr4-python3-runtime==4.9.3 codetiming
- icc: pingouin==0.7.0 pandas_flavor xarray tabulate seaborn, and R (`apt install r-base-core r-cran-psych r-cran-lme4`)
"""

from __future__ import annotations

import argparse
import json
import warnings

from tables import PAGE, RESULTS, TABLES, with_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"all by default: {', '.join(TABLES)}")
    warnings.simplefilter("ignore")
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    for name in parser.parse_args().tables or TABLES:
        results[name] = TABLES[name]()
        print(name, len(results[name]["rows"]), "rows")
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    page = PAGE.read_text("utf-8")
    for name, table in results.items():
        page = with_table(page, name, table)
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
