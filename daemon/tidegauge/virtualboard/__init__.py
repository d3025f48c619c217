"""An emulated AM62A: compiles an ONNX model, runs it behind TI's call shapes, traces like TIDL, takes faults.

It is not TI's emulator. The arithmetic is a fixed-point twin of the model: integer codes, quantised weights,
requantisation after every layer, run by ONNX Runtime on one thread.
"""
