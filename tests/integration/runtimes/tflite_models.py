"""A TFLite model of two operators, built with LiteRT's own schema."""

from __future__ import annotations

from pathlib import Path

import flatbuffers
from ai_edge_litert import schema_py_generated as schema


def relu_chain(path: Path) -> Path:
    """x → ABS → y, float32 [1, 4, 4, 3], by way of one inner tensor: y = relu(abs(x))."""
    names = ("x", "inner", "y")
    tensors = []
    for index, name in enumerate(names):
        tensor = schema.TensorT()
        tensor.shape, tensor.type, tensor.buffer, tensor.name = [1, 4, 4, 3], schema.TensorType.FLOAT32, index + 1, name
        tensors.append(tensor)
    codes, operators = [], []
    for index, builtin in enumerate((schema.BuiltinOperator.ABS, schema.BuiltinOperator.RELU)):
        code = schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = builtin
        code.version = 1
        codes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex, operator.inputs, operator.outputs = index, [index], [index + 1]
        operators.append(operator)
    graph = schema.SubGraphT()
    graph.tensors, graph.operators, graph.inputs, graph.outputs, graph.name = tensors, operators, [0], [2], "main"
    model = schema.ModelT()
    model.version, model.operatorCodes, model.subgraphs = 3, codes, [graph]
    model.buffers = [schema.BufferT() for _ in range(4)]
    model.description = "two operators"
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path
