"""The names of TVM's program formats and kinds of files."""

#: A format of input programs: an ONNX model with its weights as the last inputs of its graph, sorted by name.
ONNX = "onnxruntime:model"

#: A format of input programs, from ``cachec_torch.to_exported``.
TORCH = "torch:export"

#: The format of ``cachec_tvm.strip``: a Relax module as text, with the weights as the last parameters of ``main``,
#: sorted.
RELAX = "tvm:relax"

#: A kind of file: a shared library with code for TVM's virtual machine. Its ``main`` takes the inputs, and then the
#: weights, sorted by name.
KIND = "tvm:library"

#: A kind of file: such a library with a trailer, which describes a call like that of the torch module.
EXPORTED = "tvm:exported"
