"""What things are called that more than one module here asks for."""

#: The format of the programs taken: an ONNX model whose weights are inputs of its graph, the last, sorted by name.
FORMAT = "onnxruntime:model"

#: The kind of the files made here: a shared library with the code of TVM's virtual machine.
KIND = "tvm:library"
