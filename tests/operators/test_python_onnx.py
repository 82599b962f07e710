"""The example of the docs: an ONNX model through onnxruntime in a `python` operator."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.beat.support import T0, stream
from tests.operators.python_jobs import LivePython

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "operators" / "score.py"


def field(number, value):
    """A field of a protobuf message: an integer, text or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def values(name, *dims):
    """A ValueInfoProto of float32; text is a dimension of any size."""
    shape = b"".join(field(1, field(2 if isinstance(d, str) else 1, d)) for d in dims)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))


def model(weights):
    """An ONNX model, y = x · weights, with float32 weights of shape [columns, 1]."""
    raw = weights.astype("<f4").tobytes()
    tensor = field(1, weights.shape[0]) + field(1, 1) + field(2, 1) + field(8, "w") + field(9, raw)
    node = field(1, "x") + field(1, "w") + field(2, "y") + field(4, "MatMul")
    graph = field(1, node) + field(2, "scores") + field(5, tensor)
    graph += field(11, values("x", "rows", weights.shape[0])) + field(12, values("y", "rows", 1))
    return field(1, 8) + field(7, graph) + field(8, field(2, 13))


def test_the_page_shows_the_example():
    page = EXAMPLE.parents[2] / "docs" / "operators_python.md"
    assert EXAMPLE.read_text() in page.read_text()


def test_the_example_of_the_docs_scores_rows_with_a_model(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    directory = tmp_path / "operators"
    directory.mkdir(mode=0o755)
    shutil.copy(EXAMPLE, directory / "score.py")
    weights = np.array([[0.5], [-2.0]])
    (directory / "score.onnx").write_bytes(model(weights))
    monkeypatch.setenv("EDGED_OPERATORS", str(directory))
    columns = {"time": "timestamp", "machine": "int64", "heat": "float64", "hum": "float64"}
    scored = {
        "type": "python", "input": "r", "file": "score.py", "files": {"model": "score.onnx"},
        "settings": {"columns": ["heat", "hum"]}, "timeout": "30s",
        "columns": {"time": "timestamp", "machine": "int64", "score": "float64"},
    }  # fmt: skip
    document = {
        "name": "scores", "streams": {"r": stream(columns)}, "operators": {"scored": scored},
        "sinks": {"sums": {"type": "pages", "input": "scored"}},
    }  # fmt: skip
    given = np.random.default_rng(3).normal(size=(50, 2))
    with LivePython(document) as live:
        rows = [(T0 + i, i % 5, *map(float, pair)) for i, pair in enumerate(given)]
        assert live.take(rows) == []
        live.settle()
        scores = np.array([row[2] for row in live.sums()])
    assert np.allclose(scores, (given.astype("f4") @ weights.astype("f4"))[:, 0], rtol=1e-5)
