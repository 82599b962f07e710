"""TPC-DS tables for `edged bench tables`: the five of query 4, made by DuckDB's generator.

The generator is DuckDB's extension `tpcds`.  It must have DuckDB's exact version, so both live in
an environment of the benchmark's own below the directory.  The extension is loaded from the
package's file; nothing is fetched when it runs.  The directory then holds, beside the environment:

    sf<scale>/<table>.parquet   the columns that query 4 reads; decimals stay decimals
    sf<scale>/query4.sql        the official text of query 4, without its LIMIT

Source: TPC-DS 4.0, query 4; duckdb.org, "TPC-DS extension".
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from edged.errors import EdgedError

DUCKDB = "1.5.5"
PACKAGES = (f"duckdb=={DUCKDB}", f"duckdb-extension-tpcds=={DUCKDB}")

CUSTOMER = (
    "c_customer_sk", "c_customer_id", "c_first_name", "c_last_name", "c_preferred_cust_flag",
    "c_birth_country", "c_login", "c_email_address",
)  # fmt: skip
CHANNELS = {
    "store_sales": ("ss", "ss_customer_sk"),
    "catalog_sales": ("cs", "cs_bill_customer_sk"),
    "web_sales": ("ws", "ws_bill_customer_sk"),
}
"""Prefix of the columns of each sales table, and its reference to the customer."""
AMOUNTS = ("ext_list_price", "ext_wholesale_cost", "ext_discount_amt", "ext_sales_price")


def sales_columns(table: str) -> tuple[str, ...]:
    """The columns of a sales table that query 4 reads: customer, date, amounts."""
    prefix, customer = CHANNELS[table]
    return (customer, f"{prefix}_sold_date_sk", *(f"{prefix}_{name}" for name in AMOUNTS))


COLUMNS = {
    "customer": CUSTOMER,
    "date_dim": ("d_date_sk", "d_year"),
    **{table: sales_columns(table) for table in CHANNELS},
}

_GENERATE = """
import glob, sys
import duckdb
scale, directory, columns = float(sys.argv[1]), sys.argv[2], eval(sys.argv[3])
found = glob.glob(sys.prefix + "/**/tpcds.duckdb_extension", recursive=True)
base = duckdb.connect(config={"allow_unsigned_extensions": "true"})
base.execute(f"load '{found[0]}'")
base.execute(f"call dsdgen(sf={scale:g})")
for table, names in columns.items():
    base.execute(f"copy (select {', '.join(names)} from {table}) to '{directory}/{table}.parquet'")
text, = base.execute("select query from tpcds_queries() where query_nr = 4").fetchone()
with open(f"{directory}/query4.sql", "w") as file:
    file.write(text.rstrip().rstrip(";").removesuffix("LIMIT 100"))
"""


def generate(directory: Path, scale: float, say: Callable[[str], None]) -> Path:
    """The directory with the tables of this scale, made if they are missing (scale 1: a minute of
    one core, and half a minute for the packages).

    Raises EdgedError where the packages cannot be installed.
    """
    made = directory / f"sf{scale:g}"
    if (made / "query4.sql").exists():
        return made
    made.mkdir(parents=True, exist_ok=True)
    python = directory / "env" / "bin" / "python"
    if not python.exists():
        say(f"installing {' and '.join(PACKAGES)} into {python.parents[1]}")
        _call([sys.executable, "-m", "venv", str(python.parents[1])])
        _call([str(python), "-m", "pip", "install", "-q", *PACKAGES])
    say(f"generating TPC-DS at scale {scale:g}")
    _call([str(python), "-c", _GENERATE, str(scale), str(made), repr(COLUMNS)])
    return made


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise EdgedError(
            f"{Path(command[0]).name} {' '.join(command[1:4])} failed: {' '.join(last)}; "
            f"the benchmark needs {' and '.join(PACKAGES)} from PyPI"
        )
