"""The executors' zip, beside numpy, pyarrow and pyspark only, imports and reads."""

import json
import subprocess
import sys
import zipfile

from edged.central.package import zip_edged
from tests.spark.landings import readings

BLOCKED = ["numba", "llvmlite", "fastapi", "click", "rich", "lz4", "sqlglot", "duckdb", "kernels"]
CHILD = """
import json, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(name)
        return None
BLOCKED = json.loads(sys.argv[2])
# The zip alone: neither this checkout nor an installed edged may help.
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "")
                    and "editable" not in repr(f)]
sys.path = [p for p in sys.path if p and p != sys.argv[3]]
sys.path.insert(0, sys.argv[1])
sys.meta_path.insert(0, Block())
import edged
from edged.central.datasource import EdgedDataSource
source = EdgedDataSource({"landing": sys.argv[4], "stream": "curve", "metadata": "true"})
reader = source.reader(source.schema())
rows = sum(b.num_rows for p in reader.partitions() for b in reader.read(p))
print(json.dumps([edged.__file__, rows]))
"""


def test_the_zip_alone_reads_a_landing(tmp_path, landing, request):
    landing.land([readings(s) for s in range(1, 4)])
    package = zip_edged(tmp_path / "edged.zip")
    root = str(request.config.rootpath)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(package), json.dumps(BLOCKED), root, str(landing.path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert child.returncode == 0, child.stderr
    place, rows = json.loads(child.stdout)
    assert place.startswith(str(package)) and rows == 3000


def test_the_same_sources_give_the_same_zip(tmp_path):
    first, second = zip_edged(tmp_path / "a.zip"), zip_edged(tmp_path / "b.zip")
    assert first.read_bytes() == second.read_bytes()
    assert "edged/central/datasource.py" in zipfile.ZipFile(first).namelist()
