"""Which operators TIDL takes, and what to write instead of the others.

Source: edgeai-tidl-tools docs/operators.md (tools 11_00 and 11_01; ONNX opset 19, TFLite 2.12), by name. An operator
that is listed there as part of a fused pattern only (Erf in GELU) is not among them. What isn't runs on the Arm cores
and splits the model into sub-graphs.
"""

from __future__ import annotations

_ONNX = """
Conv AveragePool GlobalAveragePool MaxPool Relu PRelu Max Sum Add Mul Div Sub Min Gemm MatMul Softmax
BatchNormalization ConvTranspose Concat Slice Split Flatten ArgMin ArgMax Upsample Resize DepthToSpace Sigmoid Pad
ReduceMin ReduceMax ScatterND ScatterElements Squeeze Tanh HardSigmoid Elu Reshape Gather Transpose
LayerNormalization GridSample TopK DeformConv Clip LeakyRelu DequantizeLinear QuantizeLinear Sqrt ReduceMean
ReduceSum Pow Cast Asin Asinh HardSwish Mish Log Unsqueeze Abs Floor Exp Sin InstanceNormalization SpaceToDepth Acos
Atan Sinh Neg Cos Cosh Tan Expand
"""
ONNX = frozenset(_ONNX.split())
_TFLITE = """
CONV_2D DEPTHWISE_CONV_2D AVERAGE_POOL_2D MEAN MAX_POOL_2D PRELU RELU RELU6 MUL ADD SUB DIV FULLY_CONNECTED SOFTMAX
TRANSPOSE_CONV CONCATENATION STRIDED_SLICE ARG_MAX RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR DEPTH_TO_SPACE LOGISTIC
PAD QUANTIZE DEQUANTIZE SQUEEZE TANH ELU RESHAPE TRANSPOSE LEAKY_RELU BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND PACK CAST
SPACE_TO_DEPTH
"""
TFLITE = frozenset(_TFLITE.split())
#: What ONNX Runtime's own optimiser removes before TIDL sees the graph.
REMOVED = frozenset({"Identity", "Dropout"})

CURES = {
    "Square": "write Mul of the tensor with itself",
    "SQUARE": "write MUL of the tensor with itself",
    "Reciprocal": "write Div with a constant 1 as its first input, or compute 1/x into the weights",
    "REVERSE_V2": "move it before the model",
    "Gelu": "export it as its pattern of Erf, Add and Mul, which TIDL fuses",
    "Swish": "write Mul with the Sigmoid of the tensor",
    "Softplus": "write Log of Add(Exp, 1), or Relu where its accuracy is enough",
    "Where": "write it as arithmetic with a mask (Mul and Add), or move it behind the last layer",
    "Greater": "move comparisons behind the last layer, out of the model",
    "Less": "move comparisons behind the last layer, out of the model",
    "Equal": "move comparisons behind the last layer, out of the model",
    "NonMaxSuppression": "cut it off and use TIDL's detection layer (`object_detection:meta_arch_type`)",
    "Shape": "export with fixed shapes, so that the exporter folds it (onnxsim)",
    "ConstantOfShape": "export with fixed shapes, so that the exporter folds it (onnxsim)",
    "Range": "export with fixed shapes, so that the exporter folds it (onnxsim)",
    "Loop": "unroll it in the export",
    "If": "export the branch that is taken",
    "Scan": "unroll it in the export",
    "LSTM": "use convolutions over time, or run it on the CPU behind the model",
    "GRU": "use convolutions over time, or run it on the CPU behind the model",
    "Einsum": "export it as MatMul and Transpose",
    "GroupNormalization": "write Reshape, InstanceNormalization, Reshape; or train with BatchNormalization",
    "LpNormalization": "move it behind the last layer",
    "GlobalMaxPool": "write MaxPool with the kernel of the plane, or ReduceMax",
    "ReduceL2": "write Sqrt of ReduceSum of Mul with itself",
    "Tile": "write Concat, or Expand",
    "CumSum": "move it out of the model",
    "Erf": "TIDL takes it as part of GELU only: export the whole pattern, or use Tanh's approximation",
}


def cure_of(operator: str) -> str:
    """What to do about an operator that TIDL leaves to the CPU."""
    known = CURES.get(operator)
    if known is not None:
        return f"{operator}: {known}"
    if operator in ONNX or operator in TFLITE:
        return f"{operator} is taken in some forms: run `tidegauge lint MODEL` for the form that is not"
    return f"{operator}: replace it by operators that TIDL takes, or move it to the model's beginning or end"
