"""Inference runtimes behind one Session: ONNX and TFLite, each on TIDL and on the CPU. Imports no runtime by itself."""
