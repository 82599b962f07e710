"""Scores rows with an ONNX model: one number from several columns of each row."""

from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa


class Operator:
    """One session; the model is the file `model` of the operator's table."""

    def __init__(self, context: Any) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(context.files["model"], options)
        self.columns = context.settings["columns"]

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name).to_numpy() for name in self.columns]
        (scores,) = self.session.run(None, {"x": np.stack(columns, axis=1).astype(np.float32)})
        score = pa.array(scores[:, 0].astype(np.float64))
        return pa.record_batch(
            [batch.column("time"), batch.column("machine"), score],
            names=["time", "machine", "score"],
        )
