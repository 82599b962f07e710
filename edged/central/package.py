"""The zip for Spark executors: the modules that the page source imports, and no others.

    zip_edged("edged.zip");  spark.sparkContext.addPyFile("edged.zip")
    spark-submit --py-files edged.zip …

Executors also need Python, numpy and pyarrow; not numba, FastAPI or click.  Equal sources give
equal bytes.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import edged
from edged.errors import ConfigError

MODULES = (
    "__init__.py",
    "errors.py",
    "central/__init__.py",
    "central/_source_parquet.py",
    "central/_source_plan.py",
    "central/_source_read.py",
    "central/compacted.py",
    "central/consumers.py",
    "central/datasource.py",
    "central/landing_format.py",
    "central/local_directory.py",
    "central/read_request.py",
    "central/row_checks.py",
    "central/schema_files.py",
    "central/segments.py",
    "central/tables.py",
    "central/time_range.py",
    "data/__init__.py",
    "data/lists.py",
    "data/schema.py",
    "data/sketches.py",
    "documents/__init__.py",
    "documents/checked_json.py",
    "documents/units.py",
    "pages/__init__.py",
    "pages/format.py",
    "pages/header.py",
    "pages/read.py",
)
"""Files under `edged/` that `edged.central.datasource` imports, directly or indirectly, and the
functions on sketches."""


def zip_edged(path: str | Path) -> Path:
    """Write the zip to `path` and return it.  Raises ConfigError if it cannot be written."""
    root, target = Path(edged.__file__).parent, Path(path)
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in MODULES:
                entry = zipfile.ZipInfo(f"edged/{name}", (2020, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, (root / name).read_bytes())
    except OSError as problem:
        raise ConfigError(f"{target}: cannot be written: {problem.strerror}") from problem
    return target
