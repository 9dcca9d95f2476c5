"""What things are called that more than one module here asks for."""

#: The format of the programs: a model whose weights are inputs of its graph.
FORMAT = "onnxruntime:model"

#: The kind of the files: an optimised model whose weights are initialisers without bytes.
KIND = "onnxruntime:optimized"

#: What the metadata of such a file say: providers and configuration of its sessions, and which release made it.
PROVIDERS, CONFIGURATION, VERSION = "cachec.providers", "cachec.configuration", "cachec.onnxruntime"
