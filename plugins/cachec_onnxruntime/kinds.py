"""The names of the package's format, its kind of file, and its metadata."""

#: The format of the programs: a model with its weights as inputs of the graph.
FORMAT = "onnxruntime:model"

#: The kind of the files: an optimised model with its weights as initialisers without bytes.
KIND = "onnxruntime:optimized"

#: Keys of the file's metadata: providers and configuration of its sessions, and the release that made it.
PROVIDERS, CONFIGURATION, VERSION = "cachec.providers", "cachec.configuration", "cachec.onnxruntime"
