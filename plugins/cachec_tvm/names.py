"""What things are called that more than one module here asks for."""

#: Formats of the programs taken. An ONNX model whose weights are inputs of its graph, the last, sorted by name.
ONNX = "onnxruntime:model"

#: What ``cachec_torch.to_exported`` makes.
TORCH = "torch:export"

#: What ``cachec_tvm.strip`` makes: a module of Relax as text, whose ``main`` takes the weights last, sorted by name.
RELAX = "tvm:relax"

#: Kinds of the files made here. A shared library with the code of TVM's virtual machine, whose ``main`` takes the
#: inputs and then the weights, sorted by name.
KIND = "tvm:library"

#: The same with what its caller has to know behind its end: it is called as the module of torch was.
EXPORTED = "tvm:exported"
